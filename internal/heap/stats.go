package heap

import (
	"fmt"
	"io"

	"github.com/ibconduit/conduit/internal/alloc"
)

// Stats are the heap's figures at one rank. Sizes are in bytes.
type Stats struct {
	Size  uint64      // that each rank gives
	Local alloc.Stats // of this rank's heap
	Limit uint64      // to which it may grow without a message
	Epoch uint64      // of the last reclaim that this rank answered

	Allocs, Frees uint64 // by this rank, but for global allocations
	Globals       uint64 // requests for memory of the global heap
	Asked         uint64 // requests for growth: each is a call to rank 0
	Stale         uint64 // replies to them that a reclaim had overtaken
	RemoteFrees   uint64 // for other ranks
	BadFrees      uint64 // of what is no block, here

	// Of rank 0, which knows them.
	Global     alloc.Stats
	Reserved   uint64 // for local heaps, at each rank
	ReservedBy int    // the rank that needed so much
	Grants     uint64
	Reclaims   uint64
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
