//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// struct uffdio_writeprotect of no bytes, and its request (include/uapi/linux/userfaultfd.h).
var noBytes [3]uint64

const writeProtect = 0xc018aa06

// Late are the classes of UnmappedLate that only userfaultfd tells of.
func Late() Classes { return Classes(tested.late.Load()) }

// Told reports whether userfaultfd has told of every unmapping by raw calls that had freed its addresses when Told was
// called. The kernel counts those that it has not told of, from before their addresses are free until after their events
// were read, and refuses with EAGAIN while there are any, before it looks at the request (fs/userfaultfd.c, mmap_changing).
// The request is one that it refuses with EINVAL otherwise. It costs a system call, which never waits. False also
// where nothing can be asked.
func (w *Watcher) Told() bool { return w.ask() == syscall.EINVAL }

func (w *Watcher) ask() syscall.Errno {
	fd := i32(&w.m.uffd).Load() - 1
	_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(fd), writeProtect, uintptr(unsafe.Pointer(&noBytes)))
	return errno
}

// WaitTold waits until Told, for about as long as a registration takes; where others compute, for one turn of theirs. False: not yet,
// or there is nobody to ask.
func (w *Watcher) WaitTold() bool {
	for end := time.Now().Add(100 * time.Microsecond); time.Now().Before(end); {
		switch w.ask() {
		case syscall.EINVAL:
			return true
		case syscall.EAGAIN:
			runtime.Gosched()
		default:
			return false
		}
	}
	return false
}
