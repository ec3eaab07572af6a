package alloc

import (
	"math/bits"
	"unsafe"
)

// Segregated is a segregated-fit allocator. A block of up to maxSmall bytes is an object of a span:
// some pages that are cut into objects of one size class. A larger one is a run of pages. Free runs
// are kept by length as in TLSF (Masmano, Ripoll, Crespo, Real 2004): two levels of bins, found by
// bitmaps.
type Segregated struct {
	spans []span
	spare int32    // the first span record that is not used, linked by next
	pages []uint32 // by page: the span that it is the first or last page of, or an object's; maybe stale
	room  [numClasses]int32
	bins  [numBins]int32
	full  [(numBins + 63) / 64]uint64 // which bins hold something

	blocks uint64 // in use
}

// span is a run of pages. Index 0 is none.
type span struct {
	start, pages uint32
	next, prev   int32 // in the list of a bin, or of a class's spans with room
	kind         kind
	class        uint8
	objects      uint16                  // that it is cut into
	taken        uint16                  // of them
	mask         [maxObjects / 64]uint64 // which are taken
}

type kind uint8

const (
	unused kind = iota
	free
	large
	small
)

// Four classes in each doubling: less than a fourth is added by rounding.
const (
	minBlock   = 16
	maxSmall   = 16 << 10
	numClasses = 36
	maxObjects = 256 // of a span, at least 8 where there is room
)

// NewSegregated returns a segregated-fit allocator of an empty heap.
func NewSegregated() *Segregated {
	return &Segregated{spans: make([]span, 1)}
}

// class is a size of objects. The index of the object at a byte of a span is byte*inverse>>32: it
// is exact below 2^32/size, and no span is that long.
type class struct {
	size    uint32
	inverse uint32
	pages   uint8 // of a span, where there are as many
}

var classes = makeClasses()

func makeClasses() (cs [numClasses]class) {
	i := 0
	for size := uint32(minBlock); size <= maxSmall; size += step(size) {
		pages := max((8*size+PageSize-1)/PageSize, min(4, size*maxObjects/PageSize))
		cs[i] = class{size: size, inverse: uint32((1<<32 + uint64(size) - 1) / uint64(size)), pages: uint8(pages)}
		i++
	}
	if i != numClasses {
		panic("alloc: numClasses is wrong")
	}
	return cs
}

// step is how much larger the class after one of a size is.
func step(size uint32) uint32 {
	return max(minBlock, uint32(1)<<(bits.Len32(size)-3))
}

// classOf is the smallest class with objects of n bytes, 0 < n <= maxSmall.
func classOf(n uint64) int {
	if n <= 128 {
		return int(n+15)/16 - 1
	}
	n--
	log := bits.Len64(n) // 8 for 128 to 255
	return 8 + (log-8)*4 + int(n>>(log-3))&3
}

// Alloc implements Allocator.
func (a *Segregated) Alloc(n, align uint64) (off uint64, ok bool) {
	align = validAlign(align)
	if n == 0 || n > a.len() || align > MaxLen {
		return 0, false
	}
	if n <= maxSmall && align <= PageSize {
		return a.allocObject(classFor(n, align))
	}
	return a.allocPages(n, align)
}

// classFor is the smallest class of objects that all lie at multiples of align in a span, which
// begins at a page.
func classFor(n, align uint64) int {
	c := classOf(n)
	for uint64(classes[c].size)&(align-1) != 0 {
		c++ // ends at a power of two
	}
	return c
}

func (a *Segregated) allocObject(c int) (uint64, bool) {
	i := a.room[c]
	if i == 0 {
		if i = a.newSpan(c); i == 0 {
			return 0, false
		}
	}
	s := &a.spans[i]
	for w := range s.mask {
		if free := ^s.mask[w]; free != 0 {
			bit := bits.TrailingZeros64(free)
			s.mask[w] |= 1 << bit
			if s.taken++; s.taken == s.objects {
				a.unlink(&a.room[c], i)
			}
			size := uint64(classes[c].size)
			a.blocks++
			return uint64(s.start)<<pageShift + uint64(w*64+bit)*size, true
		}
	}
	panic("alloc: a span with room has none")
}

// newSpan makes a span of a class: of as many pages as it should have, or as there are.
func (a *Segregated) newSpan(c int) int32 {
	size := classes[c].size
	least := (size + PageSize - 1) >> pageShift
	for pages := uint32(classes[c].pages); ; pages = max(pages/2, least) {
		i := a.takeRun(pages)
		if i == 0 && pages > least {
			continue
		}
		if i == 0 {
			return 0
		}
		i = a.cut(i, 0, pages)
		s := &a.spans[i]
		s.kind, s.class, s.taken, s.mask = small, uint8(c), 0, [maxObjects / 64]uint64{}
		s.objects = uint16(min(s.pages<<pageShift/size, maxObjects))
		for k := int(s.objects); k < maxObjects; k++ { // what the span does not have is taken
			s.mask[k/64] |= 1 << (k % 64)
		}
		for p := range s.pages {
			a.pages[s.start+p] = uint32(i)
		}
		a.link(&a.room[c], i)
		return i
	}
}

// allocPages takes a run for one block.
func (a *Segregated) allocPages(n, align uint64) (uint64, bool) {
	pages := (n + PageSize - 1) >> pageShift
	unit := max(align>>pageShift, 1) // of pages
	if most := pages + unit - 1; most <= uint64(len(a.pages)) {
		if i := a.takeRun(uint32(most)); i != 0 {
			return a.block(i, uint32(pages), uint32(unit)), true
		}
	}
	if unit == 1 {
		return 0, false
	}
	return a.allocExact(uint32(pages), uint32(unit))
}

// allocExact looks through all free runs for one that has aligned room: the search by length takes
// more than may be needed.
func (a *Segregated) allocExact(pages, unit uint32) (uint64, bool) {
	a.dropEmpty()
	for _, i := range a.bins {
		for ; i != 0; i = a.spans[i].next {
			s := &a.spans[i]
			if uint64(-s.start&(unit-1))+uint64(pages) <= uint64(s.pages) {
				a.removeRun(i)
				return a.block(i, pages, unit), true
			}
		}
	}
	return 0, false
}

// block makes pages of a run a block that lies at a multiple of unit pages, and returns its offset.
func (a *Segregated) block(i int32, pages, unit uint32) uint64 {
	i = a.cut(i, -a.spans[i].start&(unit-1), pages)
	s := &a.spans[i]
	s.kind = large
	a.blocks++
	return uint64(s.start) << pageShift
}

// Free implements Allocator.
func (a *Segregated) Free(off uint64) (uint64, error) {
	if off >= a.len() {
		return 0, &FreeError{Off: off, Out: true}
	}
	i, object := a.find(off)
	if i == 0 {
		return 0, a.why(off)
	}
	s := &a.spans[i]
	a.blocks--
	if s.kind == large {
		n := uint64(s.pages) << pageShift
		a.freeRun(i)
		return n, nil
	}
	c := int(s.class)
	s.mask[object/64] &^= 1 << (object % 64)
	if s.taken == s.objects {
		a.link(&a.room[c], i)
	}
	size := uint64(classes[c].size)
	if s.taken--; s.taken == 0 && (a.room[c] != i || s.next != 0) { // one empty span may stay
		a.unlink(&a.room[c], i)
		a.freeRun(i)
	}
	return size, nil
}

// find is the span of the block in use that begins at off, and which object it is; 0: none does.
func (a *Segregated) find(off uint64) (i int32, object uint32) {
	page := uint32(off >> pageShift)
	i = int32(a.pages[page])
	s := &a.spans[i]
	at := off - uint64(s.start)<<pageShift
	switch {
	case s.kind == large && at == 0:
		return i, 0
	case s.kind == small && page-s.start < s.pages:
		object = uint32(at * uint64(classes[s.class].inverse) >> 32)
		if uint64(object)*uint64(classes[s.class].size) == at && object < uint32(s.objects) &&
			s.mask[object/64]>>(object%64)&1 != 0 {
			return i, object
		}
	}
	return 0, 0
}

// why is the error of an offset at which no block begins.
func (a *Segregated) why(off uint64) error {
	e := &FreeError{Off: off}
	for i := 1; i < len(a.spans); i++ { // the pages inside of a large block name no span
		s := &a.spans[i]
		at := off - uint64(s.start)<<pageShift
		if s.kind != large && s.kind != small || at >= uint64(s.pages)<<pageShift {
			continue
		}
		object, size := uint64(0), uint64(0)
		if s.kind == small {
			size = uint64(classes[s.class].size)
			object = at / size
		}
		if s.kind == large || object < uint64(s.objects) && s.mask[object/64]>>(object%64)&1 != 0 {
			e.Inner, e.Block = true, uint64(s.start)<<pageShift+object*size
		}
	}
	return e
}

// Room implements Allocator.
func (a *Segregated) Room(off uint64) uint64 {
	if off >= a.len() {
		return 0
	}
	i, _ := a.find(off)
	switch s := &a.spans[i]; s.kind {
	case large:
		return uint64(s.pages) << pageShift
	case small:
		return uint64(classes[s.class].size)
	}
	return 0
}

func (a *Segregated) len() uint64 { return uint64(len(a.pages)) << pageShift }

// Need implements Allocator.
func (a *Segregated) Need(n, align uint64) uint64 {
	align = validAlign(align)
	if n == 0 || n > MaxLen || align > MaxLen {
		return 0
	}
	a.dropEmpty()
	end := uint64(len(a.pages))
	start := end // of the free pages at the end
	if end > 0 {
		if s := &a.spans[a.pages[end-1]]; s.kind == free {
			start = uint64(s.start)
		}
	}
	if n <= maxSmall && align <= PageSize {
		n, align = uint64(classes[classFor(n, align)].size), 1
	}
	unit := max(align>>pageShift, 1)
	start = (start + unit - 1) &^ (unit - 1)
	return (max(start+(n+PageSize-1)>>pageShift, end) - end) << pageShift
}

// Stats implements Allocator.
func (a *Segregated) Stats() Stats {
	s := Stats{Len: a.len(), Blocks: a.blocks}
	for i := range a.spans {
		switch r := &a.spans[i]; r.kind {
		case free:
			s.LargestFree = max(s.LargestFree, uint64(r.pages)<<pageShift)
			s.Free += uint64(r.pages) << pageShift
		case small:
			size := uint64(classes[r.class].size)
			if r.taken < r.objects {
				s.LargestFree = max(s.LargestFree, size)
			}
			s.Free += uint64(r.objects-r.taken) * size
			if r.taken == 0 { // its pages are to be had
				s.Free += uint64(r.pages)<<pageShift - uint64(r.objects)*size
				s.LargestFree = max(s.LargestFree, uint64(r.pages)<<pageShift)
			}
		}
	}
	s.InUse = s.Len - s.Free
	s.Meta = uint64(unsafe.Sizeof(*a)) + uint64(cap(a.spans))*uint64(unsafe.Sizeof(span{})) + 4*uint64(cap(a.pages))
	return s
}
