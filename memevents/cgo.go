//go:build linux && cgo && (amd64 || arm64)

package memevents

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl -lpthread
#include "ibc_mem.h"

#cgo noescape ibc_mem_claim
#cgo nocallback ibc_mem_claim
#cgo noescape ibc_mem_retire
#cgo nocallback ibc_mem_retire
#cgo noescape ibc_mem_drain
#cgo nocallback ibc_mem_drain
*/
import "C"

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Layouts shared with C: an array of negative length does not compile.
var (
	_ [unsafe.Sizeof(entry{}) - C.sizeof_struct_ibc_mem_entry]byte
	_ [C.sizeof_struct_ibc_mem_entry - unsafe.Sizeof(entry{})]byte
	_ [unsafe.Offsetof(entry{}.refs) - unsafe.Offsetof(C.struct_ibc_mem_entry{}.refs)]byte
	_ [unsafe.Offsetof(C.struct_ibc_mem_entry{}.refs) - unsafe.Offsetof(entry{}.refs)]byte
	_ [unsafe.Offsetof(entry{}.hi) - unsafe.Offsetof(C.struct_ibc_mem_entry{}.hi)]byte
	_ [unsafe.Offsetof(C.struct_ibc_mem_entry{}.hi) - unsafe.Offsetof(entry{}.hi)]byte
	_ [unsafe.Offsetof(entry{}.watcher) - unsafe.Offsetof(C.struct_ibc_mem_entry{}.watcher)]byte
	_ [unsafe.Offsetof(C.struct_ibc_mem_entry{}.watcher) - unsafe.Offsetof(entry{}.watcher)]byte
	_ [C.IBC_MEM_STALE - stale]byte
)

// Slots is how many ranges can be watched at once, in the whole process.
const Slots = C.IBC_MEM_SLOTS

// table is the C table of this process: this image's own, or the one that was there before
// (libmemevents.so).
var table = sync.OnceValue(func() *C.struct_ibc_mem {
	m := C.ibc_mem_adopt()
	gate = u64(&m.gate)
	return m
})

// Words of the C table that both sides change.
func u64(p *C.uint64_t) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(p)) }
func u32(p *C.uint32_t) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(p)) }
func i32(p *C.int32_t) *atomic.Int32   { return (*atomic.Int32)(unsafe.Pointer(p)) }

func slotOf(m *C.struct_ibc_mem, slot C.uint32_t) *entry {
	return (*entry)(unsafe.Pointer(&m.entry[slot]))
}

func (r Ref) slot(m *C.struct_ibc_mem) C.uint32_t {
	return C.uint32_t((uintptr(unsafe.Pointer(r.e)) - uintptr(unsafe.Pointer(&m.entry[0]))) / unsafe.Sizeof(entry{}))
}

// forked: this process is the child of a fork.
func forked(m *C.struct_ibc_mem) bool { return u32(&m.forked).Load() != 0 }

func errForked(op string) error {
	return &Error{Op: op, Err: ErrForked, Remedy: "start the program anew with exec"}
}

// Verify checks the invariants of the table. For tests; it takes time and wants no changes
// meanwhile.
func Verify() error {
	if forked(table()) {
		return errForked("verify")
	}
	if bad := C.ibc_mem_verify(table()); bad != nil {
		return &Error{Op: "verify", Detail: C.GoString(bad)}
	}
	return nil
}
