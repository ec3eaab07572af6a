package regcache

import (
	"slices"
	"sort"
)

// index finds entries by address. Entries may overlap. It belongs to the cache's lock.
type index struct {
	items []item // by lo
}

type item struct {
	lo, hi uintptr
	reach  uintptr // the highest hi up to here
	e      *entry
}

// above is the number of items that begin below or at addr.
func (x *index) above(addr uintptr) int {
	return sort.Search(len(x.items), func(i int) bool { return x.items[i].lo > addr })
}

func (x *index) insert(e *entry) {
	at := x.above(e.lo)
	x.items = slices.Insert(x.items, at, item{lo: e.lo, hi: e.hi, e: e})
	reach := e.hi
	if at > 0 {
		reach = max(reach, x.items[at-1].reach)
	}
	x.items[at].reach = reach
	for i := at + 1; i < len(x.items) && x.items[i].reach < reach; i++ {
		x.items[i].reach = reach
	}
}

// prune removes the entries that are no longer to be found.
func (x *index) prune() {
	x.items = slices.DeleteFunc(x.items, func(i item) bool { return i.e.gone })
	reach := uintptr(0)
	for i := range x.items {
		reach = max(reach, x.items[i].hi)
		x.items[i].reach = reach
	}
}

// acquire returns an entry that serves the range, with a reference.
func (x *index) acquire(lo uintptr, n uint64, want ability) *entry {
	for i := x.above(lo) - 1; i >= 0 && x.items[i].reach > lo; i-- {
		if e := x.items[i].e; e.serves(lo, n, want) && e.ref.Acquire() {
			return e
		}
	}
	return nil
}

// overlapping calls f for each entry that has a byte of [lo, hi).
func (x *index) overlapping(lo, hi uintptr, f func(*entry)) {
	for i := x.above(hi-1) - 1; i >= 0 && x.items[i].reach > lo; i-- {
		if x.items[i].hi > lo {
			f(x.items[i].e)
		}
	}
}
