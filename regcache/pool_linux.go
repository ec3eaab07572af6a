package regcache

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/memevents"
)

const hugePage = 2 << 20 // MAP_HUGE_2MB: mmap(2)

// mapRegistered maps memory that is to be registered: of huge pages if the system has some set
// aside, else such that the kernel may make it huge. Pages are there at once, so that a lack of
// them is an error and not a signal.
func mapRegistered(n int, huge bool) ([]byte, error) {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	const prot = unix.PROT_READ | unix.PROT_WRITE
	if huge && n%hugePage == 0 {
		mem, err := mapBytes(n, prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB|unix.MAP_POPULATE)
		if err == nil {
			return mem, nil
		}
		return mapAligned(n, prot, flags)
	}
	return mapBytes(n, prot, flags)
}

// mapBytes is not unix.Mmap, which keeps a table of its own of what it maps.
func mapBytes(n, prot, flags int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n), prot, flags)
	if err != nil {
		return nil, mapError(n, err)
	}
	return unsafe.Slice((*byte)(p), n), nil
}

// mapAligned maps at a multiple of the huge page and requests such pages.
func mapAligned(n, prot, flags int) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n+hugePage), prot, flags|unix.MAP_NORESERVE)
	if err != nil {
		return nil, mapError(n, err)
	}
	lo := uintptr(p)
	at := (lo + hugePage - 1) &^ (hugePage - 1)
	// The addresses were never handed out, so no hook needs to see that the ends go.
	if at > lo {
		err = unix.MunmapPtr(p, at-lo)
	}
	mem := unsafe.Add(p, at-lo)
	if rest := lo + uintptr(n+hugePage) - at - uintptr(n); rest > 0 {
		err = errors.Join(err, unix.MunmapPtr(unsafe.Add(mem, n), rest))
	}
	b := unsafe.Slice((*byte)(mem), n)
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a kernel without them does without
	return b, err
}

func mapError(n int, err error) error {
	var errno syscall.Errno
	errors.As(err, &errno)
	return &Error{Op: "mmap", Errno: errno, Detail: fmt.Sprintf("%d bytes", n)}
}

// unmapRegistered lets the hooks see it: a cache may have registrations of the same memory, made by
// borrowers of it.
func unmapRegistered(mem []byte) error {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	err := memevents.Unmap(p, uintptr(len(mem)))
	if errors.Is(err, memevents.ErrNotSupported) {
		err = os.NewSyscallError("munmap", unix.MunmapPtr(p, uintptr(len(mem))))
	}
	return err
}
