package metrics

import "github.com/ibconduit/conduit"

// heaps are the figures of the shared heaps of a job that has some.
func heaps(s conduit.HeapStats, rank int, add func(Figure)) {
	gauge := func(name, help string, v uint64) {
		add(Figure{Name: name, Help: help, Kind: Gauge, Value: float64(v)})
	}
	count := func(name, help string, v uint64) {
		add(Figure{Name: name, Help: help, Kind: Counter, Value: float64(v)})
	}
	gauge("heap_bytes", "What each rank gives to the shared heaps.", s.Size)
	gauge("heap_local_bytes", "Length of this rank's local heap.", s.Local.Len)
	gauge("heap_local_in_use_bytes", "Of it, in use by blocks.", s.Local.InUse)
	gauge("heap_local_largest_free_bytes", "The largest block that it has without growing.", s.Local.LargestFree)
	gauge("heap_local_limit_bytes", "To which length it may grow without a message.", s.Limit)
	gauge("heap_local_blocks", "Blocks of this rank's local heap that are in use.", s.Local.Blocks)
	gauge("heap_meta_bytes", "Memory for the bookkeeping of the local heap and, at rank 0, of the global heap.",
		s.Local.Meta+s.Global.Meta)
	count("heap_allocs_total", "Blocks that this rank took of its local heap.", s.Allocs)
	count("heap_frees_total", "Blocks that this rank freed, wherever they are.", s.Frees)
	count("heap_global_requests_total", "Requests of this rank for memory of the global heap.", s.Globals)
	count("heap_growth_requests_total", "Calls of this rank to rank 0 for a longer local heap.", s.Asked)
	count("heap_growth_stale_total", "Of their replies, those that a reclaim had overtaken.", s.Stale)
	count("heap_remote_frees_total", "Blocks of this rank that others asked to free.", s.RemoteFrees)
	count("heap_bad_frees_total", "Pointers to this rank's heap that could not be freed.", s.BadFrees)
	if rank > 0 {
		return
	}
	gauge("heap_global_bytes", "Length of the global heap, at each rank.", s.Global.Len)
	gauge("heap_global_in_use_bytes", "Of it, in use by blocks, at each rank.", s.Global.InUse)
	gauge("heap_global_largest_free_bytes", "The largest block that it has without growing, at each rank.",
		s.Global.LargestFree)
	gauge("heap_global_blocks", "Blocks of the global heap that are in use.", s.Global.Blocks)
	gauge("heap_reserved_bytes", "What is reserved for local heaps at each rank.", s.Reserved)
	gauge("heap_reserved_by_rank", "The rank whose local heap needed so much.", uint64(s.ReservedBy))
	count("heap_grants_total", "Times that rank 0 let local heaps grow.", s.Grants)
	count("heap_reclaims_total", "Times that rank 0 asked all ranks for what their local heaps do not use.", s.Reclaims)
}
