//go:build linux && cgo && (amd64 || arm64)

package memevents

// #include "ibc_mem.h"
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

func cCall(event C.uint32_t, args ...uintptr) (uintptr, syscall.Errno) {
	var a [6]C.intptr_t
	for i, v := range args {
		a[i] = C.intptr_t(v)
	}
	var err C.int
	ret := C.ibc_mem_call(event, 0, &a[0], &err)
	return uintptr(ret), syscall.Errno(err)
}
