package regcache

import (
	"slices"
	"sort"
)

// index finds entries by address. Entries may overlap. It belongs to the cache's lock.
type index struct {
	items   []item // by lo
	dropped []*entry
}

type item struct {
	lo, hi uintptr
	maxHi  uintptr // the highest hi up to here
	e      *entry
}

// above is the number of items that begin below or at addr.
func (x *index) above(addr uintptr) int {
	return sort.Search(len(x.items), func(i int) bool { return x.items[i].lo > addr })
}

func (x *index) insert(e *entry) {
	at := x.above(e.lo)
	x.items = slices.Insert(x.items, at, item{lo: e.lo, hi: e.hi, e: e})
	maxHi := e.hi
	if at > 0 {
		maxHi = max(maxHi, x.items[at-1].maxHi)
	}
	x.items[at].maxHi = maxHi
	for i := at + 1; i < len(x.items) && x.items[i].maxHi < maxHi; i++ {
		x.items[i].maxHi = maxHi
	}
}

// drop notes an entry that is no longer to be found. It is in the way until prune.
func (x *index) drop(e *entry) { x.dropped = append(x.dropped, e) }

// fewDropped is how many removals cost less than looking at every item.
const fewDropped = 8

// prune removes dropped entries.
func (x *index) prune() {
	if len(x.dropped) > fewDropped {
		x.items = slices.DeleteFunc(x.items, func(i item) bool { return i.e.gone })
		for i := range x.items {
			x.items[i].maxHi = 0
		}
		x.mend(0)
	} else {
		for _, e := range x.dropped {
			x.remove(e)
		}
	}
	clear(x.dropped)
	x.dropped = x.dropped[:0]
}

func (x *index) remove(e *entry) {
	at := x.above(e.lo) - 1
	for x.items[at].e != e {
		at--
	}
	x.items = slices.Delete(x.items, at, at+1)
	x.mend(at)
}

// mend sets maxHi right from at on, as far as it is wrong.
func (x *index) mend(at int) {
	maxHi := uintptr(0)
	if at > 0 {
		maxHi = x.items[at-1].maxHi
	}
	for ; at < len(x.items); at++ {
		maxHi = max(maxHi, x.items[at].hi)
		if x.items[at].maxHi == maxHi {
			return
		}
		x.items[at].maxHi = maxHi
	}
}

// acquire returns an entry that serves the range, with a reference.
func (x *index) acquire(lo uintptr, n uint64, want ability, reported bool) *entry {
	for i := x.above(lo) - 1; i >= 0 && x.items[i].maxHi > lo; i-- {
		if e := x.items[i].e; e.serves(lo, n, want) && (reported || !mustAsk(e.need)) && e.ref.Acquire() {
			return e
		}
	}
	return nil
}

// overlapping calls f for each entry that has a byte of [lo, hi).
func (x *index) overlapping(lo, hi uintptr, f func(*entry)) {
	for i := x.above(hi-1) - 1; i >= 0 && x.items[i].maxHi > lo; i-- {
		if x.items[i].hi > lo {
			f(x.items[i].e)
		}
	}
}
