//go:build linux && cgo && (amd64 || arm64)

package memevents

// #include "ibc_mem.h"
import "C"

// ReadStats reads the counters.
func ReadStats() Stats {
	m := table()
	s := &m.stats
	read := func(p *C.uint64_t) uint64 { return u64(p).Load() }
	return Stats{
		Entries:           int(u32(&m.live).Load()),
		Invalidated:       read(&s.invalidated),
		InvalidatedInUse:  read(&s.invalidated_in_use),
		InvalidatedEarly:  read(&s.invalidated_pending),
		ClaimsRefused:     read(&s.refused),
		Unmaps:            read(&s.calls[C.IBC_MEM_VM_UNMAPPED]),
		Maps:              read(&s.calls[C.IBC_MEM_VM_MAPPED]),
		KernelEvents:      read(&s.uffd_unmap) + read(&s.uffd_remove) + read(&s.uffd_remap),
		ProtectedRefusals: read(&s.spared),
		TableScans:        read(&s.scans),
		WindowOverflows:   read(&s.overflows),
	}
}
