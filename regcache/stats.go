package regcache

import (
	"errors"
	"sync/atomic"

	"github.com/ibconduit/conduit/memevents"
)

// Stats are the counters of a cache. When no call is in progress:
//
//	Gets = Hits + Misses + Uncached
//	Puts = Gets                              if every Region was given to Put
//	Registered - Deregistered = Live + Dead
type Stats struct {
	Gets     uint64 // that returned a Region
	Hits     uint64 // with a registration that was there
	Misses   uint64 // with one made and kept
	Uncached uint64 // with one for this operation only
	Puts     uint64

	Registered     uint64 // MRs made
	Deregistered   uint64 // MRs closed
	RegisterErrors uint64 // registrations that failed
	Live           int    // MRs that a Get may return, and those for one operation
	Dead           int    // MRs that are invalidated or evicted, and not closed yet
	Bytes          int64  // kept registered by the cache, the dead ones included
	DeadBytes      int64

	Invalidated      uint64 // entries of which memory was taken away
	InvalidatedInUse uint64 // of those, the ones in use then; counted at Put
	Evicted          uint64 // entries that had to go for others, for limits or at Clear
	Merged           uint64 // entries replaced by a larger one
	Retried          uint64 // registrations tried again after eviction

	// Why Gets were uncached, by cause. The rest of Uncached is of origins that are not watched;
	// see Status.
	Changing uint64 // the memory was being changed
	Crowded  uint64 // the limits, or the table of the process, left no room
}

// counters are of the cache's lock, apart from the atomic ones.
type counters struct {
	hits, puts     uint64 // of entries that are no more; those of one operation
	misses         uint64
	changed        uint64
	invalidated    uint64
	inUse, evicted uint64

	uncached, changing, crowded          atomic.Uint64
	registered, deregistered             atomic.Uint64
	registerErrors, retries, merged, bad atomic.Uint64
	deregErr                             atomic.Pointer[error] // the first
}

func (s *counters) single(why error) {
	s.uncached.Add(1)
	switch {
	case errors.Is(why, errChanged), errors.Is(why, memevents.ErrChanging):
		s.changing.Add(1)
	case errors.Is(why, errCrowded), errors.Is(why, memevents.ErrFull):
		s.crowded.Add(1)
	}
}

// Stats reads the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.stats
	s := Stats{
		Hits: t.hits, Puts: t.puts, Misses: t.misses, Uncached: t.uncached.Load(),
		Registered: t.registered.Load(), Deregistered: t.deregistered.Load(), RegisterErrors: t.registerErrors.Load(),
		Bytes: c.bytes, Invalidated: t.invalidated, InvalidatedInUse: t.inUse, Evicted: t.evicted,
		Merged: t.merged.Load(), Retried: t.retries.Load(), Changing: t.changing.Load(), Crowded: t.crowded.Load(),
		Live: int(c.singles.Load()),
	}
	for _, e := range c.slots {
		if e == nil || e.ref.IsZero() {
			continue
		}
		s.Hits += e.hits.Load()
		s.Puts += e.puts()
		if e.ref.Valid() {
			s.Live++
		} else {
			s.Dead++
			s.DeadBytes += int64(e.hi - e.lo)
		}
	}
	s.Gets = s.Hits + s.Misses + s.Uncached
	return s
}
