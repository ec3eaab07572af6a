package regcache

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/memevents"
)

// Region is a range that is registered until it is given to Put.
type Region struct {
	LKey uint32 // for scatter entries of this host
	RKey uint32 // for peers

	e *entry
	p unsafe.Pointer // keeps the object reachable
}

// entry is one registration. Its fields are set before it can be found, except those that say
// otherwise.
type entry struct {
	ref        memevents.Ref // zero: for one operation
	lo, hi     uintptr
	can        ability
	lkey, rkey uint32
	c          *Cache
	frames     []uint64 // page frames at registration, for Config.Verify; else nil

	stamp atomic.Uint64 // when it was last used
	hits  atomic.Uint64

	// Of the cache's lock.
	mr      MR
	keep    unsafe.Pointer // the object of the Go heap that must outlive mr
	need    memevents.Classes
	tag     uint32
	evicted bool // by the cache, not by a change
	changed bool // counted as invalidated in use
	gone    bool // no longer in the index
	sorted  uint64
	place   int
}

func (e *entry) serves(lo uintptr, n uint64, want ability) bool {
	at := lo - e.lo // huge when lo is below
	return at < e.hi-e.lo && n-1 < uint64(e.hi-e.lo-at) && want&^e.can == 0
}

func (e *entry) region(p unsafe.Pointer) Region {
	return Region{LKey: e.lkey, RKey: e.rkey, e: e, p: p}
}

// puts are the uses that have ended: the first, which registered, and the hits, less those that go
// on.
func (e *entry) puts() uint64 { return e.hits.Load() + 1 - uint64(e.ref.Refs()) }

// hit counts and dates a use.
func (c *holdings) hit(e *entry) {
	e.hits.Add(1)
	if now := c.age.Load() | 1; e.stamp.Load() != now {
		e.stamp.Store(now)
	}
}

// hints find the entry that last served a page, or a larger cell for larger entries. A hint may be
// wrong. Pages have two places each, so that most of DefaultMaxRegions small ranges have one to
// themselves.
type hints struct {
	page [8192][2]atomic.Pointer[entry]
	mid  [512]atomic.Pointer[entry]
	top  [64]atomic.Pointer[entry]
}

const (
	pageShift, midShift, topShift = 12, 21, 30
	golden                        = 0x9E3779B97F4A7C15
)

func (h *hints) atPage(a uintptr) *[2]atomic.Pointer[entry] {
	return &h.page[uint64(a>>pageShift)*golden>>(64-13)]
}
func (h *hints) atMid(a uintptr) *atomic.Pointer[entry] {
	return &h.mid[uint64(a>>midShift)*golden>>(64-9)]
}
func (h *hints) atTop(a uintptr) *atomic.Pointer[entry] {
	return &h.top[uint64(a>>topShift)*golden>>(64-6)]
}

func (h *hints) find(lo uintptr, n uint64, want ability) *entry {
	page := h.atPage(lo)
	if e := page[0].Load(); e != nil && e.serves(lo, n, want) {
		return e
	}
	if e := page[1].Load(); e != nil && e.serves(lo, n, want) {
		return e
	}
	if e := h.atMid(lo).Load(); e != nil && e.serves(lo, n, want) {
		return e
	}
	if e := h.atTop(lo).Load(); e != nil && e.serves(lo, n, want) {
		return e
	}
	return nil
}

func (h *hints) learn(lo uintptr, e *entry) {
	switch size := e.hi - e.lo; {
	case size >= 1<<topShift:
		h.atTop(lo).Store(e)
	case size >= 1<<midShift:
		h.atMid(lo).Store(e)
	default: // the newer of the two that were there stays
		page := h.atPage(lo)
		if old := page[0].Load(); old != e {
			page[1].Store(old)
			page[0].Store(e)
		}
	}
}

// mustAsk: some ways in which memory is unmapped only userfaultfd reports, and when the addresses
// are free already. A caller that has mapped them anew, of whatever origin, queries the kernel
// first, and then the entry: a reference without that is none to the memory there now.
func mustAsk(need memevents.Classes) bool { return need&memevents.Late() != 0 }

// Get returns a registration of n bytes at p that allows at least the given access. Each Region
// goes to Put once, when its operations have completed.
func (c *Cache) Get(p unsafe.Pointer, n uint64, access Access) (Region, error) {
	return c.GetFrom(c.origin, p, n, access)
}

// GetFrom is Get for memory of a given origin.
func (c *Cache) GetFrom(o Origin, p unsafe.Pointer, n uint64, access Access) (Region, error) {
	e := c.hints.find(uintptr(p), n, asked(o, access))
	if e == nil || e.frames != nil || mustAsk(e.need) && !c.w.Reported() || !e.ref.Acquire() {
		return c.miss(request{o: o, p: p, lo: uintptr(p), n: n, access: access})
	}
	c.hit(e)
	return e.region(p), nil
}

// Put gives a Region back. Its operations must have completed.
func (c *Cache) Put(r Region) error {
	e := r.e
	if e == nil || e.c != c {
		panic("regcache: Put of a Region that this cache did not return")
	}
	if !e.ref.Valid() {
		return c.putChanged(r)
	}
	if e.ref.Release() {
		c.reap()
	}
	runtime.KeepAlive(r.p)
	return nil
}
