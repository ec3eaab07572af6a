//go:build linux

package peek

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/racetest"
)

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func TestReadCopiesMemory(t *testing.T) {
	src := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	dst := make([]byte, len(src))
	if err := Read(os.Getpid(), address(src), dst); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dst, src) {
		t.Error("other bytes arrived")
	}
	if racetest.Enabled {
		return
	}
	if n := testing.AllocsPerRun(100, func() { _ = Read(os.Getpid(), address(src), dst) }); n != 0 {
		t.Errorf("a read makes %v allocations", n)
	}
}

func TestReadOfWhatIsNotThereFails(t *testing.T) {
	m, err := unix.Mmap(-1, 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	at := address(m)
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	if err := Read(os.Getpid(), at, make([]byte, 16)); !errors.Is(err, unix.EFAULT) {
		t.Errorf("got %v, want EFAULT", err)
	}
	if err := Read(1<<22+1, at, make([]byte, 16)); !errors.Is(err, unix.ESRCH) {
		t.Errorf("got %v, want ESRCH for a process number that Linux does not give", err)
	}
}
