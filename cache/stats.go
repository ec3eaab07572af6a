package cache

import (
	"runtime"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/counter"
)

// Stats count from New on. They lie outside of the Go heap (internal/offheap): the cache's user
// increments them, any goroutine may read them by Stats.
type Stats struct {
	Gets       uint64 // calls; = GetHits + GetMisses + GetsDirect
	GetHits    uint64 // without an operation of the network
	GetMisses  uint64 // that fetched, or waited for a fetch
	GetsDirect uint64 // that passed the cache by, also those that failed
	Puts       uint64 // calls; = PutHits + PutMisses + PutsDirect
	PutHits    uint64 // into pages that the cache had
	PutMisses  uint64
	PutsDirect uint64 // that passed the cache by, also those that failed

	BytesFetched uint64 // by gets of the network into slots
	BytesUsed    uint64 // of these, in lines that were asked for
	BytesWritten uint64 // by puts of the network from pages
	Runs         uint64 // of dirty bytes that were written: puts of the network

	Prefetched       uint64 // lines fetched ahead; = PrefetchUsed + PrefetchUnused + PrefetchResident
	PrefetchUsed     uint64 // lines that were asked for
	PrefetchLate     uint64 // of these, lines that were asked for before they were there
	PrefetchUnused   uint64 // lines that were dropped before they were asked for
	PrefetchResident uint64 // lines in flight, or not asked for yet

	Unsent uint64 // pages with writes that are not at their target: a gauge

	Evictions      uint64 // pages that made place for others
	Flights        uint64 // gets of the network
	FlightsDropped uint64 // whose data became old underway
	FlushRelease   uint64 // pages written because of a release
	FlushEviction  uint64 // because of an eviction
	FlushPressure  uint64 // because many pages were dirty
	FlushDirect    uint64 // because of an operation that passes the cache by
	Lost           uint64 // pages whose writes failed
	Acquires       uint64
	Releases       uint64
}

// Add returns the sum, counter by counter.
func (s Stats) Add(o Stats) Stats { return counter.Add(s, o) }

// Unsent is how many pages have writes that are not at their target. It may be called from any
// goroutine.
func (c *Cache) Unsent() uint64 {
	defer runtime.KeepAlive(c)
	return atomic.LoadUint64(&c.pages.n.Unsent)
}

// Stats may be called from any goroutine; the set is no snapshot while the cache is in use.
func (c *Cache) Stats() Stats {
	s := counter.Load(c.pages.n)
	runtime.KeepAlive(c)
	s.Gets = s.GetHits + s.GetMisses + s.GetsDirect
	s.Puts = s.PutHits + s.PutMisses + s.PutsDirect
	return s
}
