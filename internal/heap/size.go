package heap

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/plain"
)

// LineAlign is the alignment of blocks from lineFrom bytes on: a cache line. Smaller ones, of which
// there may be many, begin at multiples of 16.
const (
	LineAlign = 64
	lineFrom  = 4096
)

// SizeOf is the bytes of n elements of T, and how a block of them is aligned.
func SizeOf[T any](op string, n int) (size, align uint64, err error) {
	if !plain.Is[T]() {
		return 0, 0, global.TypeErr[T]()
	}
	var v T
	if n < 0 {
		return 0, 0, fmt.Errorf("conduit: %s: %d elements, want 0 or more", op, n)
	}
	hi, size := bits.Mul64(uint64(n), uint64(unsafe.Sizeof(v)))
	if hi != 0 || size > 1<<62 {
		return 0, 0, &SizeError{Op: op, Count: uint64(n), Size: uint64(unsafe.Sizeof(v)), Overflow: true}
	}
	if size >= lineFrom {
		align = LineAlign
	}
	return size, align, nil
}
