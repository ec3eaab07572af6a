package alloc

import (
	"math/bits"
	"unsafe"
)

// Buddy is a binary buddy allocator (Knuth, TAOCP vol. 1, § 2.5): a block has minBuddy<<order bytes
// and lies at a multiple of that. A heap that is no power of two is made of several largest blocks.
type Buddy struct {
	length uint64
	free   []bitmap // by order: which blocks are free
	taken  []bitmap // by order: which blocks are in use; bit i is the one at i << (order + minShift)
	total  uint64   // bytes free
	blocks uint64   // in use
}

const (
	minShift = 5
	minBuddy = 1 << minShift
)

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
	want := orderOf(least)
	for o := want; o < len(a.free); o++ {
		i, ok := a.free[o].first()
		if !ok {
			continue
		}
		a.free[o].clear(i)
		for ; o > want; o-- { // the upper halves stay free
			i *= 2
			a.free[o-1].set(i + 1)
		}
		a.taken[o].set(i)
		a.total -= bytesOf(o)
		a.blocks++
		return i << (o + minShift), true
	}
	return 0, false
}

// Free implements Allocator.
func (a *Buddy) Free(off uint64) (uint64, error) {
	o, ok := a.find(off)
	if !ok {
		return 0, a.why(off)
	}
	a.taken[o].clear(index(off, o))
	a.blocks--
	a.release(off, o)
	return bytesOf(o), nil
}

// release makes a block free, and joins it with its buddy as often as that is free too.
func (a *Buddy) release(off uint64, o int) {
	a.total += bytesOf(o)
	i := index(off, o)
	for o+1 < len(a.free) && a.free[o].has(i^1) {
		a.free[o].clear(i ^ 1)
		i /= 2
		o++
	}
	a.free[o].set(i)
}

// find is the order of the block in use that begins at off.
func (a *Buddy) find(off uint64) (order int, ok bool) {
	if off >= a.length || off%minBuddy != 0 {
		return 0, false
	}
	for o := 0; o < len(a.taken) && off&(bytesOf(o)-1) == 0; o++ {
		if a.taken[o].has(index(off, o)) {
			return o, true
		}
	}
	return 0, false
}

func (a *Buddy) why(off uint64) error {
	e := &FreeError{Off: off, Out: off >= a.length}
	for o := 0; o < len(a.taken) && !e.Out; o++ {
		if i := index(off, o); a.taken[o].has(i) {
			e.Inner, e.Block = true, i<<(o+minShift)
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
	for o := 0; o < len(a.free) && end&(bytesOf(o)-1) == 0; o++ {
		if a.free[o].has(index(end, o) - 1) {
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
	for o := 0; bytesOf(o) <= a.length; o++ {
		if o == len(a.free) {
			a.free, a.taken = append(a.free, bitmap{}), append(a.taken, bitmap{})
		}
		a.free[o].resize(a.length / bytesOf(o))
		a.taken[o].resize(a.length / bytesOf(o))
	}
	for from < a.length { // the largest block that lies at from and fits
		o := min(bits.TrailingZeros64(from|1<<63), bits.Len64(a.length-from)-1) - minShift
		a.release(from, o)
		from += bytesOf(o)
	}
}

// Trim implements Allocator.
func (a *Buddy) Trim() uint64 {
	for a.length > 0 {
		size := a.lastFree(a.length)
		if size < PageSize {
			break
		}
		o := orderOf(size)
		a.length -= size
		a.total -= size
		a.free[o].clear(index(a.length, o))
	}
	for o := range a.free {
		a.free[o].resize(a.length / bytesOf(o))
		a.taken[o].resize(a.length / bytesOf(o))
	}
	return a.length
}

// Stats implements Allocator.
func (a *Buddy) Stats() Stats {
	s := Stats{Len: a.length, Free: a.total, InUse: a.length - a.total, Blocks: a.blocks, Meta: uint64(unsafe.Sizeof(*a))}
	for o := range a.free {
		if _, ok := a.free[o].first(); ok {
			s.LargestFree = bytesOf(o)
		}
		s.Meta += a.free[o].bytes() + a.taken[o].bytes()
	}
	return s
}
