package fabric

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// results are what Go's operators make of x and y, by operation.
func results[T int32 | uint32 | int64 | uint64](x, y, compare T) map[AtomicOp]T {
	swapped := x
	if x == compare {
		swapped = y
	}
	return map[AtomicOp]T{
		FetchAdd: x + y, CompareSwap: swapped, Swap: y, FetchAnd: x & y, FetchOr: x | y, FetchXor: x ^ y, FetchMin: min(x, y), FetchMax: max(x, y),
	}
}

// bits are those of v, with garbage above a type of 32 bits.
func bits[T int32 | uint32 | int64 | uint64](v T, garbage uint64) uint64 {
	if unsafe.Sizeof(v) == 4 {
		return uint64(uint32(v)) | garbage<<32
	}
	return uint64(v)
}

func agrees[T int32 | uint32 | int64 | uint64](t *testing.T, typ WordType, rng *rand.Rand) {
	t.Helper()
	draw := func() T {
		edges := []uint64{0, 1, math.MaxUint64, 1 << 63, 1 << 31, math.MaxInt64, math.MaxInt32, math.MaxUint32, rng.Uint64()}
		return T(edges[rng.IntN(len(edges))])
	}
	for range 2000 {
		x, y, compare := draw(), draw(), draw()
		if rng.IntN(2) == 0 {
			compare = x
		}
		for op, want := range results(x, y, compare) {
			a := Atomic{Op: op, Type: typ, Operand: bits(y, rng.Uint64()), Compare: bits(compare, rng.Uint64())}
			if got := a.Apply(bits(x, rng.Uint64())); got != bits(want, 0) {
				t.Fatalf("%v of %v: %v with %v, %v gave %#x, want %v", op, typ, x, y, compare, got, want)
			}
			if typ.Size() == 8 {
				continue
			}
			pair := [2]T{x, draw()}
			at := rng.IntN(2)
			pair[at], pair[1-at] = pair[0], pair[1]
			off := 24 + 4*uint64(at)
			outer := *(*uint64)(unsafe.Pointer(&pair)) // as both lie in memory
			if got := a.Inner(off, outer); got != bits(x, 0) {
				t.Fatalf("word %d of %x is %#x", at, pair, got)
			}
			pair[at] = want
			if got := a.Outer(off, outer); got != *(*uint64)(unsafe.Pointer(&pair)) {
				t.Fatalf("%v of %v at offset %d of %#x gave %#x, want %#x", op, typ, off, outer, got, pair)
			}
		}
	}
}

func TestAtomicsAreThoseOfGo(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	agrees[uint64](t, Uint64, rng)
	agrees[int64](t, Int64, rng)
	agrees[uint32](t, Uint32, rng)
	agrees[int32](t, Int32, rng)
	for range 2000 {
		x, y := math.Float64frombits(rng.Uint64()), rng.NormFloat64()
		a := Atomic{Type: Float64, Operand: math.Float64bits(y)}
		got, want := math.Float64frombits(a.Apply(math.Float64bits(x))), x+y
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Fatalf("%v + %v is %v", x, y, got)
		}
	}
}

func TestAtomicsAreChecked(t *testing.T) {
	for _, c := range []struct {
		a         Atomic
		off, size uint64
		align     uint64 // of an AlignError
		outside   uint64 // the length of a BoundsError
		unknown   bool
	}{
		{a: Atomic{}, off: 8, size: 16},
		{a: Atomic{}, off: 8, size: 15, outside: 8},
		{a: Atomic{}, off: 4, size: 64, align: 8},
		{a: Atomic{Type: Int32}, off: 12, size: 16},
		{a: Atomic{Type: Int32}, off: 16, size: 16, outside: 4},
		{a: Atomic{Type: Int32}, off: 16, size: 20, outside: 8}, // the word around it
		{a: Atomic{Type: Uint32}, off: 6, size: 64, align: 4},
		{a: Atomic{Type: Uint32}, off: math.MaxUint64 - 3, size: 64, outside: 4},
		{a: Atomic{Type: Float64}, off: 0, size: 8},
		{a: Atomic{Type: Float64, Op: FetchMin}, off: 0, size: 8, unknown: true},
		{a: Atomic{Op: numAtomics}, off: 0, size: 8, unknown: true},
		{a: Atomic{Type: numWordTypes}, off: 0, size: 8, unknown: true},
	} {
		err := c.a.Check(3, c.off, c.size)
		var align *AlignError
		var bounds *BoundsError
		switch {
		case errors.As(err, &align):
			if align.Align != c.align || align.Off != c.off || align.Rank != 3 {
				t.Errorf("%+v: %v", c, err)
			}
		case errors.As(err, &bounds):
			if bounds.Len != c.outside || bounds.Rank != 3 {
				t.Errorf("%+v: %v", c, err)
			}
		case errors.Is(err, ErrNoAtomic) != c.unknown, err != nil && !c.unknown, c.align+c.outside != 0:
			t.Errorf("%+v: %v", c, err)
		}
	}
}
