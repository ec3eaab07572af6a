//go:build linux && cgo && (amd64 || arm64)

package memevents

// #include "ibc_mem.h"
import "C"

import (
	"fmt"
	"sync"
	"syscall"
)

// AdviseHuge makes each later private anonymous mapping of at least min bytes request transparent
// huge pages (MADV_HUGEPAGE), for all code that maps it through the libc; 0 ends it. It is one for
// the process.
func AdviseHuge(min uint64) { C.ibc_mem_advise_huge(table(), C.uint64_t(min)) }

// Protect makes the libc's calls that would unmap or discard a part of [lo, hi) fail with EPERM,
// until the returned function is called. It is for memory that must not be lost, such as a
// segment that other processes write to. It does not stop raw system calls. The memory that a call
// takes has to be known before: process_madvise that discards, and shmdt of a segment that was
// attached past the hooks, fail wherever they might touch a protected range.
func Protect(lo, hi uintptr) (unprotect func(), err error) {
	if lo >= hi || lo == 0 {
		return nil, &Error{Op: "protect", Errno: syscall.EINVAL, Detail: fmt.Sprintf("[%#x,%#x) is not a range", lo, hi)}
	}
	m := table()
	if forked(m) {
		return nil, errForked("protect")
	}
	id := C.ibc_mem_protect(m, C.uint64_t(lo), C.uint64_t(hi))
	if id < 0 {
		return nil, &Error{Op: "protect", Err: ErrFull, Detail: fmt.Sprintf("%d ranges are protected", C.IBC_MEM_PROTECTED),
			Remedy: "unprotect one"}
	}
	return sync.OnceFunc(func() { C.ibc_mem_unprotect(m, id) }), nil
}
