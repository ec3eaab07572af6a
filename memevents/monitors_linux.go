//go:build linux && cgo && (amd64 || arm64)

package memevents

/*
#include "ibc_mem.h"
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"
)

// monitorSet are the ways of hearing of events, in the order in which they are tried.
type monitorSet struct {
	off                         string // why nothing is watched; empty: it is
	symbols, reloc, patch, uffd Monitor
}

var monitors monitorSet

func (s *monitorSet) list() []Monitor { return []Monitor{s.symbols, s.reloc, s.patch, s.uffd} }

// hooks names the monitor that stands behind a hook that was seen.
func (s *monitorSet) hooks(c Class) string {
	switch {
	case (c == LibcFree || c == LibcBrk || !s.symbols.Active && !s.reloc.Active) && s.patch.Active:
		return s.patch.Name
	case s.reloc.Active && !s.symbols.Active:
		return s.reloc.Name
	}
	return s.symbols.Name
}

// startMonitors switches on the configured monitors that the system allows. Once on they
// stay on.
func startMonitors() {
	m := table()
	const unwanted = "not chosen (" + EnvMonitors + ")"
	monitors = monitorSet{
		symbols: Monitor{Name: MonitorSymbols, Why: unwanted},
		reloc:   Monitor{Name: MonitorReloc, Why: unwanted},
		patch:   Monitor{Name: MonitorPatch},
		uffd:    Monitor{Name: MonitorUserfaultfd, Why: unwanted},
	}
	c, err := takeConfig()
	switch {
	case err != nil:
		monitors.off = err.Error()
	case c.Off:
		monitors.off = "switched off (" + EnvEvents + "=no)"
	}
	monitors.startPatch()
	if monitors.off != "" {
		return
	}
	monitors.startHooks(m, c)
	if c.wants(MonitorUserfaultfd) {
		monitors.startUffd(m)
	}
}

// startHooks finds out whether a library loaded now would call our munmap. If not, and it is
// wanted, the relocations are changed.
func (s *monitorSet) startHooks(m *C.struct_ibc_mem, c Config) {
	if C.ibc_mem_adopted() != 0 {
		s.symbols = Monitor{Name: MonitorPreload, Why: s.symbols.Why}
	}
	leads := symbolsLeadHere(m)
	switch {
	case leads && C.ibc_mem_adopted() != 0:
		s.symbols.Active, s.symbols.Why = true, "libmemevents.so; the hooks of this image pass on to it"
	case leads && s.patch.Active && !c.wants(MonitorSymbols):
		return
	case leads && c.wants(MonitorSymbols):
		s.symbols.Active, s.symbols.Why = true, "defined in this executable"
	case leads:
		u32(&m.standby).Store(1)
	case staticExecutable():
		s.symbols.Why = "the executable is linked statically: there is no loader whose symbols could be tested"
	default:
		s.symbols.Why = "other definitions of munmap come before those of this image"
	}
	if s.symbols.Active {
		s.reloc.Why = "not needed: symbols lead here"
		return
	}
	if c.wants(MonitorReloc) {
		s.startReloc(m)
	}
}

func (s *monitorSet) startReloc(m *C.struct_ibc_mem) {
	u32(&m.standby).Store(0)
	var slots C.uint32_t
	if err := C.ibc_mem_reloc_start(&slots); err != 0 {
		s.reloc.Why = fmt.Sprintf("relocations could not be changed: %v", syscall.Errno(err))
		return
	}
	s.reloc.Active, s.reloc.Why = true, fmt.Sprintf("%d relocations changed", slots)
}

func (s *monitorSet) startPatch() {
	var why *C.char
	switch err := C.ibc_mem_patch_state(&why); {
	case err == 0:
		s.patch.Active, s.patch.Why = true, C.GoString(why)
	case err > 0:
		s.patch.Why = fmt.Sprintf("%s: %v", C.GoString(why), syscall.Errno(err))
	default:
		s.patch.Why = C.GoString(why)
	}
}

func (s *monitorSet) startUffd(m *C.struct_ibc_mem) {
	var step *C.char
	if err := C.ibc_mem_uffd_start(m, &step); err != 0 {
		s.uffd.Why = fmt.Sprintf("%s: %v (%s)", C.GoString(step), syscall.Errno(err), uffdRemedy(syscall.Errno(err)))
		return
	}
	s.uffd.Active, s.uffd.Why = true, "the kernel reports all but guards and System V segments"
}

func uffdRemedy(err syscall.Errno) string {
	switch err {
	case syscall.EMFILE, syscall.ENFILE:
		return "raise the limit of open files (ulimit -n)"
	case syscall.ENOSYS:
		return "the kernel is built without userfaultfd, or a filter hides it"
	case syscall.EINVAL: // of UFFDIO_API; CONFIG_HAVE_ARCH_USERFAULTFD_WP
		return "the kernel's has no write-protect mode, which needs Linux 5.7 or later on amd64, 6.10 or later on arm64"
	}
	return "grant CAP_SYS_PTRACE or access to /dev/userfaultfd"
}

func staticExecutable() bool {
	name := C.CString("munmap")
	defer C.free(unsafe.Pointer(name))
	return C.ibc_mem_symbol(name) == nil
}

func symbolsLeadHere(m *C.struct_ibc_mem) bool {
	ok, _ := try(m, trial{what: C.IBC_MEM_TRY_MUNMAP})
	return ok
}
