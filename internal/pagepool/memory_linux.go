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

// prepare has pages come and go one by one: with huge ones a touch takes 2 MiB, of which no
// account is kept.
func prepare(b []byte) {
	if len(b) > 0 {
		_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // EINVAL: the kernel has none
	}
}

// populate gives pages their memory, by writes: a shared segment's pages belong to the memory group
// of the first writer, which a peer must not be. MADV_POPULATE_WRITE takes as long, and marks pages
// as referenced besides (FOLL_TOUCH, mm/gup.c). Near the limit of a group the kernel then moves all
// to its list of active pages, looks for inactive ones by figures up to two seconds old
// (inactive_is_low and mem_cgroup_flush_stats_ratelimited, mm/vmscan.c of Linux 6.18), finds none,
// and ends the process, however much swap space is free.
func populate(b []byte) {
	for i := uint64(0); i < uint64(len(b)); i += Size {
		b[i] = 0
	}
}

// discard gives memory back. Of a shared file only a hole does (madvise(2), MADV_REMOVE).
func discard(b []byte, shared bool) error {
	if shared {
		return unix.Madvise(b, unix.MADV_REMOVE)
	}
	return unix.Madvise(b, unix.MADV_DONTNEED)
}
