//go:build linux && cgo

package verbs

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/rdmatest"
)

func testPD(t *testing.T) *PD {
	t.Helper()
	x, err := Open(rdmatest.Device(t))
	if err != nil {
		t.Fatal(err)
	}
	pd, err := x.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{pd, x} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return pd
}

func TestRegisterRangeTakesAnyMappedMemory(t *testing.T) {
	pd := testPD(t)
	page := uintptr(os.Getpagesize())
	mem, err := unix.Mmap(-1, 0, int(4*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	at := uintptr(unsafe.Pointer(&mem[0]))
	mr, err := pd.RegisterRange(at+100, uint64(2*page), AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if mr.Addr() != uint64(at)+100 || mr.Len() != uint64(2*page) || mr.LKey() == 0 && mr.RKey() == 0 {
		t.Errorf("registered %d bytes at %#x", mr.Len(), mr.Addr())
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
	if err := unix.Mprotect(mem[page:2*page], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if _, err := pd.RegisterRange(at, uint64(4*page), AccessLocalWrite); errnoOf(err) != syscall.EFAULT {
		t.Errorf("with a page without access: %v", err)
	}
}

// A goroutine's stack moves when it grows, and the device would go on reaching the old one.
func TestWhatIsRegisteredIsNotOnAStack(t *testing.T) {
	pd := testPD(t)
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
