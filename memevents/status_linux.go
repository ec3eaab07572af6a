//go:build linux && cgo && (amd64 || arm64)

package memevents

// #include "ibc_mem.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
)

// tested is what the last self-test found. Claim reads the two sets on every call.
var tested struct {
	mu                    sync.Mutex
	report                *Report
	everywhere, somewhere atomic.Uint32
}

// Status returns what the self-test found at the first call, or at the last Retest.
func Status() Report {
	tested.mu.Lock()
	defer tested.mu.Unlock()
	if tested.report == nil {
		startMonitors()
		selfTest()
	}
	return *tested.report
}

// Retest tests again. Somebody may have overwritten the hooks since; what is no longer seen is no longer
// covered, and Claim refuses accordingly from then on.
func Retest() Report {
	Status()
	tested.mu.Lock()
	defer tested.mu.Unlock()
	selfTest()
	return *tested.report
}

// covered are the classes seen for any range, and those seen for ranges given to userfaultfd.
func covered() (everywhere, somewhere Classes) {
	return Classes(tested.everywhere.Load()), Classes(tested.somewhere.Load())
}

// trials are the calls that stand for the classes: through a symbol of the libc, and straight to the kernel.
var trials = []struct {
	what   C.enum_ibc_mem_try
	called Class // through the symbol
	raw    Class // numClasses: no class of its own
}{
	{C.IBC_MEM_TRY_MUNMAP, Munmap, RawUnmap},
	{C.IBC_MEM_TRY_MMAP, MmapFixed, RawUnmap},
	{C.IBC_MEM_TRY_MREMAP, Mremap, RawUnmap},
	{C.IBC_MEM_TRY_MADVISE, Madvise, RawDiscard},
	{C.IBC_MEM_TRY_BRK, Brk, numClasses},
	{C.IBC_MEM_TRY_SHM, Shm, RawShm},
	{C.IBC_MEM_TRY_REMAP, RemapFile, numClasses},
	{C.IBC_MEM_TRY_GUARD, Guard, RawGuard},
	{C.IBC_MEM_TRY_FREE, LibcFree, numClasses},
	{C.IBC_MEM_TRY_LIBC_BRK, LibcBrk, numClasses},
}

// selfTest makes the calls. Raw ones that several trials share are covered if all of them were.
func selfTest() {
	m := table()
	r := &Report{Monitors: monitors.list(), Classes: make([]Coverage, numClasses)}
	for c := range r.Classes {
		r.Classes[c] = Coverage{Class: Class(c)}
	}
	id := C.ibc_mem_watcher_open(m, ^C.uint64_t(0))
	if id < 0 || u32(&m.forked).Load() != 0 || !monitors.enabled {
		for c := range r.Classes {
			r.Classes[c].Why = monitors.whyNot(id)
		}
	} else {
		missed := runTrials(m, C.uint32_t(id), r)
		explain(r, missed)
	}
	if id >= 0 {
		C.ibc_mem_watcher_close(m, C.uint32_t(id))
	}
	tested.report = r
	everywhere, somewhere := r.Covered()
	tested.everywhere.Store(uint32(everywhere))
	tested.somewhere.Store(uint32(somewhere))
}

func runTrials(m *C.struct_ibc_mem, id C.uint32_t, r *Report) (missed Classes) {
	var hooked, watched, rawMissed Classes
	errs := map[Class]syscall.Errno{}
	for _, t := range trials {
		ok, err := try(m, id, t.what, false, false)
		if ok {
			hooked |= Set(t.called)
		} else {
			errs[t.called] = err
		}
		if !monitors.uffd.Active {
			continue
		}
		if !ok && t.called != Brk && t.called != LibcBrk {
			if ok, _ = try(m, id, t.what, false, true); ok {
				watched |= Set(t.called)
			}
		}
		if t.raw == numClasses {
			continue
		}
		if ok, _ = try(m, id, t.what, true, true); ok {
			watched |= Set(t.raw)
		} else {
			rawMissed |= Set(t.raw)
		}
	}
	watched &^= rawMissed
	// The break goes down like any unmapping in the kernel's eyes (mm/mmap.c, sys_brk).
	if watched.Has(Set(RawUnmap)) {
		watched |= Set(Brk, LibcBrk) &^ hooked
	}
	for c := range numClasses {
		switch {
		case hooked.Has(Set(c)):
			r.Classes[c].By = monitors.hooks(c)
		case watched.Has(Set(c)):
			r.Classes[c].By, r.Classes[c].Limited = monitors.uffd.Name, true
		default:
			missed |= Set(c)
			if err := errs[c]; err != 0 {
				r.Classes[c].Why = fmt.Sprintf("the test's call failed: %v", err)
			}
		}
	}
	return missed
}

func try(m *C.struct_ibc_mem, id C.uint32_t, what C.enum_ibc_mem_try, raw, uffd bool) (bool, syscall.Errno) {
	var err C.int
	ok := C.ibc_mem_try(m, id, C.uint32_t(what), cbool(raw), cbool(uffd), &err)
	return ok != 0, syscall.Errno(err)
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// explain says for each class that nobody saw why that is.
func explain(r *Report, missed Classes) {
	for c := range numClasses {
		w := &r.Classes[c].Why
		if !missed.Has(Set(c)) || *w != "" {
			continue
		}
		switch c {
		case Truncate:
			*w = "nothing tells of it: do not shrink or punch files whose mappings are registered"
		case RawShm, RawGuard:
			*w = "the kernel tells nobody of it; hooks see only calls through the libc"
		case RawUnmap, RawDiscard:
			*w = "hooks do not see it; userfaultfd: " + monitors.uffd.Why
		case LibcFree, LibcBrk:
			*w = "calls inside the libc use no symbol; patch: " + monitors.patch.Why + "; userfaultfd: " + monitors.uffd.Why
		default:
			*w = "calls of other libraries do not come by: " + monitors.symbols.Why
		}
	}
}
