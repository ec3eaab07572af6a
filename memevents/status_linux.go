//go:build linux && cgo && (amd64 || arm64)

package memevents

// #include "ibc_mem.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// tested is the result of the last self-test. Claim and Late read the sets on every call.
var tested struct {
	mu                          sync.Mutex
	report                      *Report
	everywhere, somewhere, late atomic.Uint32
}

// Status returns the self-test's result at the first call, or at the last Retest.
func Status() Report {
	tested.mu.Lock()
	defer tested.mu.Unlock()
	if tested.report == nil {
		startMonitors()
		selfTest()
	}
	return *tested.report
}

// Retest tests again. Other code may have overwritten the hooks since; changes no longer seen are
// no longer covered, and Claim refuses accordingly from then on. Where something was lost, every
// entry of the process becomes stale: changes may have passed it by already, and its owners are to
// register anew for the rest.
func Retest() Report {
	Status()
	tested.mu.Lock()
	defer tested.mu.Unlock()
	everywhere, somewhere := covered()
	selfTest()
	e, s := covered()
	if everywhere&^e|somewhere&^s != 0 {
		// After the two sets changed: a claim meanwhile either is met here or sees them.
		C.ibc_mem_invalidate(table(), 0, ^C.uint64_t(0))
		C.ibc_mem_signal(table())
	}
	return *tested.report
}

// covered are the classes seen for any range, and those seen for ranges given to userfaultfd.
func covered() (everywhere, somewhere Classes) {
	return Classes(tested.everywhere.Load()), Classes(tested.somewhere.Load())
}

// trials are the calls that stand for the classes: through a symbol of the libc, and straight to
// the kernel.
var trials = []struct {
	what   uint32
	event  int // whose relocations of other libraries are called too; -1: no
	called Class
	raw    Class // numClasses: no class of its own
}{
	{C.IBC_MEM_TRY_MUNMAP, C.IBC_MEM_MUNMAP, Munmap, RawUnmap},
	{C.IBC_MEM_TRY_MMAP, C.IBC_MEM_MMAP, MmapFixed, RawUnmap},
	{C.IBC_MEM_TRY_MREMAP, C.IBC_MEM_MREMAP, Mremap, RawUnmap},
	{C.IBC_MEM_TRY_MADVISE, C.IBC_MEM_MADVISE, Madvise, RawDiscard},
	{C.IBC_MEM_TRY_BRK, -1, Brk, numClasses},
	{C.IBC_MEM_TRY_SHM, -1, Shm, RawShm},
	{C.IBC_MEM_TRY_REMAP, C.IBC_MEM_REMAP_FILE_PAGES, RemapFile, RawRemapFile},
	{C.IBC_MEM_TRY_GUARD, C.IBC_MEM_MADVISE, Guard, RawGuard},
	{C.IBC_MEM_TRY_FREE, -1, LibcFree, numClasses},
	{C.IBC_MEM_TRY_LIBC_BRK, -1, LibcBrk, numClasses},
}

// selfTest makes the calls, and makes what it found the truth for Claim.
func selfTest() {
	m := table()
	if monitors.uffd.Active && C.ibc_mem_uffd_alive(m) == 0 {
		monitors.uffd.Active, monitors.uffd.Why = false, "the program has closed its descriptor"
	}
	u32(&m.doubt).Store(0) // before the trials: what comes meanwhile is tested by the next claim
	r := &Report{Monitors: monitors.list(), Classes: make([]Coverage, numClasses)}
	off := monitors.off
	if forked(m) {
		off = "this process is the child of a fork"
	}
	for c := range r.Classes {
		r.Classes[c] = Coverage{Class: Class(c), Why: off}
	}
	if off == "" {
		found := runTrials(m)
		found.fill(r)
	}
	tested.report = r
	everywhere, somewhere := r.Covered()
	// Before a Claim relies on userfaultfd in a hook's place
	tested.late.Store(uint32(somewhere &^ everywhere & UnmappedLate))
	tested.everywhere.Store(uint32(everywhere))
	tested.somewhere.Store(uint32(somewhere))
}

// findings are the classes that hooks noticed, and those that userfaultfd did.
type findings struct {
	hooked, watched Classes
	why             [numClasses]string
}

func runTrials(m *C.struct_ibc_mem) (f findings) {
	rawMissed := Classes(0)
	for _, t := range trials {
		if why := tryHooks(m, t.what, t.event); why == "" {
			f.hooked |= Set(t.called)
		} else {
			f.why[t.called] = why
		}
		if !monitors.uffd.Active {
			continue
		}
		if ok, _ := try(m, trial{what: t.what, uffd: true}); ok {
			f.watched |= Set(t.called)
		}
		if t.raw == numClasses {
			continue
		}
		if ok, _ := try(m, trial{what: t.what, raw: true, uffd: true}); ok {
			f.watched |= Set(t.raw)
		} else {
			rawMissed |= Set(t.raw) // one of several that make up the class
		}
	}
	f.watched &^= rawMissed
	// To the kernel, lowering the break is unmapping like any other (mm/mmap.c, sys_brk), and an
	// allocator has no other ways than these, whenever it takes them.
	if f.watched.Has(Set(RawUnmap)) {
		f.watched |= Set(Brk)
	}
	if f.watched.Has(Set(RawUnmap, RawDiscard)) {
		f.watched |= Set(LibcFree, LibcBrk)
	}
	return f
}

// tryHooks makes the call through the symbol, and through each relocation of it in this process,
// which other code may have changed. It returns the unnoticed call.
func tryHooks(m *C.struct_ibc_mem, what uint32, event int) (missed string) {
	if ok, err := try(m, trial{what: what, own: monitors.reloc.Active && !inLibc(what)}); !ok && err != 0 {
		return fmt.Sprintf("the test's call failed: %v", err)
	} else if !ok {
		return "calls of other libraries do not come by"
	}
	if event < 0 {
		return ""
	}
	var targets [16]unsafe.Pointer
	n := C.ibc_mem_targets(C.uint32_t(event), &targets[0], C.uint32_t(len(targets)))
	for _, target := range targets[:n] {
		if ok, _ := try(m, trial{what: what, target: target}); !ok {
			return fmt.Sprintf("a library's relocation leads to %#x, and not here", uintptr(target))
		}
	}
	return ""
}

// inLibc selects the trials that call functions inside the libc.
func inLibc(what uint32) bool { return what == C.IBC_MEM_TRY_FREE || what == C.IBC_MEM_TRY_LIBC_BRK }

// trial is one call that should be noticed.
type trial struct {
	what      uint32
	raw, uffd bool
	own       bool           // call our own definition in the symbol's place
	target    unsafe.Pointer // the definition to call; nil: the symbol's
}

func try(m *C.struct_ibc_mem, t trial) (bool, syscall.Errno) {
	var err C.int
	ok := C.ibc_mem_try(m, C.uint32_t(t.what), cbool(t.raw), cbool(t.uffd), cbool(t.own), t.target, &err)
	return ok != 0, syscall.Errno(err)
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func (f *findings) fill(r *Report) {
	for c := range numClasses {
		w := &r.Classes[c]
		switch {
		case f.hooked.Has(Set(c)):
			w.By = monitors.hooks(c)
		case f.watched.Has(Set(c)):
			w.By, w.Limited = monitors.uffd.Name, true
		default:
			w.Why = f.explain(c)
		}
	}
}

// explain says why no monitor sees a class.
func (f *findings) explain(c Class) string {
	switch c {
	case Truncate:
		return "nothing reports it: do not shrink or punch files whose mappings are registered"
	case RawShm, RawGuard, RawRemapFile:
		return "the kernel does not report it; hooks see only calls through the libc"
	case RawUnmap, RawDiscard:
		return "hooks do not see it; userfaultfd: " + monitors.uffd.Why
	case LibcFree, LibcBrk:
		return "calls inside the libc use no symbol; patch: " + monitors.patch.Why + "; userfaultfd: " + monitors.uffd.Why
	}
	return f.why[c] + "; symbols: " + monitors.symbols.Why + "; reloc: " + monitors.reloc.Why
}
