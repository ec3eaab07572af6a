//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ibconduit/conduit/internal/launch"
)

// exit ends ibrun, and at a terminal by SIGINT itself where that ended a rank: a shell that had the
// interrupt as well goes on with its loop, or script, after any other end. No signal ends process 1
// of a container.
func exit(code int) {
	if code == 128+int(syscall.SIGINT) && !signal.Ignored(syscall.SIGINT) && os.Getpid() > 1 && launch.Foreground() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		time.Sleep(time.Second) // another thread may have it
	}
	os.Exit(code)
}

// forwarded are the signals for the ranks. A hangup that was ignored when ibrun began is none
// (nohup), nor is an interrupt (a script's background job): once it is caught, the runtime
// ignores it neither here nor for the children. Shells ignore SIGQUIT with SIGINT, of which the
// runtime does not report.
func forwarded() []os.Signal {
	all := []os.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}
	if signal.Ignored(syscall.SIGINT) {
		signal.Ignore(syscall.SIGQUIT)
	} else {
		all = append(all, syscall.SIGQUIT)
	}
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	return all
}
