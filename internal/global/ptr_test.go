package global

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/ibconduit/conduit/internal/plain"
)

func TestPtrArithmeticStaysWithinOrIsRefused(t *testing.T) {
	p := At[int32](2, 100)
	for _, c := range []struct {
		got  Ptr[int32]
		rank int
		off  uint64
	}{
		{p, 2, 100}, {p.Add(3), 2, 112}, {p.Add(-25), 2, 0}, {p.Add(0), 2, 100},
		{p.Add(-26), 2, ^uint64(0)}, {p.Add(int(^uint(0) >> 1)), 2, ^uint64(0)}, {p.Add(-int(^uint(0)>>1) - 1), 2, ^uint64(0)},
		{At[int32](-1, 8), -1, 8}, {At[int32](MaxRanks, 8), -1, 8}, {Ptr[int32]{}.Add(5), -1, 0},
	} {
		if c.got.Rank() != c.rank || c.got.Offset() != c.off {
			t.Errorf("%v: rank %d offset %d, want %d and %d", c.got, c.got.Rank(), c.got.Offset(), c.rank, c.off)
		}
	}
	if !(Ptr[int]{}).IsNull() || At[int](0, 0).IsNull() {
		t.Error("null is the zero Ptr and nothing else")
	}
	if q := Cast[byte](p); q.Rank() != 2 || q.Offset() != 100 || !Cast[byte](Ptr[int]{}).IsNull() {
		t.Errorf("cast gives %v", q)
	}
	if q := Cast[int](Cast[*int](At[int](2, 100))); q != At[int](2, 100) {
		t.Errorf("cast from a type with pointers gives %v", q)
	}
	if q := Cast[*int](At[int](-1, 100)); q.Rank() != -1 || Cast[int](q) != At[int](-1, 100) {
		t.Errorf("cast of a rank that cannot be gives %v", q)
	}
	if reflect.TypeFor[Ptr[int]]().ConvertibleTo(reflect.TypeFor[Ptr[*int]]()) {
		t.Error("a Ptr converts to one that was not checked")
	}
	if n := unsafe.Sizeof(p); n != 16 {
		t.Errorf("a Ptr has %d bytes", n)
	}
}

func TestSizeofTypesWithoutPointers(t *testing.T) {
	type good struct {
		A [4]uint16
		B struct{ C complex128 }
		_ [0]func()
	}
	type bad struct {
		A int
		B [2]struct{ S string }
	}
	if !plain.Is[good]() || !plain.Is[uintptr]() || !plain.Is[struct{}]() {
		t.Error("a type without pointers is refused")
	}
	if plain.Is[bad]() || plain.Is[*int]() || plain.Is[[]int]() || plain.Is[any]() || plain.Is[unsafe.Pointer]() || plain.Is[map[int]int]() {
		t.Error("a type with pointers is taken")
	}
	if err := TypeErr[bad](); err == nil || err.Error() != "conduit: global.bad cannot be transferred: T.B[0].S (string) holds a pointer" {
		t.Errorf("message: %v", err)
	}
}
