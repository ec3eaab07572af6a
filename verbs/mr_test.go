//go:build linux && cgo

package verbs

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestRegisterRangeTakesAnyMappedMemory(t *testing.T) {
	pd := newRig(t).pd
	page := uintptr(os.Getpagesize())
	mem := mapped(t, int(4*page))
	at := uintptr(unsafe.Pointer(&mem[0]))
	mr := must(pd.RegisterRange(at+100, uint64(2*page), AccessLocalWrite))(t)
	if mr.Addr() != uint64(at)+100 || mr.Len() != uint64(2*page) || mr.LKey() == 0 && mr.RKey() == 0 {
		t.Errorf("registered %d bytes at %#x", mr.Len(), mr.Addr())
	}
	check(t, mr.Close())
	check(t, unix.Mprotect(mem[page:2*page], unix.PROT_NONE))
	if _, err := pd.RegisterRange(at, uint64(4*page), AccessLocalWrite); errnoOf(err) != syscall.EFAULT {
		t.Errorf("with a page without access: %v", err)
	}
}

// A goroutine's stack moves when it grows, and the device would go on using the old one.
func TestWhatIsRegisteredIsNotOnAStack(t *testing.T) {
	pd := newRig(t).pd
	moved := make(chan [2]bool)
	go func() { // a fresh goroutine has a small stack
		var own, registered [3000]byte
		before := [2]uintptr{where(&own), where(&registered)}
		mr, err := pd.Register(unsafe.Pointer(&registered), uint64(len(registered)), AccessLocalWrite)
		deep(200)
		moved <- [2]bool{where(&own) != before[0], where(&registered) != before[1]}
		if err != nil {
			t.Error(err)
			return
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
		close(moved)
	}()
	switch m := <-moved; {
	case !m[0]:
		t.Error("the control did not move: this test proves nothing")
	case m[1]:
		t.Error("registered memory moved with the stack")
	}
	<-moved
}

// where is an address as a number, which keeps nothing on the heap.
//
//go:noinline
func where(b *[3000]byte) uintptr { return uintptr(unsafe.Pointer(b)) }

//go:noinline
func deep(n int) byte {
	var b [4096]byte
	if n > 0 {
		b[n] = deep(n - 1)
	}
	return b[n]
}
