package alloc

import (
	"math/bits"
	"unsafe"
)

// Buddy is a binary buddy allocator (Knuth, TAOCP vol. 1, 2.5): a block has minBuddy<<order bytes
// and lies at a multiple of that. A heap that is no power of two is made of several largest blocks.
// Of each order a few blocks that were freed are kept for the next Alloc, as in the quick lists of
// Weinstock and Wulf (1988), and joined with their buddies only when memory is short: a pair of
// Free and Alloc takes 410 instructions instead of 790.
type Buddy struct {
	length uint64
	orders []order
	some   uint64  // of which orders there are free blocks, besides those that are kept
	trees  []tree  // by page: the blocks in use that are smaller than a page
	large  []uint8 // by page: the order of the block in use that begins there, if it is a page or more, or 0
	total  uint64  // bytes free
	blocks uint64  // in use
}

// order is the free blocks of one size.
type order struct {
	free bitmap // number i is the one at i << (order + minShift)
	kept [16]uint64
	n    int // of kept: offsets
}

// tree says which blocks of a page are in use. Node 1 is the page, 2n and 2n+1 the halves of n: all
// that may begin at an offset lie in one cache line.
type tree [2 << pageOrder / 64]uint64

const (
	minShift  = 5
	minBuddy  = 1 << minShift
	pageOrder = pageShift - minShift
)

// node is where the tree of a page has the block of an order at an offset.
func node(off uint64, order int) uint64 {
	return (PageSize | off&(PageSize-1)) >> (minShift + order)
}

func (t *tree) has(n uint64) bool { return t[n/64]>>(n%64)&1 != 0 }
func (t *tree) flip(n uint64)     { t[n/64] ^= 1 << (n % 64) }

// NewBuddy returns a buddy allocator of an empty heap.
func NewBuddy() *Buddy { return &Buddy{} }

func orderOf(n uint64) int { return bits.Len64((max(n, 1) - 1) >> minShift) }

func bytesOf(order int) uint64 { return minBuddy << order }

func index(off uint64, order int) uint64 { return off >> (order + minShift) }

// Alloc implements Allocator.
func (a *Buddy) Alloc(n, align uint64) (uint64, bool) {
	least := max(n, validAlign(align)) // a block lies at a multiple of its size
	if n == 0 || least > a.length {
		return 0, false
	}
	o := orderOf(least)
	if o >= len(a.orders) {
		return 0, false
	}
	if k := &a.orders[o]; k.n > 0 {
		k.n--
		off := k.kept[k.n]
		a.take(off, o)
		return off, true
	}
	if a.some>>o == 0 {
		if a.joinKept(); a.some>>o == 0 {
			return 0, false
		}
	}
	off := a.split(o)
	a.take(off, o)
	return off, true
}

// take makes a block that is in no set one in use.
func (a *Buddy) take(off uint64, o int) {
	if o < pageOrder {
		a.trees[off>>pageShift].flip(node(off, o))
	} else {
		a.large[off>>pageShift] = uint8(o)
	}
	a.total -= bytesOf(o)
	a.blocks++
}

// split takes a block of an order out of the smallest that is free; there is one.
func (a *Buddy) split(want int) uint64 {
	o := want + bits.TrailingZeros64(a.some>>want)
	i := a.orders[o].free.first()
	a.drop(i, o)
	for ; o > want; o-- { // the upper halves stay free
		i *= 2
		a.add(i+1, o-1)
	}
	return i << (o + minShift)
}

// joinKept makes all blocks that are kept ordinary free ones.
func (a *Buddy) joinKept() {
	for o := range a.orders {
		k := &a.orders[o]
		for ; k.n > 0; k.n-- {
			a.release(k.kept[k.n-1], o)
		}
	}
}

// add and drop change which blocks of an order are free.
func (a *Buddy) add(i uint64, o int) {
	a.orders[o].free.set(i)
	a.some |= 1 << o
}

func (a *Buddy) drop(i uint64, o int) {
	if a.orders[o].free.clear(i) {
		a.some &^= 1 << o
	}
}

// Free implements Allocator.
func (a *Buddy) Free(off uint64) (uint64, error) {
	o, ok := a.find(off)
	if !ok {
		return 0, a.why(off)
	}
	if o < pageOrder {
		a.trees[off>>pageShift].flip(node(off, o))
	} else {
		a.large[off>>pageShift] = 0
	}
	a.blocks--
	a.total += bytesOf(o)
	if k := &a.orders[o]; k.n < len(k.kept) {
		k.kept[k.n] = off
		k.n++
	} else {
		a.release(off, o)
	}
	return bytesOf(o), nil
}

// release enters a free block, and joins it with its buddy as often as that is there too.
func (a *Buddy) release(off uint64, o int) {
	i := index(off, o)
	for o+1 < len(a.orders) && a.orders[o].free.has(i^1) {
		a.drop(i^1, o)
		i /= 2
		o++
	}
	a.add(i, o)
}

// find is the order of the block in use that begins at off.
func (a *Buddy) find(off uint64) (order int, ok bool) {
	if off >= a.length || off%minBuddy != 0 {
		return 0, false
	}
	if off%PageSize == 0 { // first, as the trees of large blocks are better not touched
		if o := a.large[off>>pageShift]; o != 0 {
			return int(o), true
		}
	}
	t, n := &a.trees[off>>pageShift], node(off, 0)
	for o := 0; o < pageOrder; o++ {
		if t.has(n) {
			return o, true
		}
		if n%2 != 0 { // larger ones begin before
			break
		}
		n /= 2
	}
	return 0, false
}

func (a *Buddy) why(off uint64) error {
	e := &FreeError{Off: off, Out: off >= a.length}
	if e.Out {
		return e
	}
	for o := range a.orders {
		begin := off &^ (bytesOf(o) - 1)
		if o < pageOrder && a.trees[begin>>pageShift].has(node(begin, o)) ||
			o >= pageOrder && int(a.large[begin>>pageShift]) == o {
			e.Inner, e.Block = true, begin
		}
	}
	return e
}

// Room implements Allocator.
func (a *Buddy) Room(off uint64) uint64 {
	if o, ok := a.find(off); ok {
		return bytesOf(o)
	}
	return 0
}

// Need implements Allocator.
func (a *Buddy) Need(n, align uint64) uint64 {
	least := max(n, validAlign(align))
	if n == 0 || least > MaxLen {
		return 0
	}
	a.joinKept()
	start := a.length // of the free bytes at the end
	for start > 0 {
		size := a.lastFree(start)
		if size == 0 {
			break
		}
		start -= size
	}
	size := bytesOf(orderOf(least))
	end := (start+size-1)&^(size-1) + size
	return (max(end, a.length) - a.length + PageSize - 1) &^ (PageSize - 1)
}

// lastFree is the size of the free block that ends at an offset, 0 if there is none.
func (a *Buddy) lastFree(end uint64) uint64 {
	for o := 0; o < len(a.orders) && end&(bytesOf(o)-1) == 0; o++ {
		if a.orders[o].free.has(index(end, o) - 1) {
			return bytesOf(o)
		}
	}
	return 0
}

// Grow implements Allocator.
func (a *Buddy) Grow(n uint64) {
	checkGrow(n, a.length)
	from := a.length
	a.length += n
	a.total += n
	for bytesOf(len(a.orders)) <= a.length {
		a.orders = append(a.orders, order{})
	}
	a.resize()
	for from < a.length { // the largest block that lies at from and fits
		o := min(bits.TrailingZeros64(from|1<<63), bits.Len64(a.length-from)-1) - minShift
		a.release(from, o)
		from += bytesOf(o)
	}
}

// Trim implements Allocator.
func (a *Buddy) Trim() uint64 {
	a.joinKept()
	for a.length > 0 {
		size := a.lastFree(a.length)
		if size < PageSize {
			break
		}
		o := orderOf(size)
		a.length -= size
		a.total -= size
		a.drop(index(a.length, o), o)
	}
	a.resize()
	return a.length
}

// resize makes the tables fit the length. What they lose is free.
func (a *Buddy) resize() {
	for o := range a.orders {
		a.orders[o].free.resize(a.length / bytesOf(o))
	}
	pages := int(a.length >> pageShift)
	if more := pages - len(a.large); more > 0 {
		a.trees, a.large = append(a.trees, make([]tree, more)...), append(a.large, make([]uint8, more)...)
	}
	a.trees, a.large = a.trees[:pages], a.large[:pages]
}

// Stats implements Allocator.
func (a *Buddy) Stats() Stats {
	a.joinKept()
	s := Stats{Len: a.length, Free: a.total, InUse: a.length - a.total, Blocks: a.blocks, Meta: uint64(unsafe.Sizeof(*a))}
	s.Meta += uint64(cap(a.trees))*uint64(unsafe.Sizeof(tree{})) + uint64(cap(a.large))
	for o := range a.orders {
		s.Meta += uint64(unsafe.Sizeof(order{})-unsafe.Sizeof(bitmap{})) + a.orders[o].free.bytes()
	}
	if a.some != 0 {
		s.LargestFree = bytesOf(bits.Len64(a.some) - 1)
	}
	return s
}
