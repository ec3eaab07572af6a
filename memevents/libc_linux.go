//go:build linux && cgo && (amd64 || arm64)

package memevents

/*
#include "ibc_mem.h"
#include <sys/mman.h>
#cgo noescape ibc_mem_call
#cgo nocallback ibc_mem_call
#cgo noescape ibc_mem_cycles
#cgo nocallback ibc_mem_cycles
*/
import "C"

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

// Map maps n bytes of private memory, rounded up to pages, as C code would. Package syscall calls
// the kernel itself, which hooks do not see; memory of Map that goes through Unmap may be cached as
// regcache.Mapped also where there is no userfaultfd.
func Map(n uintptr) (unsafe.Pointer, error) {
	p, errno := hookCall(C.IBC_MEM_MMAP,
		[6]C.intptr_t{0, C.intptr_t(n), C.PROT_READ | C.PROT_WRITE, C.MAP_PRIVATE | C.MAP_ANONYMOUS, -1})
	if errno != 0 {
		return nil, &Error{Op: "mmap", Errno: errno, Detail: fmt.Sprintf("%d bytes", n)}
	}
	return *(*unsafe.Pointer)(unsafe.Pointer(&p)), nil
}

// Unmap unmaps n bytes at p, rounded up to pages, in such a way that hooks see it.
func Unmap(p unsafe.Pointer, n uintptr) error {
	if _, errno := hookCall(C.IBC_MEM_MUNMAP, [6]C.intptr_t{C.intptr_t(uintptr(p)), C.intptr_t(n)}); errno != 0 {
		return &Error{Op: "munmap", Errno: errno, Detail: fmt.Sprintf("%d bytes at %p", n, p)}
	}
	return nil
}

// hookCall makes a call through the hook of the table that counts, wherever the symbols lead.
func hookCall(event C.uint32_t, args [6]C.intptr_t) (C.intptr_t, syscall.Errno) {
	var err C.int
	ret := C.ibc_mem_call(table().hook[event], event, &args[0], &err)
	return ret, syscall.Errno(err)
}

// TimeUnmap says what listening costs: it makes n munmap calls as C code does and as many straight
// to the kernel, in turns, and returns what each kind took in all. With mapped a page is mapped and
// written to before each, in the same way, and that time is included; without, there is nothing to
// unmap.
func TimeUnmap(n int, mapped bool) (hooked, raw time.Duration) {
	var ns [2]C.uint64_t
	C.ibc_mem_cycles(table(), C.uint64_t(max(n, 0)), cbool(mapped), &ns[0])
	return time.Duration(ns[0]), time.Duration(ns[1])
}
