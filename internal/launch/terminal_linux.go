package launch

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A terminal stops, or refuses, a reader that is not in its foreground process group.
// So with one rank 0 stays in the process group of this process, and a shell stops, continues,
// interrupts and gives the terminal to both together. A signal for the whole group must not be
// forwarded to rank 0 again.

// hasTerminal: rank 0 may read from one.
func hasTerminal(stdin *os.File) bool {
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		return false // no groupEcho can be started
	}
	if isTerminal(stdin) {
		return true
	}
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}

func isTerminal(f *os.File) (is bool) {
	if f != nil {
		control(f, func(fd int) {
			_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
			is = err == nil
		})
	}
	return is
}

// ignoredByOthers than rank 0 is what stops a process that uses its terminal from the background:
// what they write appears even after stty tostop, and what they read fails, where they would hang.
var ignoredByOthers = []os.Signal{syscall.SIGTTIN, syscall.SIGTTOU}

// Foreground reports whether this process has its terminal: keys interrupt it.
func Foreground() (has bool) {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	control(f, func(fd int) {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		has = err == nil && group == syscall.Getpgrp()
	})
	return has
}
