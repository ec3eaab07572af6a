package heap

import (
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/alloc"
)

// ErrNoSharedMemory is wrapped by a *NoMemoryError.
var ErrNoSharedMemory = errors.New("no shared memory")

// ErrBadFree is wrapped by a *FreeError.
var ErrBadFree = errors.New("not a block in use")

// NoMemoryError says why the shared heaps cannot give a block. Nothing has changed, and a smaller
// request may succeed. Sizes are in bytes.
type NoMemoryError struct {
	Op        string // "alloc", "global alloc", "all alloc"
	Rank      int    // whose local heap was to give it; 0 for the global heap, which rank 0 has
	Requested uint64 // at each rank
	Align     uint64
	HeapSize  uint64 // that each rank gives

	LocalInUse  uint64 // in Rank's local heap
	Reserved    uint64 // for local heaps, at each rank: what the rank with the largest needs
	ReservedBy  int    // that rank
	GlobalInUse uint64
	GlobalSize  uint64 // reserved for the global heap
	LargestFree uint64 // the largest block that would have been given
}

func (e *NoMemoryError) Error() string {
	return fmt.Sprintf("conduit: %s: %v: %d bytes (alignment %d) were asked for, the largest free block has %d. "+
		"Of the heap of %d bytes a rank "+
		"%d are reserved for local heaps (by rank %d; rank %d uses %d) and %d for the global heap (%d in use). "+
		"Free what is not needed, or give the heap more (Config.HeapSize)",
		e.Op, ErrNoSharedMemory, e.Requested, e.Align, e.LargestFree, e.HeapSize, e.Reserved, e.ReservedBy,
		e.Rank, e.LocalInUse,
		e.GlobalSize, e.GlobalInUse)
}

func (e *NoMemoryError) Unwrap() error { return ErrNoSharedMemory }

// SizeError says that a request can never succeed.
type SizeError struct {
	Op             string
	Count, Size    uint64 // of blocks, of one in bytes
	Align          uint64
	Overflow       bool // count times size is no number of bytes
	WrongAlignment bool
}

func (e *SizeError) Error() string {
	if e.WrongAlignment {
		return fmt.Sprintf("conduit: %s: alignment %d: want a power of two, at most %d", e.Op, e.Align, MaxAlign)
	}
	return fmt.Sprintf("conduit: %s: %d blocks of %d bytes are more bytes than there are addresses", e.Op, e.Count, e.Size)
}

// Reason is why a pointer cannot be freed.
type Reason uint8

// The reasons.
const (
	NotInUse  Reason = iota + 1 // no block begins there: freed before, or never allocated
	Interior                    // inside of a block
	Outside                     // in no heap of that rank
	Differing                   // the ranks gave different pointers to one AllFree
	WrongHeap                   // beyond the local heap of a rank that does not have the global one
)

// FreeError says why a pointer cannot be freed. Nothing has changed.
type FreeError struct {
	Ptr    Ptr
	Reason Reason
	Block  Ptr // of Interior: the block
}

func (e *FreeError) Error() string {
	text := "no block in use begins there: it was freed before, or never allocated"
	switch e.Reason {
	case Interior:
		text = fmt.Sprintf("it lies inside of the block %v: free that", e.Block)
	case Outside:
		text = "it lies in no heap of that rank"
	case WrongHeap:
		text = "it lies beyond the local heap of that rank; a block of the global heap is freed by the pointer that was " +
			"returned, which is of rank 0"
	case Differing:
		text = "the ranks gave different pointers to one AllFree"
	}
	return fmt.Sprintf("conduit: free of %v: %v: %s", e.Ptr, ErrBadFree, text)
}

func (e *FreeError) Unwrap() error { return ErrBadFree }

// whyNotFree is an allocator's error of the block at p.
func whyNotFree(p Ptr, err error) *FreeError {
	why := &FreeError{Ptr: p, Reason: NotInUse}
	if below := (*alloc.FreeError)(nil); errors.As(err, &below) {
		switch {
		case below.Inner:
			why.Reason, why.Block = Interior, At(p.Rank(), below.Block)
		case below.Out:
			why.Reason = Outside
		}
	}
	return why
}

// MismatchError says that the ranks called one operation of all with different arguments.
type MismatchError struct {
	Op          string
	Rank, Other int // that differ
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("conduit: %s: ranks %d and %d gave different arguments: all ranks call it with the same",
		e.Op, e.Rank, e.Other)
}
