package heap

import (
	"fmt"
	"io"

	"github.com/ibconduit/conduit/internal/alloc"
)

// Stats are the heap's figures at one rank. Sizes are in bytes.
type Stats struct {
	Size  uint64      `metric:"bytes What each rank gives to the shared heaps."`
	Local alloc.Stats `metric:"local_ This rank's local heap: "`
	Limit uint64      `metric:"local_limit_bytes To which length it may grow without a message."`
	Epoch uint64      // of the last reclaim that this rank answered

	Allocs      uint64 `metric:"allocs_total Blocks that this rank took of its local heap."`
	Frees       uint64 `metric:"frees_total Blocks that this rank freed, wherever they are."` // but global ones
	Globals     uint64 `metric:"global_requests_total Requests of this rank for memory of the global heap."`
	Asked       uint64 `metric:"growth_requests_total Calls of this rank to rank 0 for a longer local heap."`
	Stale       uint64 `metric:"growth_stale_total Of their replies, those that a reclaim had overtaken."`
	RemoteFrees uint64 `metric:"remote_frees_total Blocks of this rank that were freed for other ranks."`
	BadFrees    uint64 `metric:"bad_frees_total Pointers to this rank's heap that could not be freed."`

	// Of rank 0, which knows them.
	Global     alloc.Stats `metric:"global_ The global heap at each rank: " at:"rank 0"`
	Reserved   uint64      `metric:"reserved_bytes What is reserved for local heaps at each rank." at:"rank 0"`
	ReservedBy int         `metric:"reserved_by_rank The rank whose local heap needed so much." at:"rank 0"`
	Grants     uint64      `metric:"grants_total Times that rank 0 let local heaps grow." at:"rank 0"`
	Reclaims   uint64      `metric:"reclaims_total Reclaims of what local heaps do not use." at:"rank 0"`

	Meta uint64 `metric:"meta_bytes Memory for the bookkeeping of the heaps that this rank has."`
}

// Stats may take long.
func (h *Heap) Stats() Stats {
	s := Stats{Size: h.size,
		Globals: h.count.globals.Load(), Asked: h.count.asked.Load(),
		Stale: h.count.stale.Load(), RemoteFrees: h.count.remoteFrees.Load(), BadFrees: h.count.badFrees.Load()}
	if h.root != nil {
		h.root.gmu.Lock()
		s.Global = h.root.global.Stats()
		h.root.gmu.Unlock()
	}
	h.mu.Lock()
	s.Local, s.Limit, s.Epoch = h.local.Stats(), h.limit, h.epoch
	s.Allocs, s.Frees = h.allocs, h.frees+h.count.freesElsewhere.Load()
	h.mu.Unlock()
	if h.root != nil {
		b := &h.root.bound
		b.mu.Lock()
		s.Reserved, s.ReservedBy, s.Grants, s.Reclaims = b.local, b.by, b.grants, b.reclaims
		b.mu.Unlock()
	}
	s.Meta = s.Local.Meta + s.Global.Meta
	return s
}

// Dump writes a map of this rank's heap for a person to read.
func (h *Heap) Dump(w io.Writer) error {
	s := h.Stats()
	_, err := fmt.Fprintf(w,
		"shared heap of rank %d: %d bytes\n  local  %#12x..%#x  %d blocks, %d bytes in use, largest free %d, "+
			"limit %#x, epoch %d\n",
		h.rank, s.Size, 0, s.Local.Len, s.Local.Blocks, s.Local.InUse, s.Local.LargestFree, s.Limit, s.Epoch)
	if err == nil && h.root != nil {
		_, err = fmt.Fprintf(w,
			"  limit  %#12x  by rank %d, %d grants, %d reclaims\n  global %#12x..%#x  %d blocks, "+
				"%d bytes in use, largest free %d\n",
			s.Reserved, s.ReservedBy, s.Grants, s.Reclaims, s.Size-s.Global.Len, s.Size, s.Global.Blocks, s.Global.InUse,
			s.Global.LargestFree)
	}
	return err
}
