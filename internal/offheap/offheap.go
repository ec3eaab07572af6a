// Package offheap allocates small zeroed values outside the Go heap, one or
// more pages each.
//
// Such memory has one writer and any number of readers: a hot path counts with
// plain increments, a scrape reads with atomic loads. An aligned 64-bit word is
// read and written whole on the platforms we support (amd64, arm64), and the
// race detector, which knows only Go memory, keeps out.
package offheap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Alloc returns a zeroed T that holds no Go pointers, and the function that
// gives the memory back. Nothing may use it afterwards.
func Alloc[T any]() (*T, func(), error) {
	var zero T
	n := (int(unsafe.Sizeof(zero)) + unix.Getpagesize() - 1) &^ (unix.Getpagesize() - 1)
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("offheap: mmap of %d bytes: %w", n, err)
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(mem))), func() { _ = unix.Munmap(mem) }, nil
}
