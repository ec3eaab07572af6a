// Package global has the global pointer, a rank and an offset in its segment, and what a T must be
// to be transferred by one. Functions that only the library calls are no methods: package conduit
// has Ptr as an alias.
package global

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/ibconduit/conduit/internal/plain"
)

// Ptr is a global pointer: a rank and an offset in its segment. The zero Ptr is
// null. It is a value, may be compared with ==, copied, and sent to other ranks
// (as Rank and Offset).
type Ptr[T any] struct {
	_    [0]*T  // no Ptr converts to another, which At has not checked
	node uint32 // rank+1, or 0: null, or BadRank; with BadType
	off  uint64
}

// What Node has in place of a rank, or beside it.
const (
	BadType = 1 << 31 // of a Ptr to a type that may not be transferred
	BadRank = BadType - 1
)

// MaxRanks is the largest number of ranks that a Ptr can address.
const MaxRanks = BadRank - 1

// At returns the global pointer to the T at byte offset off of rank's segment.
// Whether the rank exists and the T lies in its segment is checked when the
// pointer is used. T must hold no Go pointers.
func At[T any](rank int, off uint64) Ptr[T] {
	p := Ptr[T]{node: BadRank, off: off}
	if rank >= 0 && rank < MaxRanks {
		p.node = uint32(rank) + 1
	}
	if !plain.Is[T]() {
		p.node |= BadType
	}
	return p
}

// Rank is the rank that p points to; -1 when p is null or invalid.
func (p Ptr[T]) Rank() int {
	if p.node >= BadRank {
		return -1
	}
	return int(p.node) - 1
}

// Offset is the byte offset in the rank's segment.
func (p Ptr[T]) Offset() uint64 { return p.off }

// IsNull reports whether p is the zero Ptr.
func (p Ptr[T]) IsNull() bool { return p == Ptr[T]{} }

// Add moves p by n elements of T within the rank's segment. A pointer that left
// the segment is refused when it is used.
func (p Ptr[T]) Add(n int) Ptr[T] {
	var v T
	hi, lo := bits.Mul64(uint64(max(n, -n)), uint64(unsafe.Sizeof(v)))
	switch {
	case p.IsNull():
	case hi != 0 || n == -n && n != 0,
		n > 0 && p.off+lo < p.off,
		n < 0 && lo > p.off:
		p.off = ^uint64(0) // outside of every segment
	case n < 0:
		p.off -= lo
	default:
		p.off += lo
	}
	return p
}

// On is the place of p at another rank: the same offset. Of null it is null.
func (p Ptr[T]) On(rank int) Ptr[T] {
	if p.IsNull() {
		return p
	}
	return At[T](rank, p.off)
}

func (p Ptr[T]) String() string {
	switch {
	case p.IsNull():
		return "null"
	case p.Rank() < 0:
		return "invalid"
	}
	return fmt.Sprintf("%d:%#x", p.Rank(), p.off)
}

// Cast returns p as a pointer to another type at the same place. Only U must hold no Go pointers.
func Cast[U, T any](p Ptr[T]) Ptr[U] {
	if p.IsNull() {
		return Ptr[U]{}
	}
	return At[U](int(p.node&^BadType)-1, p.off)
}

// TypeErr is the error of a T that holds pointers.
func TypeErr[T any]() error { return fmt.Errorf("conduit: %w", plain.Err[T]()) }

// Check is the error of p's type, nil if T may be transferred.
func Check[T any](p Ptr[T]) error {
	if p.node&BadType != 0 {
		return TypeErr[T]()
	}
	return nil
}

// Node is p's rank + 1, or 0 of null, or BadRank; with BadType.
func Node[T any](p Ptr[T]) uint32 { return p.node }

// Of is the pointer of a Node and an offset.
func Of[T any](node uint32, off uint64) Ptr[T] { return Ptr[T]{node: node, off: off} }

// Bytes views a slice of pointer-free elements as bytes.
func Bytes[T any](s []T) []byte {
	var v T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), uintptr(len(s))*unsafe.Sizeof(v))
}
