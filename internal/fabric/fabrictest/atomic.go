package fabrictest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/ibconduit/conduit/internal/fabric"
)

// everyAtomic yields each operation of each type that has it.
func everyAtomic(yield func(fabric.Atomic) bool) {
	for op := fabric.FetchAdd; op <= fabric.FetchMax; op++ {
		for t := fabric.Uint64; t <= fabric.Float64; t++ {
			if a := (fabric.Atomic{Op: op, Type: t}); a.Valid() && !yield(a) {
				return
			}
		}
	}
}

// loadWord and storeWord access a word of 4 or 8 bytes.
func loadWord(b []byte) uint64 {
	if len(b) == 4 {
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}

func storeWord(b []byte, v uint64) {
	if len(b) == 4 {
		binary.NativeEndian.PutUint32(b, uint32(v))
	} else {
		binary.NativeEndian.PutUint64(b, v)
	}
}

// atomicRow is what an operation makes of a value. Values are bits; of negative integers all 64.
type atomicRow struct {
	op                          fabric.AtomicOp
	old, operand, compare, want uint64
}

const (
	minus1 = math.MaxUint64
	min64  = 1 << 63
	max64  = math.MaxInt64
	min32  = 1<<64 - 1<<31 // as int32 and, extended, as int64
	max32  = math.MaxInt32
)

// integerRows hold for all integer types, and are cut to 32 bits for those that have so many.
var integerRows = []atomicRow{
	{fabric.FetchAdd, 5, 7, 0, 12},
	{fabric.FetchAdd, minus1, 1, 0, 0},
	{fabric.FetchAdd, 0, minus1, 0, minus1},
	{fabric.FetchAdd, 9, 0, 0, 9},
	{fabric.CompareSwap, 5, 6, 5, 6},
	{fabric.CompareSwap, 5, 6, 4, 5},
	{fabric.CompareSwap, minus1, 0, minus1, 0},
	{fabric.CompareSwap, minus1, 0, 0, minus1},
	{fabric.CompareSwap, 0, 0, 0, 0},
	{fabric.Swap, minus1, 0, 0, 0},
	{fabric.Swap, 0, minus1, 0, minus1},
	{fabric.Swap, 3, 3, 0, 3},
	{fabric.FetchAnd, 0b1100, 0b1010, 0, 0b1000},
	{fabric.FetchAnd, minus1, minus1, 0, minus1},
	{fabric.FetchAnd, minus1, 0, 0, 0},
	{fabric.FetchOr, 0b1100, 0b1010, 0, 0b1110},
	{fabric.FetchOr, 0, minus1, 0, minus1},
	{fabric.FetchOr, 6, 0, 0, 6},
	{fabric.FetchXor, 0b1100, 0b1010, 0, 0b0110},
	{fabric.FetchXor, minus1, minus1, 0, 0},
	{fabric.FetchXor, 0, minus1, 0, minus1},
	{fabric.FetchMin, 5, 7, 0, 5},
	{fabric.FetchMin, 7, 5, 0, 5},
	{fabric.FetchMin, 5, 5, 0, 5},
	{fabric.FetchMax, 5, 7, 0, 7},
	{fabric.FetchMax, 7, 5, 0, 7},
	{fabric.FetchMax, 0, 0, 0, 0},
}

// typeRows are those in which types differ.
var typeRows = map[fabric.WordType][]atomicRow{
	fabric.Uint64: {
		{fabric.FetchAdd, max64, 1, 0, min64},
		{fabric.FetchAdd, math.MaxUint32, 1, 0, 1 << 32},
		{fabric.CompareSwap, 1<<32 | 5, 6, 5, 1<<32 | 5},
		{fabric.FetchMin, 1, minus1, 0, 1},
		{fabric.FetchMax, 1, minus1, 0, minus1},
		{fabric.FetchMin, min64, max64, 0, max64},
		{fabric.FetchMax, min64, max64, 0, min64},
	},
	fabric.Int64: {
		{fabric.FetchAdd, max64, 1, 0, min64},
		{fabric.FetchAdd, min64, minus1, 0, max64},
		{fabric.FetchMin, 1, minus1, 0, minus1},
		{fabric.FetchMax, 1, minus1, 0, 1},
		{fabric.FetchMin, min64, max64, 0, min64},
		{fabric.FetchMax, min64, max64, 0, max64},
		{fabric.FetchMin, minus1, min64, 0, min64},
	},
	fabric.Uint32: {
		{fabric.FetchAdd, max32, 1, 0, 1 << 31},
		{fabric.CompareSwap, 5, 6, 1<<32 | 5, 6}, // of the operands the lower half counts
		{fabric.FetchOr, 0, 1<<32 | 2, 0, 2},
		{fabric.FetchMin, 1, minus1, 0, 1},
		{fabric.FetchMax, 1, minus1, 0, math.MaxUint32},
		{fabric.FetchMin, min32, max32, 0, max32},
		{fabric.FetchMax, min32, max32, 0, 1 << 31},
	},
	fabric.Int32: {
		{fabric.FetchAdd, max32, 1, 0, min32},
		{fabric.FetchAdd, min32, minus1, 0, max32},
		{fabric.FetchMin, 1, minus1, 0, minus1},
		{fabric.FetchMax, 1, minus1, 0, 1},
		{fabric.FetchMin, 1, math.MaxUint32, 0, minus1}, // without its sign extended
		{fabric.FetchMin, min32, max32, 0, min32},
		{fabric.FetchMax, min32, max32, 0, max32},
	},
	fabric.Float64: {
		sum(1.5, 2.25, 3.75), sum(-3, 3, 0), sum(0.1, 0.2, 0.30000000000000004), sum(1, 1<<53, 1<<53), // ties to even
		sum(negativeZero, 0, 0), sum(0, negativeZero, 0), sum(negativeZero, negativeZero, negativeZero),
		sum(math.MaxFloat64, math.MaxFloat64, math.Inf(1)), sum(math.Inf(-1), math.MaxFloat64, math.Inf(-1)),
		sum(math.Inf(1), math.Inf(-1), math.NaN()), sum(math.NaN(), 1, math.NaN()), sum(1, math.NaN(), math.NaN()),
		sum(math.SmallestNonzeroFloat64, math.SmallestNonzeroFloat64, 2*math.SmallestNonzeroFloat64),
		sum(math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 0),
	},
}

var negativeZero = math.Copysign(0, -1)

func sum(old, operand, want float64) atomicRow {
	return atomicRow{fabric.FetchAdd, math.Float64bits(old), math.Float64bits(operand), 0, math.Float64bits(want)}
}

// atomicTable: each operation of each type on the values at which it may go wrong, at both halves
// of a word, in all forms. It returns the old value, and leaves the neighbours alone.
func (g *group) atomicTable() {
	l := g.lane(0)
	rows := make(map[fabric.AtomicOp]int)
	for t := fabric.Uint64; t <= fabric.Float64; t++ {
		list := typeRows[t]
		if t != fabric.Float64 {
			list = append(list[:len(list):len(list)], integerRows...)
		}
		for _, r := range list {
			rows[r.op]++
			for _, off := range []uint64{16, 16 + t.Size()} {
				for _, f := range []fabric.Flag{0, fabric.Blocking, fabric.Implicit} {
					g.atomicCase(l, t, r, off, f)
				}
			}
		}
	}
	if len(rows) != int(fabric.FetchMax)+1 {
		g.Fatalf("the table has %d operations", len(rows))
	}
	g.identities(l.Counters().Load())
}

func (g *group) atomicCase(l fabric.Lane, t fabric.WordType, r atomicRow, off uint64, f fabric.Flag) {
	g.Helper()
	a := fabric.Atomic{Op: r.op, Type: t, Operand: r.operand, Compare: r.compare}
	what := fmt.Sprintf("%v of %v at offset %d: %#x with %#x, %#x", a.Op, t, off, r.old, r.operand, r.compare)
	seg := g.ranks[1].Segment[:40]
	fill(seg, 0xFF) // a carry or borrow would show
	word := seg[off : off+t.Size()]
	storeWord(word, r.old)
	old, h, err := l.Atomic(1, off, a, f)
	g.must(what, err)
	switch {
	case f == fabric.Implicit:
		g.must("flush", l.Flush(g.ctx))
		if old != 0 || h != fabric.Done {
			g.Fatalf("%s, implicit: returned %#x, handle %#x", what, old, uint64(h))
		}
	case h != fabric.Done:
		old = g.collect(l, h, r.old%2 == 0)
	}
	mask := uint64(1)<<(8*t.Size()-1)<<1 - 1
	if f != fabric.Implicit && old != r.old&mask {
		g.Fatalf("%s: returned %#x", what, old)
	}
	got := loadWord(word)
	if t == fabric.Float64 && math.IsNaN(math.Float64frombits(r.want)) {
		if !math.IsNaN(math.Float64frombits(got)) {
			g.Fatalf("%s: left %v, want NaN", what, math.Float64frombits(got))
		}
	} else if got != r.want&mask {
		g.Fatalf("%s: left %#x, want %#x", what, got, r.want&mask)
	}
	fill(word, 0xFF)
	want := make([]byte, len(seg))
	fill(want, 0xFF)
	g.same(what+": around the word", seg, want)
}

// placed is an atomic at an offset.
type placed struct {
	off uint64
	fabric.Atomic
}

// implicitAtomics: more of all kinds than a lane has in flight, by themselves, in a batch, and in a
// batch with tags; some on one word and some on many. Flush completes them.
func (g *group) implicitAtomics() {
	l := g.lane(0)
	n := g.many()
	const spread = 64 // words that take turns
	seg := g.ranks[1].Segment
	for round := range 3 {
		var b fabric.Batch
		var told fabric.Completions
		clear(seg[:4096])
		*wordAt(seg, 40) = math.MaxUint64
		for i := range n {
			v := uint64(i) + 1
			for _, a := range []placed{
				{0, fabric.Atomic{Op: fabric.FetchAdd, Operand: v}},
				{8, fabric.Atomic{Op: fabric.FetchAdd, Type: fabric.Float64, Operand: math.Float64bits(0.5)}},
				{16, fabric.Atomic{Op: fabric.FetchAdd, Type: fabric.Uint32, Operand: v}},
				{20, fabric.Atomic{Op: fabric.FetchAdd, Type: fabric.Int32, Operand: -v}},
				{24, fabric.Atomic{Op: fabric.FetchXor, Operand: v}},
				{32, fabric.Atomic{Op: fabric.FetchMax, Operand: v}},
				{40, fabric.Atomic{Op: fabric.FetchAnd, Operand: ^(1 << (v % 64))}},
				{48, fabric.Atomic{Op: fabric.CompareSwap, Type: fabric.Uint32, Operand: v, Compare: v - 1}},
				{1024 + 4*(v%spread), fabric.Atomic{Op: fabric.FetchOr, Type: fabric.Uint32, Operand: 1 << (v / spread % 32)}},
			} {
				if round > 0 {
					b.Atomic(1, a.off, a.Atomic, nil)
					continue
				}
				old, h, err := l.Atomic(1, a.off, a.Atomic, fabric.Implicit)
				g.must("implicit "+a.Op.String(), err)
				if old != 0 || h != fabric.Done {
					g.Fatalf("implicit %v returned %d and handle %#x", a.Op, old, uint64(h))
				}
			}
			if round == 2 {
				b.Tag(fabric.Tag(i))
			}
		}
		g.must("post", l.Post(&b, &told, 0))
		g.must("flush", l.Flush(g.ctx))
		if told.InFlight() > 0 || round == 2 && told.Len() != n {
			g.Fatalf("%d groups in flight after the flush, %d told of %d", told.InFlight(), told.Len(), n)
		}
		var xor uint64
		and, ors := uint64(math.MaxUint64), make([]byte, 4*spread)
		for v := uint64(1); v <= uint64(n); v++ {
			xor ^= v
			and &^= 1 << (v % 64)
			word := ors[4*(v%spread):][:4]
			storeWord(word, loadWord(word)|1<<(v/spread%32))
		}
		total := uint64(n) * uint64(n+1) / 2
		for off, want := range map[int]uint64{
			0: total, 8: math.Float64bits(float64(n) / 2), 24: xor, 32: uint64(n), 40: and,
		} {
			if got := *wordAt(seg, off); got != want {
				g.Fatalf("round %d: the word at %d is %#x, want %#x", round, off, got, want)
			}
		}
		g.same("32-bit words", seg[16:24], append(half(total), half(-total)...))
		g.same("or", seg[1024:1024+len(ors)], ors)
		// Loops may overtake each other: any of the swaps may have missed. None invents a value.
		if v := loadWord(seg[48:52]); v > uint64(n) {
			g.Fatalf("round %d: compare-swaps up to %d left %d", round, n, v)
		}
	}
	g.identities(l.Counters().Load())
}

// upper is the offset of the upper half of a word of 64 bits.
var upper = uint64(4 * binary.NativeEndian.Uint16([]byte{1, 0}) & 4)

func half(v uint64) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(v)) }

// concurrentHalves: all lanes change both halves of one word, and its neighbours, by all kinds of
// atomics, with and without their results, some in flight together.
func (g *group) concurrentHalves() {
	seg := g.ranks[1].Segment
	clear(seg[:64])
	*wordAt(seg, 32) = math.MaxUint64
	ls := g.spread()
	rounds := max(g.o.Rounds/8, 4)
	g.each(len(ls), func(ctx context.Context, i int) error {
		l := ls[i]
		for k := range rounds {
			v := uint64(i*rounds + k + 1)
			var hs []fabric.Handle
			for j, a := range []placed{
				{0, fabric.Atomic{Op: fabric.FetchAdd, Type: fabric.Uint32, Operand: 3}},
				{4, fabric.Atomic{Op: fabric.FetchAdd, Type: fabric.Int32, Operand: -v}},
				{0, fabric.Atomic{Op: fabric.FetchXor, Type: fabric.Uint32, Operand: 0}},
				{8, fabric.Atomic{Op: fabric.FetchAdd, Type: fabric.Float64, Operand: math.Float64bits(0.25)}},
				{16, fabric.Atomic{Op: fabric.FetchXor, Operand: v * 0x9e3779b97f4a7c15}},
				{24, fabric.Atomic{Op: fabric.FetchMax, Type: fabric.Int64, Operand: v}},
				{32, fabric.Atomic{Op: fabric.FetchMin, Type: fabric.Uint64, Operand: 1000 - v%1000}},
				{40, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}},
				{40 + upper, fabric.Atomic{Op: fabric.FetchAdd, Type: fabric.Uint32, Operand: 1}},
			} {
				f := fabric.Flag(0)
				if (j+k)%2 == 0 {
					f = fabric.Implicit
				}
				_, h, err := l.Atomic(1, a.off, a.Atomic, f)
				if err != nil {
					return fmt.Errorf("%v: %w", a.Op, err)
				}
				hs = append(hs, h)
			}
			for _, h := range hs {
				if _, err := l.Wait(ctx, h); err != nil {
					return err
				}
			}
		}
		return l.Flush(ctx)
	})
	n := uint64(len(ls) * rounds)
	var xor uint64
	low := uint64(1000)
	for v := uint64(1); v <= n; v++ {
		xor ^= v * 0x9e3779b97f4a7c15
		low = min(low, 1000-v%1000)
	}
	g.same("both halves of a word", seg[:8], append(half(3*n), half(-(n*(n+1)/2))...))
	for off, want := range map[int]uint64{8: math.Float64bits(float64(n) / 4), 16: xor, 24: n, 32: low, 40: n<<32 | n} {
		if got := *wordAt(seg, off); got != want {
			g.Fatalf("the word at %d is %#x, want %#x", off, got, want)
		}
	}
}
