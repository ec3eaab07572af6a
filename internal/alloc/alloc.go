// Package alloc divides memory that it never touches. An [Allocator] manages offsets 0 to Len; what
// it has to remember lies elsewhere, so a wild store into the memory, also a remote one, cannot
// break it, and it can manage memory that is not mapped here.
//
// There are two plug-ins, and a third that checks one of them:
//
//   - [NewSegregated]: blocks of one size class share a span of pages, larger ones have pages of
//     their own. Sizes are rounded up to multiples of 16 bytes, from 128 bytes on by less than a
//     fourth. The bookkeeping needs 0.45 % of the memory for blocks of 64 bytes and 1 KiB.
//   - [NewBuddy]: blocks are powers of two, from 32 bytes on, and free blocks always join. The
//     bookkeeping needs 1.6 % (go test -v -run Metadata ./internal/alloc).
//   - [NewChecked]: keeps a table of its own and names faults of the one below.
//
// An Allocator has no lock: its user has one.
package alloc

import (
	"errors"
	"fmt"
)

// PageSize is the unit in bytes by which memory comes and goes.
const PageSize = 1 << pageShift

const pageShift = 12

// MaxLen is the most that an allocator manages, in bytes: 2^31 pages.
const MaxLen = 1 << (31 + pageShift)

// Allocator divides the offsets from 0 to Stats().Len. Alloc, and Free of a block in use, take a
// time that does not depend on the number of blocks, unless memory is nearly out. Others may take
// long.
type Allocator interface {
	// Alloc returns the offset of n free bytes, n > 0, a multiple of align, which is a power of two
	// or 0, which means none. Not ok: no free block is large enough; nothing has changed.
	Alloc(n, align uint64) (off uint64, ok bool)

	// Free gives a block back: off is what Alloc returned. Anything else is a *FreeError, and
	// changes nothing. It returns the bytes that become free.
	Free(off uint64) (n uint64, err error)

	// Room is how many bytes the block at off has, at least as many as requested; 0 where no
	// block begins.
	Room(off uint64) uint64

	// Need is by how many bytes the heap has to grow before Alloc(n, align) finds room, a multiple
	// of PageSize; with less it does not. 0: it need not, or n and align are not valid.
	Need(n, align uint64) uint64

	// Grow adds n bytes at the end, a multiple of PageSize. It panics beyond MaxLen.
	Grow(n uint64)

	// Trim gives free pages at the end back and returns the bytes that stay, a multiple of
	// PageSize.
	Trim() uint64

	// Stats may take long.
	Stats() Stats
}

// Stats are an allocator's figures, in bytes but for Blocks. Len = InUse + Free.
type Stats struct {
	Len         uint64 `metric:"bytes Length."`
	InUse       uint64 `metric:"in_use_bytes In use by blocks, or lost between them."`
	Free        uint64
	LargestFree uint64 `metric:"largest_free_bytes The largest block, without alignment, that it has without growing."`
	Blocks      uint64 `metric:"blocks Blocks in use."`
	Meta        uint64 // of the bookkeeping
}

// ErrNotAllocated is wrapped by a *FreeError: no block in use begins at the offset.
var ErrNotAllocated = errors.New("no block in use begins there")

// FreeError says why a block cannot be freed.
type FreeError struct {
	Off   uint64 // that was given
	Block uint64 // where the block in use begins that Off lies in, if Inner
	Inner bool   // Off lies inside of a block
	Out   bool   // Off lies outside of the memory managed
}

func (e *FreeError) Error() string {
	switch {
	case e.Out:
		return fmt.Sprintf("alloc: free of offset %#x: it lies outside of the heap", e.Off)
	case e.Inner:
		return fmt.Sprintf("alloc: free of offset %#x: it lies inside of the block at %#x: free that", e.Off, e.Block)
	}
	return fmt.Sprintf("alloc: free of offset %#x: %v: it was freed before, or never allocated", e.Off, ErrNotAllocated)
}

func (e *FreeError) Unwrap() error { return ErrNotAllocated }

// checkGrow panics where a heap cannot grow by n.
func checkGrow(n, length uint64) {
	if n%PageSize != 0 || n > MaxLen-length {
		panic(fmt.Sprintf("alloc: a heap of %d bytes cannot grow by %d: by pages of %d, to %d at most",
			length, n, PageSize, uint64(MaxLen)))
	}
}

// validAlign turns 0 into 1 and panics unless it is a power of two.
func validAlign(align uint64) uint64 {
	if align&(align-1) != 0 {
		panic(fmt.Sprintf("alloc: alignment %d is no power of two", align))
	}
	return max(align, 1)
}
