package memevents

// Stats are counters of this process since its start. They are read one after the other.
type Stats struct {
	Entries           int    // claimed and not retired
	Invalidated       uint64 // entries that a change made stale
	InvalidatedInUse  uint64 // of these, entries that had references: operations were in flight
	InvalidatedEarly  uint64 // of these, entries whose registration was not finished
	ClaimsRefused     uint64 // claims that met a change in progress (ErrChanging)
	Unmaps, Maps      uint64 // ranges that hooks saw go and come
	KernelEvents      uint64 // of userfaultfd
	ProtectedRefusals uint64 // calls refused for the sake of a protected range
	TableScans        uint64 // invalidations that looked at every slot
	WindowOverflows   uint64 // changes that closed the whole address space to claims
}
