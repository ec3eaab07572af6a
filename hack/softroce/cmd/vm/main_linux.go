package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `vm runs programs where there is a real RDMA device: rxe0, made by the kernel's Soft-RoCE in a VM.

  vm run [flags] [--] CMD ARGS...       run a command in a VM; its exit code is returned
  vm [-exec] [flags] PROGRAM ARGS...    the same for go test -exec: profiles and coverage come back,
                                        the time limit is the test's own
  vm cluster -n N [flags] [--] CMD...   run a command in each of N VMs on one network (vm0, vm1, ...)
  vm ctl [-dir D] VERB ...              act on a running cluster: list, cut A B, restore A B, drop A B PERCENT,
                                        delay A B DURATION, kill I, exec I CMD ARGS...
  vm prepare [-update]                  download the kernel and build the image; every other verb does so when needed
  vm setup                              install missing system packages, then prepare
  vm status                             what is there and what is missing
  vm clean                              remove everything that vm has downloaded and built

In the VM: the files of this host, under a layer in memory; the same working directory; root; rxe0 at 10.0.0.1 on veth0
(GID index 1 is RoCEv2), or at 10.0.1.I+1 on eth0 in a cluster; no limit of locked memory; IBCONDUIT_REQUIRE_RDMA=1.
Exit code 124: time limit; 125: the VM failed, the reason is on stderr; 128+N: signal N. Logs: build/softroce/log.

Flags of run, exec and cluster:
`

func main() { os.Exit(realMain(os.Args[1:])) }

func realMain(args []string) int {
	ctx, stop := interruptible()
	defer stop()
	o := newOptions()
	rest, err := o.parse(args)
	if errors.Is(err, flag.ErrHelp) || err == nil && len(rest) == 1 && rest[0] == "help" {
		fmt.Print(usage)
		o.flags.SetOutput(os.Stdout)
		o.flags.PrintDefaults()
		return 0
	}
	if err != nil {
		return fail(exitUsage, err)
	}
	if len(rest) == 0 {
		return fail(exitUsage, errors.New("what shall be run? vm -h explains"))
	}
	verb, known := verbs[rest[0]]
	if o.exec || !known {
		return runExec(ctx, o, rest)
	}
	return verb(ctx, o, rest[1:])
}

var verbs = map[string]func(context.Context, *options, []string) int{
	"run": runRun, "cluster": runCluster, "ctl": runCtl,
	"prepare": runPrepare, "setup": runSetup, "status": runStatus, "clean": runClean,
}

// interruptible returns a context that ends with the signals that ask for an end, and with the
// parent process: a VM must not go on for a test run that was killed. The parent is watched by
// polling, because a parent death signal would come with the end of the parent's thread that forked
// us, which for a Go program is not the parent's end.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE) // a reader of our output that has gone is an error value, and the VM is still ended
	parent := os.Getppid()
	tick := time.NewTicker(250 * time.Millisecond)
	go func() {
		for {
			select {
			case s := <-signals:
				cancel(errInterrupted{s.(syscall.Signal), s.String()})
			case <-tick.C:
				if os.Getppid() != parent {
					cancel(errInterrupted{syscall.SIGHUP, "the parent process has ended"})
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { tick.Stop(); cancel(nil) }
}
