package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ibconduit/conduit/hack/softroce"
)

// dmesgLines bounds what is shown of the kernel's log after a failure.
const dmesgLines = 30

func runRun(ctx context.Context, o *options, argv []string) int {
	if o.timeout == 0 {
		o.timeout = defaultTimeout
	}
	return runOne(ctx, o, argv)
}

// runExec is run with what go test -exec needs.
func runExec(ctx context.Context, o *options, argv []string) int {
	t := testFlags(argv)
	o.fetch = append(o.fetch, t.outputs...)
	if o.timeout == 0 {
		o.timeout = defaultTimeout
		if t.timeout > 0 {
			o.timeout = t.timeout + 30*time.Second // its own report, with stacks, is the better one
		}
	}
	if d := os.Getenv("GOCOVERDIR"); d != "" {
		o.fetch = append(o.fetch, d)
	}
	return runOne(ctx, o, argv)
}

// runOne runs a command in one VM.
func runOne(ctx context.Context, o *options, argv []string) int {
	if len(argv) == 0 {
		return fail(exitUsage, errors.New("run: no command"))
	}
	fetch, err := absolute(o.fetch)
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	c, err := softroce.Start(ctx, o.config(1))
	if err != nil {
		return startFailed(ctx, err)
	}
	defer c.Close()
	h := c.Host(0)
	cmd := o.command(h, argv)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if o.stdin {
		cmd.Stdin = os.Stdin
	}
	mark := kernelMark(ctx, h)
	code := attend(ctx, o, cmd)
	if code != 0 {
		showKernelLog(h, mark)
	}
	if len(fetch) > 0 && h.Alive() && code != exitTimeout {
		if err := h.Fetch(ctx, fetch...); err != nil && code == 0 {
			return fail(exitInfrastructure, err)
		}
	}
	return code
}

func (o *options) command(h *softroce.Host, argv []string) *softroce.Cmd {
	cmd := h.Command(argv...)
	cmd.Memlock, cmd.Dir = int64(o.memlock), o.chdir
	cmd.Env = h.Environ()
	for _, kv := range o.env {
		if !strings.Contains(kv, "=") {
			kv += "=" + os.Getenv(kv)
		}
		cmd.Env = append(cmd.Env, kv)
	}
	return cmd
}

// attend runs the command to its end, the time limit's or ours, and returns the exit code.
func attend(ctx context.Context, o *options, cmd *softroce.Cmd) int {
	limit := fmt.Errorf("time limit of %v", o.timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, limit)
	defer cancel()
	if err := cmd.Start(); err != nil {
		return fail(exitInfrastructure, err)
	}
	defer forwardQuit(cmd)()
	err := cmd.Wait(ctx)
	var exit *softroce.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if exit.Reason != "" {
			fmt.Fprintln(os.Stderr, "vm:", exit.Reason)
		}
		return exit.Code
	case errors.Is(err, softroce.ErrKilled):
		fmt.Fprintln(os.Stderr, "vm:", err)
		return 0
	case errors.Is(err, limit):
		return fail(exitTimeout, fmt.Errorf("%w reached; the VM was killed (-timeout sets another)", limit))
	case interruptedBy(err) != 0:
		return fail(interruptedBy(err), err)
	}
	return fail(exitInfrastructure, err)
}

func startFailed(ctx context.Context, err error) int {
	if code := interruptedBy(context.Cause(ctx)); code != 0 {
		return fail(code, context.Cause(ctx))
	}
	return fail(exitInfrastructure, err)
}

// interruptedBy returns 128+signal, or 0.
func interruptedBy(err error) int {
	var i errInterrupted
	if errors.As(err, &i) {
		return 128 + int(i.signal)
	}
	return 0
}

// kernelMark returns the length of the kernel's log before the command.
func kernelMark(ctx context.Context, h *softroce.Host) int {
	log, err := h.KernelLog(ctx)
	if err != nil {
		return 0
	}
	return len(log)
}

// showKernelLog prints what the guest's kernel said since the mark, bounded.
func showKernelLog(h *softroce.Host, mark int) {
	if !h.Alive() {
		return // the console was shown
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	log, err := h.KernelLog(ctx)
	if err != nil || len(log) <= mark {
		return
	}
	lines := strings.Split(strings.TrimSpace(log[mark:]), "\n")
	fmt.Fprintf(os.Stderr, "vm: kernel log of the command's time:\n")
	if n := len(lines) - dmesgLines; n > 0 {
		fmt.Fprintf(os.Stderr, "  (%d lines more in the log folder)\n", n)
		lines = lines[n:]
	}
	for _, l := range lines {
		fmt.Fprintln(os.Stderr, " ", l)
	}
}

// forwardQuit passes SIGQUIT on for the life of a command: go test sends it for the stacks of a
// test that hangs.
func forwardQuit(cmd *softroce.Cmd) (stop func()) {
	quit := make(chan os.Signal, 1)
	done := make(chan struct{})
	signal.Notify(quit, syscall.SIGQUIT)
	go func() {
		for {
			select {
			case <-quit:
				_ = cmd.Signal(syscall.SIGQUIT) // a guest that has gone says so elsewhere
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(quit); close(done) }
}
