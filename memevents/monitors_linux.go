//go:build linux && cgo && (amd64 || arm64)

package memevents

// #include "ibc_mem.h"
import "C"

import (
	"fmt"
	"syscall"
)

// monitorSet are the ways of hearing of events, in the order in which they are tried.
type monitorSet struct {
	enabled                     bool
	symbols, reloc, patch, uffd Monitor
}

var monitors monitorSet

func (s *monitorSet) list() []Monitor { return []Monitor{s.symbols, s.reloc, s.patch, s.uffd} }

// hooks names the monitor that stands behind a hook that was seen.
func (s *monitorSet) hooks(c Class) string {
	switch {
	case (c == LibcFree || c == LibcBrk) && s.patch.Active:
		return s.patch.Name
	case s.reloc.Active && !s.symbols.Active:
		return s.reloc.Name
	}
	return s.symbols.Name
}

func (s *monitorSet) whyNot(watcher C.int) string {
	switch {
	case !s.enabled:
		return "switched off by IBCONDUIT_MEM_EVENTS"
	case watcher < 0:
		return "all watchers are in use"
	}
	return "this process is the child of a fork"
}

// startMonitors switches on what the configuration asks for and the system allows.
func startMonitors() {
	m := table()
	monitors = monitorSet{
		enabled: true,
		symbols: Monitor{Name: "symbols", Active: true, Why: "defined in this executable"},
		reloc:   Monitor{Name: "reloc", Why: "not needed"},
		patch:   Monitor{Name: "patch", Why: "not asked for"},
		uffd:    Monitor{Name: "userfaultfd"},
	}
	if C.ibc_mem_adopted() != 0 {
		monitors.symbols = Monitor{Name: "preload", Active: true, Why: "libmemevents.so; the executable's own hooks pass on to it"}
	}
	var step *C.char
	if err := C.ibc_mem_uffd_start(m, &step); err != 0 {
		monitors.uffd.Why = fmt.Sprintf("%s: %v", C.GoString(step), syscall.Errno(err))
	} else {
		monitors.uffd.Active, monitors.uffd.Why = true, "the kernel tells of all but guards and System V segments"
	}
}
