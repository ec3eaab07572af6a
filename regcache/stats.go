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
//
// Entries are evicted for others, for limits or at Clear. Put counts those invalidated in use.
type Stats struct {
	Gets     uint64 // that returned a Region
	Hits     uint64 `metric:"registration_lookups_total{result=hit} Uses of registrations of the program's memory."`
	Misses   uint64 `metric:"registration_lookups_total{result=miss}"`     // with one made and kept
	Uncached uint64 `metric:"registration_lookups_total{result=uncached}"` // with one for this operation only
	Puts     uint64

	Registered     uint64 `metric:"registrations_made_total Registrations made."`
	Deregistered   uint64 `metric:"registrations_ended_total Registrations ended."`
	RegisterErrors uint64 `metric:"registration_errors_total Registrations that failed."`
	Live           int    `metric:"registrations{state=live} Registrations: usable, and dead ones not closed yet."`
	Dead           int    `metric:"registrations{state=dead}"` // invalidated or evicted
	Bytes          int64  `metric:"registered_bytes Memory that registrations pin, the dead ones included."`
	DeadBytes      int64  `metric:"registered_dead_bytes Of it, memory of dead registrations."`

	Invalidated      uint64 `metric:"registrations_dropped_total{reason=invalidated} Kept ones that ended, by cause."`
	InvalidatedInUse uint64 `metric:"registrations_invalidated_in_use_total Of those invalidated, those in use then."`
	Evicted          uint64 `metric:"registrations_dropped_total{reason=evicted}"`
	Merged           uint64 `metric:"registrations_merged_total Of the evicted ones, those that a larger one replaced."`
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
