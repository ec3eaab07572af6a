package memevents

// Stats are counters of this process since its start. They are read one after the other.
type Stats struct {
	Entries           int    `metric:"memory_ranges_watched Ranges of the process's memory that are watched."`
	Invalidated       uint64 `metric:"memory_ranges_invalidated_total Watched ranges that a change made invalid."`
	InvalidatedInUse  uint64 // of these, entries that had references: operations were in flight
	InvalidatedEarly  uint64 // of these, entries whose registration was not finished
	ClaimsRefused     uint64 `metric:"memory_claims_refused_total Claims that met a change in progress."` // ErrChanging
	Unmaps            uint64 `metric:"memory_events_total{event=unmap} Changes of the process's memory that were seen."`
	Maps              uint64 `metric:"memory_events_total{event=map}"`
	KernelEvents      uint64 `metric:"memory_events_total{event=kernel}"` // of userfaultfd
	ProtectedRefusals uint64 // calls refused for the sake of a protected range
	TableScans        uint64 // invalidations that looked at every slot
	WindowOverflows   uint64 // changes that closed the whole address space to claims
}
