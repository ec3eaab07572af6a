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

// The kernel copies 2 GiB less a page at a time.
func TestReadOfMoreThanTwoGiB(t *testing.T) {
	if testing.Short() {
		t.Skip("it copies 2 GiB")
	}
	const piece, pieces = 64 << 20, 33
	src := reserve(t, piece*pieces)
	src[len(src)-1] = 7
	// The same memory again and again, so that the copy takes 64 MiB.
	fd, err := unix.MemfdCreate("peek", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, piece); err != nil {
		t.Fatal(err)
	}
	dst := reserve(t, piece*pieces)
	for i := range pieces {
		at := unsafe.Pointer(&dst[i*piece])
		if _, err := unix.MmapPtr(fd, 0, at, piece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
	}
	if err := Read(os.Getpid(), address(src), dst); err != nil {
		t.Fatal(err)
	}
	if got := dst[len(dst)-1]; got != 7 {
		t.Errorf("the last byte is %d, want 7", got)
	}
}

// reserve maps memory that takes none until it is written.
func reserve(t *testing.T, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}
