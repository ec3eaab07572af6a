//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"runtime"
	"syscall"
	"time"
)

// UFFDIO_WRITEPROTECT (include/uapi/linux/userfaultfd.h), and where no program can have its
// argument.
const (
	writeProtect = 0xc018aa06
	nowhere      = ^uintptr(0)
)

// Late are the classes of UnmappedLate that only userfaultfd reports.
func Late() Classes { return Classes(tested.late.Load()) }

// Reported says whether userfaultfd has reported every unmapping by raw calls that had freed its
// addresses when Reported was called. The kernel counts those that it has not reported, from before
// their addresses are free until after their events were read, and refuses with EAGAIN while there
// are any, before it looks at the request (fs/userfaultfd.c, mmap_changing). The request is one
// that it refuses with EFAULT otherwise: EINVAL is what other files say to requests that they do
// not know (drivers/char/random.c), should one have come in the descriptor's place. It costs a
// system call, which never waits. False also where there is no kernel to query.
func (w *Watcher) Reported() bool { return w.ask() == syscall.EFAULT }

func (w *Watcher) ask() syscall.Errno {
	fd := i32(&w.m.uffd).Load() - 1
	_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(fd), writeProtect, nowhere)
	return errno
}

// WaitReported waits until Reported, for about as long as a registration takes; where others
// compute, for one turn of theirs. False: not yet, or there is no kernel to query.
func (w *Watcher) WaitReported() bool {
	for end := time.Now().Add(100 * time.Microsecond); ; runtime.Gosched() {
		over := time.Now().After(end) // seen before it asks: a turn may be longer than that
		if errno := w.ask(); errno != syscall.EAGAIN {
			return errno == syscall.EFAULT
		}
		if over {
			return false
		}
	}
}
