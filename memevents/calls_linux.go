//go:build linux && cgo && (amd64 || arm64)

package memevents

/*
#include "ibc_mem.h"
#include <stdlib.h>
#cgo noescape ibc_mem_call
#cgo nocallback ibc_mem_call
*/
import "C"

import (
	"errors"
	"syscall"
	"unsafe"
)

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

func eventName(event uint32) string { return C.GoString(C.ibc_mem_name[event]) }

// Parts of the hook, for tests.
func windowOpen(lo, hi uintptr) uint32 {
	return uint32(C.ibc_mem_window_open(table(), C.uint64_t(lo), C.uint64_t(hi)))
}

func windowClose(id uint32) { C.ibc_mem_window_close(table(), C.uint32_t(id)) }

// What C code of the executable calls to add a handler.
func rootAt() uintptr       { return uintptr(C.ibc_mem_root_v1) }
func addHandlerAt() uintptr { return uintptr(C.ibc_mem_add_handler) }

// cLoad loads a library and returns its handle.
func cLoad(path string) (unsafe.Pointer, error) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var why *C.char
	if lib := C.ibc_mem_load(p, &why); lib != nil {
		return lib, nil
	}
	return nil, errors.New(C.GoString(why))
}

func cUnload(lib unsafe.Pointer) { C.ibc_mem_unload(lib) }

// cSymbol is the definition that a library loaded now would be bound to.
func cSymbol(name string) unsafe.Pointer {
	p := C.CString(name)
	defer C.free(unsafe.Pointer(p))
	return C.ibc_mem_symbol(p)
}

// cFunc calls a function of up to three longs.
func cFunc(name string, args ...uintptr) uintptr {
	f := cSymbol(name)
	if f == nil {
		panic("no function " + name)
	}
	var a [3]C.long
	for i, v := range args {
		a[i] = C.long(v)
	}
	return uintptr(C.ibc_mem_call_symbol(f, a[0], a[1], a[2]))
}

func setOrder(order uint32)              { u32(&table().test_order).Store(order) }
func setReaderDelay(microseconds uint32) { u32(&table().uffd_delay_us).Store(microseconds) }
func readerEvents() (unmap, remove uint64) {
	s := &table().stats
	return u64(&s.uffd_unmap).Load(), u64(&s.uffd_remove).Load()
}
func callsSeen(event uint32) uint64 { return u64(&table().stats.calls[event]).Load() }

// The stops of a test build of the hooks around the kernel's work on the range at addr.
func stopAt(addr uintptr)   { u64(&table().test_addr).Store(uint64(addr)) }
func stopped() uint32       { return u32(&table().test_at).Load() }
func goOnFrom(stage uint32) { u32(&table().test_at).CompareAndSwap(stage, 0) }
