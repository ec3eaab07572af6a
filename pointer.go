package conduit

import (
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/plain"
)

// Ptr is a global pointer: a rank and an offset in its segment. The zero Ptr is null. It is a
// value, may be compared with ==, copied, and sent to other ranks (as Rank and Offset).
//
// Its methods:
//
//	Rank() int           // that p points to; -1 where p is null or invalid
//	Offset() uint64      // in bytes, in the rank's segment
//	IsNull() bool        // p is the zero Ptr
//	Add(n int) Ptr[T]    // n elements on; outside of the segment it is refused when it is used
//	On(rank int) Ptr[T]  // the same offset at another rank; of null it is null
//	String() string
type Ptr[T any] = global.Ptr[T]

const (
	badType = global.BadType
	badRank = global.BadRank
)

// MaxRanks is the largest number of ranks that a Ptr can address.
const MaxRanks = global.MaxRanks

// At returns the global pointer to the T at byte offset off of rank's segment.
// Whether the rank exists and the T lies in its segment is checked when the
// pointer is used. T must hold no Go pointers.
func At[T any](rank int, off uint64) Ptr[T] { return global.At[T](rank, off) }

// Cast returns p as a pointer to another type at the same place. Only U must hold no Go pointers.
func Cast[U, T any](p Ptr[T]) Ptr[U] { return global.Cast[U](p) }

// TypeError says that a type cannot be transferred because it holds pointers,
// which mean nothing to another rank and must not escape the garbage collector.
type TypeError = plain.TypeError

// pointerFree reports whether T may be transferred.
func pointerFree[T any]() bool { return plain.Is[T]() }

func typeError[T any]() error { return global.TypeErr[T]() }

// bytesOf views a slice of pointer-free elements as bytes.
func bytesOf[T any](s []T) []byte { return global.Bytes(s) }
