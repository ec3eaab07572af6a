package offheap

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Map returns n zeroed bytes, 1 or more, that take memory page by page when they are touched, and
// the function that gives them back.
func Map(n int) ([]byte, func(), error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("offheap: mmap of %d bytes: %w", n, err)
	}
	smallPages(mem)
	return mem, func() { _ = unix.Munmap(mem) }, nil
}
