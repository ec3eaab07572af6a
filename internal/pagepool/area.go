package pagepool

import (
	"fmt"
	"math/bits"
	"slices"
	"unsafe"
)

// area is memory in one piece, under its pool's lock. Its free pages are extents, in order and
// never side by side.
type area struct {
	mem    []byte
	pinned bool // never given back; all pages have memory
	shared bool // of a file
	free   []extent
	has    []uint64 // a bit a page: it has memory
	used   uint64   // pages of runs
	hot    uint64   // free pages that have memory
}

// extent is pages in a row.
type extent struct{ first, n uint64 }

// newSlab maps a slab of at least n bytes.
func newSlab(n uint64) (*area, error) {
	mem, err := mapMemory(int(Round(n)))
	if err != nil {
		return nil, err
	}
	a := &area{mem: mem}
	a.init()
	return a, nil
}

func (a *area) init() {
	n := uint64(len(a.mem)) / Size
	a.has = make([]uint64, (n+63)/64)
	if n > 0 {
		a.free = []extent{{0, n}}
	}
	if a.pinned {
		a.touch(0, n)
		a.hot = n
	}
}

// fit finds n free pages in a row, the first that there are: so pages with memory are used again.
func (a *area) fit(n uint64) (first uint64, ok bool) {
	for _, e := range a.free {
		if e.n >= n {
			return e.first, true
		}
	}
	return 0, false
}

// cut takes the first pages of an extent that fit found.
func (a *area) cut(first, n uint64) {
	i := a.at(first)
	if e := &a.free[i]; e.n == n {
		a.free = slices.Delete(a.free, i, i+1)
	} else {
		e.first, e.n = e.first+n, e.n-n
	}
	a.used += n
}

// paste makes pages free again.
func (a *area) paste(first, n uint64) {
	i := a.at(first)
	if i < len(a.free) && a.free[i].first < first+n || i > 0 && a.free[i-1].first+a.free[i-1].n > first {
		panic("pagepool: a run is given back twice")
	}
	a.free = slices.Insert(a.free, i, extent{first, n})
	if i+1 < len(a.free) && a.free[i+1].first == first+n {
		a.free[i].n += a.free[i+1].n
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].first+a.free[i-1].n == first {
		a.free[i-1].n += a.free[i].n
		a.free = slices.Delete(a.free, i, i+1)
	}
	a.used -= n
}

// at is the place of the first extent that begins at a page or behind it.
func (a *area) at(first uint64) int {
	i, _ := slices.BinarySearchFunc(a.free, first, func(e extent, p uint64) int {
		switch {
		case e.first < p:
			return -1
		case e.first > p:
			return 1
		}
		return 0
	})
	return i
}

// touch gives pages memory, of which so many had some.
func (a *area) touch(first, n uint64) (had uint64) {
	a.words(first, n, func(w *uint64, mask uint64) {
		had += uint64(bits.OnesCount64(*w & mask))
		*w |= mask
	})
	a.hot -= min(had, a.hot)
	return had
}

// words calls f for each word of a run's bits.
func (a *area) words(first, n uint64, f func(w *uint64, mask uint64)) {
	for end := first + n; first < end; {
		k := min(64-first%64, end-first)
		mask := (^uint64(0) >> (64 - k)) << (first % 64)
		f(&a.has[first/64], mask)
		first += k
	}
}

// discard gives back the memory of free extents, the last first, until n bytes are.
func (a *area) discard(n uint64) (back uint64) {
	if a.pinned {
		return 0
	}
	for i := len(a.free) - 1; i >= 0 && back < n && a.hot > 0; i-- {
		e := a.free[i]
		var had uint64
		a.words(e.first, e.n, func(w *uint64, mask uint64) { had += uint64(bits.OnesCount64(*w & mask)) })
		if had == 0 || discard(a.mem[e.first*Size:][:e.n*Size], a.shared) != nil {
			continue // it stays warm, and is tried again
		}
		a.words(e.first, e.n, func(w *uint64, mask uint64) { *w &^= mask })
		a.hot -= had
		back += had * Size
	}
	return back
}

// contains finds the page at which a run begins.
func (a *area) contains(b []byte) (first uint64, ok bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a.mem)))
	return uint64(at) / Size, uint64(at) < uint64(len(a.mem))
}

func (a *area) verify() error {
	var free, hot, end uint64
	for i, e := range a.free {
		if e.n == 0 || i > 0 && e.first <= end {
			return fmt.Errorf("pagepool: extent %d of %d pages at %d, behind one that ends at %d", i, e.n, e.first, end)
		}
		end = e.first + e.n
		free += e.n
		a.words(e.first, e.n, func(w *uint64, mask uint64) { hot += uint64(bits.OnesCount64(*w & mask)) })
	}
	if n := uint64(len(a.mem)) / Size; end > n || free+a.used != n || hot != a.hot {
		return fmt.Errorf("pagepool: %d pages, %d free and %d in use; %d free ones have memory, counted are %d",
			n, free, a.used, hot, a.hot)
	}
	return nil
}
