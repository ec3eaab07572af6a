package coll_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/fabric/sim"
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

// composed is what reductions of the first ranks must give.
func composed(n, id, ranks int) []affine {
	all := maps(n, id, 0)
	for r := 1; r < ranks; r++ {
		compose(all, maps(n, id, r))
	}
	return all
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

// reductions does each with a length, and root.
func reductions(ctx context.Context, on coll.On, rank, size, n, id, root int) error {
	what := fmt.Sprintf("%d maps at %d of %d", n, rank, size)
	buf := maps(n, id, rank)
	if err := coll.AllReduce(ctx, on, buf, compose); err != nil {
		return err
	}
	if err := same("all-reduce of "+what, buf, composed(n, id, size)); err != nil {
		return err
	}
	buf = maps(n, id+1, rank)
	if err := coll.Reduce(ctx, on, root, buf, compose); err != nil {
		return err
	}
	want := maps(n, id+1, rank)
	if rank == root {
		want = composed(n, id+1, size)
	}
	if err := same(fmt.Sprint("reduce to ", root, " of ", what), buf, want); err != nil {
		return err
	}
	buf = maps(n, id+2, rank)
	if err := coll.Scan(ctx, on, buf, compose); err != nil {
		return err
	}
	if err := same("scan of "+what, buf, composed(n, id+2, rank+1)); err != nil {
		return err
	}
	buf = maps(n, id+3, rank)
	if err := coll.ExScan(ctx, on, buf, compose); err != nil {
		return err
	}
	want = maps(n, id+3, 0)
	if rank > 0 {
		want = composed(n, id+3, rank)
	}
	return same("exclusive scan of "+what, buf, want)
}

// block is what a rank sends another.
func block(n, id, from, to int) []byte { return fill(n, id, from, to) }

func blocksOf(size int, f func(i int) []byte) (all []byte, counts []int) {
	for i := range size {
		b := f(i)
		all, counts = append(all, b...), append(counts, len(b))
	}
	return all, counts
}

// exchanges does each with a length, and root.
func exchanges(ctx context.Context, on coll.On, rank, size, n, id, root int) error {
	what := fmt.Sprintf("of %d bytes, root %d, at %d of %d", n, root, rank, size)
	out, _ := blocksOf(size, func(i int) []byte { return block(n, id, rank, i) })
	in, _ := blocksOf(size, func(i int) []byte { return block(n, id, i, rank) })
	got := make([]byte, len(in))
	if err := coll.AllToAll(ctx, on, got, out); err != nil {
		return err
	}
	if err := same("all-to-all "+what, got, in); err != nil {
		return err
	}
	length := func(from, to int) int { return n * ((from*3 + to*5 + id) % 4) / 2 }
	outV, outCounts := blocksOf(size, func(i int) []byte { return block(length(rank, i), id, rank, i) })
	inV, inCounts := blocksOf(size, func(i int) []byte { return block(length(i, rank), id, i, rank) })
	gotV := make([]byte, len(inV))
	if err := coll.AllToAllV(ctx, on, gotV, inCounts, outV, outCounts); err != nil {
		return err
	}
	if err := same("all-to-all with counts "+what, gotV, inV); err != nil {
		return err
	}
	all, _ := blocksOf(size, func(i int) []byte { return block(n, id, i, i) })
	got = make([]byte, len(all))
	if err := coll.AllGather(ctx, on, got, block(n, id, rank, rank)); err != nil {
		return err
	}
	if err := same("all-gather "+what, got, all); err != nil {
		return err
	}
	fromRoot, _ := blocksOf(size, func(i int) []byte { return block(n, id, root, i) })
	if rank != root {
		fromRoot = nil
	}
	one := make([]byte, n)
	if err := coll.Scatter(ctx, on, root, one, fromRoot); err != nil {
		return err
	}
	if err := same("scatter "+what, one, block(n, id, root, rank)); err != nil {
		return err
	}
	fromRootV, counts := blocksOf(size, func(i int) []byte { return block(length(i, i), id, root, i) })
	if rank != root {
		fromRootV, counts = nil, nil
	}
	one = make([]byte, length(rank, rank))
	if err := coll.ScatterV(ctx, on, root, one, fromRootV, counts); rank == root && err != nil {
		return err
	} else if err != nil {
		return err
	}
	if err := same("scatter with counts "+what, one, block(length(rank, rank), id, root, rank)); err != nil {
		return err
	}
	toRoot, _ := blocksOf(size, func(i int) []byte { return block(n, id, i, root) })
	got = make([]byte, len(toRoot))
	if rank != root {
		toRoot, got = nil, nil
	}
	if err := coll.Gather(ctx, on, root, got, block(n, id, rank, root)); err != nil {
		return err
	}
	if err := same("gather "+what, got, toRoot); err != nil {
		return err
	}
	toRootV, counts := blocksOf(size, func(i int) []byte { return block(length(i, i), id, i, root) })
	gotV = make([]byte, len(toRootV))
	if rank != root {
		toRootV, gotV, counts = nil, nil, nil
	}
	if err := coll.GatherV(ctx, on, root, gotV, counts, block(length(rank, rank), id, rank, root)); err != nil {
		return err
	}
	return same("gather with counts "+what, gotV, toRootV)
}

// lengths of reductions in elements: none, short, of about a message or a place, many.
var lengths = []int{0, 1, 7, 30, 100, 513, 3000}

// allData runs each operation on data with each length, through lanes of its own too.
func allData(ctx context.Context, e env.Env, t *coll.Team) error {
	lanes, err := e.NewLanes()
	if err != nil {
		return err
	}
	defer lanes.Close()
	for i, n := range lengths {
		for j, on := range []coll.On{t, t.Through(lanes)} {
			root := (2*i + j) % t.Size()
			if err := reductions(ctx, on, t.Rank(), t.Size(), n, 10*i, root); err != nil {
				return err
			}
			if err := exchanges(ctx, on, t.Rank(), t.Size(), n, 10*i, root); err != nil {
				return err
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
	for n := 1; n <= 17; n++ {
		for i, c := range ways {
			onSim(t, sim.Config{Ranks: n, Seed: uint64(10*n + i)}, c, nil, allData)
		}
	}
}

func TestDataOverSharedMemory(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for _, c := range append(ways[:len(ways):len(ways)], coll.Config{}) {
			onSHM(t, n, c, allData)
		}
	}
}
