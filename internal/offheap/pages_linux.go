package offheap

import "golang.org/x/sys/unix"

// smallPages keeps the kernel from making huge pages of memory.
func smallPages(mem []byte) {
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE) // EINVAL: the kernel has none
}
