package pagepool

import (
	"golang.org/x/sys/unix"
)

// mapMemory maps n bytes that take no memory before they are touched.
func mapMemory(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err == nil {
		prepare(b)
	}
	return b, err
}

func unmap(b []byte) error { return unix.Munmap(b) }

// prepare has pages come and go one by one: with huge ones a touch takes 2 MiB, of which nobody
// keeps account.
func prepare(b []byte) {
	if len(b) > 0 {
		_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // EINVAL: the kernel has none
	}
}

// populate gives pages their memory in one call; it came with Linux 5.14. Without it they get it
// when they are written, in a shared segment perhaps at the cost of the writer's memory group.
func populate(b []byte) { _ = unix.Madvise(b, unix.MADV_POPULATE_WRITE) }

// discard gives memory back. Of a shared file only a hole does (madvise(2), MADV_REMOVE).
func discard(b []byte, shared bool) error {
	if shared {
		return unix.Madvise(b, unix.MADV_REMOVE)
	}
	return unix.Madvise(b, unix.MADV_DONTNEED)
}
