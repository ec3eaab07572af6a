package coll_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

// affine is x -> a*x + b modulo 2^32. Composition is associative and not commutative.
type affine struct{ a, b uint32 }

func compose(dst, src []affine) {
	for i, s := range src {
		d := &dst[i]
		d.a, d.b = d.a*s.a, d.a*s.b+d.b
	}
}

// maps are a rank's data.
func maps(n, id, rank int) []affine {
	b := fill(8*n, id, rank)
	m := make([]affine, n)
	for i := range m {
		m[i] = affine{binary.LittleEndian.Uint32(b[8*i:]) | 1, binary.LittleEndian.Uint32(b[8*i+4:])}
	}
	return m
}

// composed is what a reduction of the first ranks must give.
func composed(n, id, ranks int) []affine {
	all := maps(n, id, 0)
	for r := 1; r < ranks; r++ {
		compose(all, maps(n, id, r))
	}
	return all
}

// blocksOf are a block for each rank, and their lengths.
func blocksOf(size int, f func(i int) []byte) (all []byte, counts []int) {
	for i := range size {
		b := f(i)
		all, counts = append(all, b...), append(counts, len(b))
	}
	return all, counts
}

func same[T comparable](what string, got, want []T) error {
	if slices.Equal(got, want) {
		return nil
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Errorf("%s: the element %d of %d is wrong", what, i, len(want))
}

// dataOp is an operation on data in all its forms.
type dataOp struct {
	kind  coll.Kind
	do    func(context.Context) error
	start func(context.Context) *coll.Pending
	check func() error
}

// dataOps are all operations as one rank does them: with n elements, or blocks of n bytes, whose
// content follows from id.
func dataOps(on coll.On, rank, size, n, id, root int) []dataOp {
	return append(reductions(on, rank, size, n, id, root), exchanges(on, rank, size, n, id, root)...)
}

func reductions(on coll.On, rank, size, n, id, root int) []dataOp {
	all, one, upTo, before := maps(n, id, rank), maps(n, id, rank), maps(n, id, rank), maps(n, id, rank)
	one0 := maps(n, id, rank)
	if rank == root {
		one0 = composed(n, id, size)
	}
	before0 := maps(n, id, 0)
	if rank > 0 {
		before0 = composed(n, id, rank)
	}
	what := fmt.Sprintf(" of %d maps, root %d, at %d of %d", n, root, rank, size)
	return []dataOp{
		{coll.KindAllReduce,
			func(ctx context.Context) error { return coll.AllReduce(ctx, on, all, compose) },
			func(ctx context.Context) *coll.Pending { return coll.StartAllReduce(ctx, on, all, compose) },
			func() error { return same("all-reduce"+what, all, composed(n, id, size)) }},
		{coll.KindReduce,
			func(ctx context.Context) error { return coll.Reduce(ctx, on, root, one, compose) },
			func(ctx context.Context) *coll.Pending { return coll.StartReduce(ctx, on, root, one, compose) },
			func() error { return same("reduce"+what, one, one0) }},
		{coll.KindScan,
			func(ctx context.Context) error { return coll.Scan(ctx, on, upTo, compose) },
			func(ctx context.Context) *coll.Pending { return coll.StartScan(ctx, on, upTo, compose) },
			func() error { return same("scan"+what, upTo, composed(n, id, rank+1)) }},
		{coll.KindExScan,
			func(ctx context.Context) error { return coll.ExScan(ctx, on, before, compose) },
			func(ctx context.Context) *coll.Pending { return coll.StartExScan(ctx, on, before, compose) },
			func() error { return same("exclusive scan"+what, before, before0) }},
	}
}

func exchanges(on coll.On, rank, size, n, id, root int) []dataOp {
	what := fmt.Sprintf(" of %d bytes, root %d, at %d of %d", n, root, rank, size)
	length := func(from, to int) int { return n * ((from*3 + to*5 + id&7) % 4) / 2 }
	whole := func(from, to int) []byte { return fill(n, id, from, to) }
	part := func(from, to int) []byte { return fill(length(from, to), id, from, to) }
	buffer := func(b []byte) []byte { return make([]byte, len(b)) }

	out, _ := blocksOf(size, func(i int) []byte { return whole(rank, i) })
	in, _ := blocksOf(size, func(i int) []byte { return whole(i, rank) })
	outV, outCounts := blocksOf(size, func(i int) []byte { return part(rank, i) })
	inV, inCounts := blocksOf(size, func(i int) []byte { return part(i, rank) })
	all, _ := blocksOf(size, func(i int) []byte { return whole(i, i) })
	got, gotV, gotAll := buffer(in), buffer(inV), buffer(all)

	down, _ := blocksOf(size, func(i int) []byte { return whole(root, i) })
	downV, downCounts := blocksOf(size, func(i int) []byte { return part(root, i) })
	up, _ := blocksOf(size, func(i int) []byte { return whole(i, root) })
	upV, upCounts := blocksOf(size, func(i int) []byte { return part(i, root) })
	gotUp, gotUpV := buffer(up), buffer(upV)
	if rank != root {
		down, downV, downCounts, up, upV, upCounts, gotUp, gotUpV = nil, nil, nil, nil, nil, nil, nil, nil
	}
	gotDown, gotDownV := make([]byte, n), make([]byte, length(root, rank))
	return []dataOp{
		{coll.KindAllToAll,
			func(ctx context.Context) error { return coll.AllToAll(ctx, on, got, out) },
			func(ctx context.Context) *coll.Pending { return coll.StartAllToAll(ctx, on, got, out) },
			func() error { return same("all-to-all"+what, got, in) }},
		{coll.KindAllToAll,
			func(ctx context.Context) error { return coll.AllToAllV(ctx, on, gotV, inCounts, outV, outCounts) },
			func(ctx context.Context) *coll.Pending {
				return coll.StartAllToAllV(ctx, on, gotV, inCounts, outV, outCounts)
			},
			func() error { return same("all-to-all with counts"+what, gotV, inV) }},
		{coll.KindAllGather,
			func(ctx context.Context) error { return coll.AllGather(ctx, on, gotAll, whole(rank, rank)) },
			func(ctx context.Context) *coll.Pending {
				return coll.StartAllGather(ctx, on, gotAll, whole(rank, rank))
			},
			func() error { return same("all-gather"+what, gotAll, all) }},
		{coll.KindScatter,
			func(ctx context.Context) error { return coll.Scatter(ctx, on, root, gotDown, down) },
			func(ctx context.Context) *coll.Pending { return coll.StartScatter(ctx, on, root, gotDown, down) },
			func() error { return same("scatter"+what, gotDown, whole(root, rank)) }},
		{coll.KindScatter,
			func(ctx context.Context) error { return coll.ScatterV(ctx, on, root, gotDownV, downV, downCounts) },
			func(ctx context.Context) *coll.Pending {
				return coll.StartScatterV(ctx, on, root, gotDownV, downV, downCounts)
			},
			func() error { return same("scatter with counts"+what, gotDownV, part(root, rank)) }},
		{coll.KindGather,
			func(ctx context.Context) error { return coll.Gather(ctx, on, root, gotUp, whole(rank, root)) },
			func(ctx context.Context) *coll.Pending {
				return coll.StartGather(ctx, on, root, gotUp, whole(rank, root))
			},
			func() error { return same("gather"+what, gotUp, up) }},
		{coll.KindGather,
			func(ctx context.Context) error {
				return coll.GatherV(ctx, on, root, gotUpV, upCounts, part(rank, root))
			},
			func(ctx context.Context) *coll.Pending {
				return coll.StartGatherV(ctx, on, root, gotUpV, upCounts, part(rank, root))
			},
			func() error { return same("gather with counts"+what, gotUpV, upV) }},
	}
}

// lengths: none, short, of about a message or a place, many.
var lengths = []int{0, 1, 7, 30, 100, 513, 3000}

// allData does each operation with each length, through lanes of its own and started too.
func allData(ctx context.Context, e env.Env, t *coll.Team) error {
	lanes, err := e.NewLanes()
	if err != nil {
		return err
	}
	defer lanes.Close()
	for i, n := range lengths {
		for j, on := range []coll.On{t, t.Through(lanes)} {
			for k, op := range dataOps(on, t.Rank(), t.Size(), n, 10*i+j, (2*i+j)%t.Size()) {
				if (i+j+k)%3 == 0 {
					err = op.start(ctx).Wait(ctx)
				} else {
					err = op.do(ctx)
				}
				if err == nil {
					err = op.check()
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// The way of data depends on lengths and on Config: each configuration takes others.
var ways = []coll.Config{
	small,
	{Slots: 2, SlotBytes: 4 << 10, Short: 1, Long: 1},
	{Slots: 2, SlotBytes: 4 << 10, Short: 1, Long: 1 << 30},
	{Slots: 2, SlotBytes: 4 << 10, WindowBytes: 4 << 10, Short: 4 << 10},
}

func TestDataArrivesOnEveryWay(t *testing.T) {
	for _, n := range teamSizes() {
		for i, c := range ways {
			if parttest.Of(10) < 10 && (n+i)%4 != 0 {
				continue
			}
			onSim(t, sim.Config{Ranks: n, Seed: uint64(10*n + i)}, c, nil, allData)
		}
	}
}

func TestDataOverSharedMemory(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for i, c := range append(ways[:len(ways):len(ways)], coll.Config{}) {
			if parttest.Of(10) < 10 && (n+i)%2 != 0 {
				continue
			}
			onSHM(t, n, c, allData)
		}
	}
}

// ledger counts what is granted.
type ledger struct{ now, most int64 }

func (l *ledger) Acquire(_ context.Context, n int64) error {
	l.now += n
	l.most = max(l.most, l.now)
	return nil
}
func (l *ledger) Release(n int64) { l.now -= n }
func (l *ledger) Room() int64     { return 0 }

type budgeted struct {
	env.Env
	l *ledger
}

func (b budgeted) Budget() env.Budget { return b.l }

// An element may be longer than any message; memory for that comes from the budget, and goes back.
func TestElementsLongerThanMessages(t *testing.T) {
	type large [1000]int64
	add := func(dst, src []large) {
		for i := range dst {
			coll.Sum(dst[i][:], src[i][:])
		}
	}
	w := newWorld(t, sim.Config{Ranks: 5, Seed: 1}, small)
	work := with(small, func(ctx context.Context, e env.Env, all *coll.Team) error {
		sum, upTo, before := make([]large, 3), make([]large, 3), make([]large, 3)
		for i := range sum {
			for j := range sum[i] {
				sum[i][j] = int64(e.Rank()*1000 + i + j)
			}
		}
		copy(upTo, sum)
		copy(before, sum)
		first := e.Rank()
		if err := coll.AllReduce(ctx, all, sum, add); err != nil {
			return err
		}
		if err := coll.Scan(ctx, all, upTo, add); err != nil {
			return err
		}
		if err := coll.ExScan(ctx, all, before, add); err != nil {
			return err
		}
		for i := range sum {
			for j := range sum[i] {
				of := func(from, to int) (s int64) { // of ranks
					for r := from; r < to; r++ {
						s += int64(r*1000 + i + j)
					}
					return s
				}
				exclusive := of(0, first)
				if first == 0 {
					exclusive = of(0, 1) // its own, unchanged
				}
				if sum[i][j] != of(0, 5) || upTo[i][j] != of(0, first+1) || before[i][j] != exclusive {
					return fmt.Errorf("element %d, %d: %d, %d, %d", i, j, sum[i][j], upTo[i][j], before[i][j])
				}
			}
		}
		return nil
	})
	if err := w.Run(func(ctx context.Context, e env.Env) error {
		var l ledger
		err := work(ctx, budgeted{e, &l})
		if want := int64(2 * 8000); err == nil && (l.most != want || l.now != 0) {
			err = fmt.Errorf("the budget granted %d bytes at a time and has %d outside, want %d and 0", l.most, l.now, want)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// The sum of floats depends on the order of additions, and is the same on all ranks all the same.
func TestFloatsHaveTheSameBitsEverywhere(t *testing.T) {
	for n := 2; n <= 9; n++ {
		for i, c := range ways {
			for _, length := range []int{1, 20, 700} {
				sums := make([][]float64, n)
				onSim(t, sim.Config{Ranks: n, Seed: uint64(n)}, c, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
					buf := make([]float64, length)
					for k := range buf {
						buf[k] = math.Exp(float64((e.Rank()*31+k*17)%67)) / 3
					}
					sums[e.Rank()] = buf
					return coll.AllReduce(ctx, all, buf, coll.Sum)
				})
				for r := range sums {
					if !slices.Equal(sums[r], sums[0]) {
						t.Errorf("configuration %d, %d floats: rank %d of %d has other bits than rank 0", i, length, r, n)
					}
				}
			}
		}
	}
}

func TestFunctionsOfReductions(t *testing.T) {
	ints := func(f func(dst, src []int8), want []int8) {
		t.Helper()
		got := []int8{1, -7, 127, 0, 12, 5}
		f(got, []int8{3, -9, 1, 0, 10, 6})
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	ints(coll.Sum, []int8{4, -16, -128, 0, 22, 11})
	ints(coll.Min, []int8{1, -9, 1, 0, 10, 5})
	ints(coll.Max, []int8{3, -7, 127, 0, 12, 6})
	ints(coll.And, []int8{1, -7 & -9, 1, 0, 8, 4})
	ints(coll.Or, []int8{3, -7 | -9, 127, 0, 14, 7})
	ints(coll.Xor, []int8{2, -7 ^ -9, 126, 0, 6, 3})
	floats := []float64{1, math.NaN(), 3}
	coll.Max(floats, []float64{2, 1, math.NaN()})
	if floats[0] != 2 || !math.IsNaN(floats[1]) || !math.IsNaN(floats[2]) {
		t.Errorf("the greater ones are %v", floats)
	}
}
