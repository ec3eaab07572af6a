//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe" // for go:linkname

	"golang.org/x/sys/unix"
)

// cCall makes a call as a C library would: through the symbol that it is bound to. Only package
// memevents has C.
//
//go:linkname cCall github.com/ibconduit/conduit/memevents.cCall
func cCall(event uint32, args ...uintptr) (uintptr, syscall.Errno)

// setReaderDelay makes the reader of userfaultfd wait, before it reads and before it acts on what
// it read.
//
//go:linkname setReaderDelay github.com/ibconduit/conduit/memevents.setReaderDelay
func setReaderDelay(microseconds uint32)

//go:linkname windowOpen github.com/ibconduit/conduit/memevents.windowOpen
func windowOpen(lo, hi uintptr) uint32

//go:linkname windowClose github.com/ibconduit/conduit/memevents.windowClose
func windowClose(id uint32)

// cLoad loads a library, and cFunc calls a function of the program or of one that was loaded.
//
//go:linkname cLoad github.com/ibconduit/conduit/memevents.cLoad
func cLoad(path string) (unsafe.Pointer, error)

//go:linkname cFunc github.com/ibconduit/conduit/memevents.cFunc
func cFunc(name string, args ...uintptr) uintptr

// setOrder chooses the order of notice and change in a test build of the hooks; stopAt makes them
// stop before and after the kernel's work on the range at addr, where stopped says which, until
// goOnFrom.
//
//go:linkname setOrder github.com/ibconduit/conduit/memevents.setOrder
func setOrder(order uint32)

//go:linkname stopAt github.com/ibconduit/conduit/memevents.stopAt
func stopAt(addr uintptr)

//go:linkname stopped github.com/ibconduit/conduit/memevents.stopped
func stopped() uint32

//go:linkname goOnFrom github.com/ibconduit/conduit/memevents.goOnFrom
func goOnFrom(stage uint32)

// Events of enum ibc_mem_event_type.
const (
	cMmap = iota
	cMunmap
	cMremap
	cShmat
	cShmdt
	cBrk
	cSbrk
	cMadvise
	cProcessMadvise
)

const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS

func call(t testing.TB, event uint32, args ...uintptr) uintptr {
	t.Helper()
	ret, errno := cCall(event, args...)
	if errno != 0 {
		t.Fatalf("call %d: %v", event, errno)
	}
	return ret
}

func protect(t testing.TB, lo, n, prot uintptr) {
	t.Helper()
	if _, _, errno := unix.RawSyscall(unix.SYS_MPROTECT, lo, n, prot); errno != 0 {
		t.Fatal(errno)
	}
}

func freeOSMemory() { debug.FreeOSMemory() }
