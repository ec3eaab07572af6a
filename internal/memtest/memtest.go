//go:build linux && cgo && (amd64 || arm64)

package memtest

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include "../../memevents/ibc_mem.h"
#include <dlfcn.h>
#include <stdlib.h>

// Of package memevents, with which a test is linked.
#pragma weak ibc_mem_add_handler
#pragma weak ibc_mem_adopt
#pragma weak ibc_mem_call
#pragma weak ibc_mem_name
#pragma weak ibc_mem_root_v1
#pragma weak ibc_mem_symbol
#pragma weak ibc_mem_window_close
#pragma weak ibc_mem_window_open

static void *load(const char *path, const char **why)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL);

	if (!lib)
		*why = dlerror();
	return lib;
}

static long call(void *f, long a, long b, long c)
{
	union { void *p; long (*call)(long, long, long); } u = {.p = f};

	return u.call(a, b, c);
}

#cgo noescape ibc_mem_call
#cgo nocallback ibc_mem_call
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Calls that are made through the symbol that any library is bound to.
const (
	Mmap           = C.IBC_MEM_MMAP
	Munmap         = C.IBC_MEM_MUNMAP
	Mremap         = C.IBC_MEM_MREMAP
	Shmat          = C.IBC_MEM_SHMAT
	Shmdt          = C.IBC_MEM_SHMDT
	Brk            = C.IBC_MEM_BRK
	Sbrk           = C.IBC_MEM_SBRK
	Madvise        = C.IBC_MEM_MADVISE
	ProcessMadvise = C.IBC_MEM_PROCESS_MADVISE
	RemapFilePages = C.IBC_MEM_REMAP_FILE_PAGES
)

// Call makes one of the calls.
func Call(event uint32, args ...uintptr) (uintptr, syscall.Errno) {
	var a [6]C.intptr_t
	for i, v := range args {
		a[i] = C.intptr_t(v)
	}
	var err C.int
	ret := C.ibc_mem_call(C.ibc_mem_symbol(C.ibc_mem_name[event]), C.uint32_t(event), &a[0], &err)
	return uintptr(ret), syscall.Errno(err)
}

// Name is the name of one of the calls.
func Name(event uint32) string { return C.GoString(C.ibc_mem_name[event]) }

// OpenWindow notes a change of a range in progress, as a hook does. It returns what CloseWindow
// wants.
func OpenWindow(lo, hi uintptr) uint32 {
	return uint32(C.ibc_mem_window_open(table(), C.uint64_t(lo), C.uint64_t(hi)))
}

// CloseWindow ends a change.
func CloseWindow(id uint32) { C.ibc_mem_window_close(table(), C.uint32_t(id)) }

// Root and AddHandler are the addresses of what C code of the executable calls to add a handler.
func Root() uintptr       { return uintptr(C.ibc_mem_root_v1) }
func AddHandler() uintptr { return uintptr(C.ibc_mem_add_handler) }

// Load loads a library and returns its handle.
func Load(path string) (unsafe.Pointer, error) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var why *C.char
	if lib := C.load(p, &why); lib != nil {
		return lib, nil
	}
	return nil, errors.New(C.GoString(why))
}

// Unload unloads it.
func Unload(lib unsafe.Pointer) { C.dlclose(lib) }

// Symbol is the definition that a library loaded now would be bound to.
func Symbol(name string) unsafe.Pointer {
	p := C.CString(name)
	defer C.free(unsafe.Pointer(p))
	return C.ibc_mem_symbol(p)
}

// Func calls a function of up to three longs, of the program or of a library that was loaded.
func Func(name string, args ...uintptr) uintptr {
	f := Symbol(name)
	if f == nil {
		panic("no function " + name)
	}
	var a [3]C.long
	for i, v := range args {
		a[i] = C.long(v)
	}
	return uintptr(C.call(f, a[0], a[1], a[2]))
}

func table() *C.struct_ibc_mem         { return C.ibc_mem_adopt() }
func u32(p *C.uint32_t) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(p)) }
func u64(p *C.uint64_t) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(p)) }

// SetReaderDelay makes the reader of userfaultfd wait, before it reads and before it acts on that.
func SetReaderDelay(microseconds uint32) { u32(&table().uffd_delay_us).Store(microseconds) }

// ReaderEvents counts what the reader has seen.
func ReaderEvents() (unmap, remove uint64) {
	s := &table().stats
	return u64(&s.uffd_unmap).Load(), u64(&s.uffd_remove).Load()
}

// CallsSeen counts the calls that came by the hooks.
func CallsSeen(event uint32) uint64 { return u64(&table().stats.calls[event]).Load() }

// SetOrder chooses the order of notice and change in a test build of the hooks. StopAt makes them
// stop before and after the kernel's work on the range at addr, Stopped says which, until GoOnFrom.
func SetOrder(order uint32) { u32(&table().test_order).Store(order) }
func StopAt(addr uintptr)   { u64(&table().test_addr).Store(uint64(addr)) }
func Stopped() uint32       { return u32(&table().test_at).Load() }
func GoOnFrom(stage uint32) { u32(&table().test_at).CompareAndSwap(stage, 0) }
