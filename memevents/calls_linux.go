//go:build linux && cgo && (amd64 || arm64)

package memevents

/*
#include "ibc_mem.h"
#cgo noescape ibc_mem_call
#cgo nocallback ibc_mem_call
*/
import "C"

import "syscall"

// Calls that tests make as C code would, through the symbol that any library is bound to.
const (
	callMmap           = C.IBC_MEM_MMAP
	callMunmap         = C.IBC_MEM_MUNMAP
	callMremap         = C.IBC_MEM_MREMAP
	callShmat          = C.IBC_MEM_SHMAT
	callShmdt          = C.IBC_MEM_SHMDT
	callBrk            = C.IBC_MEM_BRK
	callSbrk           = C.IBC_MEM_SBRK
	callMadvise        = C.IBC_MEM_MADVISE
	callProcessMadvise = C.IBC_MEM_PROCESS_MADVISE
	callRemapFilePages = C.IBC_MEM_REMAP_FILE_PAGES
)

func cCall(event uint32, args ...uintptr) (uintptr, syscall.Errno) {
	var a [6]C.intptr_t
	for i, v := range args {
		a[i] = C.intptr_t(v)
	}
	var err C.int
	ret := C.ibc_mem_call(C.uint32_t(event), 0, &a[0], &err)
	return uintptr(ret), syscall.Errno(err)
}

// Parts of the hook, for tests.
func windowOpen(lo, hi uintptr) uint32 {
	return uint32(C.ibc_mem_window_open(table(), C.uint64_t(lo), C.uint64_t(hi)))
}

func windowClose(id uint32) { C.ibc_mem_window_close(table(), C.uint32_t(id)) }
func scans() uint64         { return u64(&table().stats.scans).Load() }
