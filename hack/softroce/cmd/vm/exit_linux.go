package main

import (
	"fmt"
	"os"
	"syscall"
)

// Exit codes of our own; every other code is the command's.
const (
	exitUsage          = 2
	exitTimeout        = 124
	exitInfrastructure = 125
)

func fail(code int, err error) int {
	fmt.Fprintln(os.Stderr, "vm:", err)
	return code
}

// errInterrupted is the cause of a context that a signal or the parent's end has cancelled.
type errInterrupted struct {
	signal syscall.Signal
	reason string
}

func (e errInterrupted) Error() string { return e.reason }
