//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// forwarded are the signals for the ranks. A hangup that was ignored when ibrun began is none
// (nohup), nor is an interrupt (a script's background job): once it is asked for, the runtime
// ignores it neither here nor for the children. Shells ignore SIGQUIT with SIGINT, of which the
// runtime does not tell.
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
