package fabrictest

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/fabric"
)

// spread opens lanes for concurrent use on every rank, two where there are two.
func (g *group) spread() []fabric.Lane {
	var ls []fabric.Lane
	for r := range g.ranks {
		per := 2
		if max := g.ranks[r].Net.Limits().Lanes; max == 1 {
			per = 1
		}
		for range per {
			ls = append(ls, g.lane(r))
		}
	}
	return ls
}

// concurrentAtomics adds by fetch-add and by compare-swap from all ranks to one
// word each; every old value appears once.
func (g *group) concurrentAtomics() {
	seg := g.ranks[1].Segment
	*wordAt(seg, 0), *wordAt(seg, 8) = 0, 0
	ls := g.spread()
	rounds := g.o.Rounds
	seen := make([]atomic.Bool, len(ls)*rounds)
	g.each(len(ls), func(ctx context.Context, i int) error {
		for range rounds {
			old, err := atomicOnce(ctx, ls[i], 0, fabric.Atomic{Operand: 1})
			if err != nil {
				return err
			}
			if old >= uint64(len(seen)) || seen[old].Swap(true) {
				return fmt.Errorf("fetch-add returned %d, out of range or twice", old)
			}
		}
		return nil
	})
	g.each(len(ls), func(ctx context.Context, i int) error {
		for range rounds / 4 {
			for guess := uint64(0); ; {
				old, err := atomicOnce(ctx, ls[i], 8, fabric.Atomic{Op: fabric.CompareSwap, Operand: guess + 1, Compare: guess})
				if err != nil {
					return err
				}
				if old == guess {
					break
				}
				guess = old
			}
		}
		return nil
	})
	for off, want := range map[int]uint64{0: uint64(len(ls) * rounds), 8: uint64(len(ls) * (rounds / 4))} {
		if got := *wordAt(seg, off); got != want {
			g.Fatalf("%d additions to the word at %d gave %d", want, off, got)
		}
	}
}

// atomicOnce is amo for goroutines, which must not end the check.
func atomicOnce(ctx context.Context, l fabric.Lane, off uint64, a fabric.Atomic) (uint64, error) {
	old, h, err := l.Atomic(1, off, a, 0)
	if err != nil || h == fabric.Done {
		return old, err
	}
	return l.Wait(ctx, h)
}

// concurrentSwaps pass tokens through one word: at the end each token was
// taken out once, but for the one that is still there.
func (g *group) concurrentSwaps() {
	word := wordAt(g.ranks[1].Segment, 0)
	*word = 0
	ls := g.spread()
	taken := make([]atomic.Bool, len(ls)*g.o.Rounds+1)
	g.each(len(ls), func(ctx context.Context, i int) error {
		for k := range g.o.Rounds {
			token := uint64(i*g.o.Rounds + k + 1)
			old, err := atomicOnce(ctx, ls[i], 0, fabric.Atomic{Op: fabric.Swap, Operand: token})
			if err != nil {
				return err
			}
			if old >= uint64(len(taken)) || taken[old].Swap(true) {
				return fmt.Errorf("token %d came out twice, or was never put in", old)
			}
		}
		return nil
	})
	for token := range taken {
		if !taken[token].Load() && uint64(token) != *word {
			g.Fatalf("token %d was lost", token)
		}
	}
}

// messagePassing: puts of one lane to one peer are seen in order, so that a
// flag put last announces the data put first. The reader answers likewise.
func (g *group) messagePassing() {
	const dataAt = 4096
	writer, reader := g.lane(0), g.lane(1)
	flag, ack := wordAt(g.ranks[1].Segment, 0), wordAt(g.ranks[0].Segment, 0)
	*flag, *ack = 0, 0
	sizes := make([]int, g.o.Rounds)
	for i := range sizes {
		sizes[i] = 1 + g.rng.IntN(1<<g.rng.IntN(15))
	}
	data := make([]byte, 1<<15)
	g.each(2, func(ctx context.Context, side int) error {
		if side == 1 {
			return g.readMessages(ctx, reader, flag, dataAt, sizes)
		}
		for k, n := range sizes {
			fill(data[:n], byte(k+1))
			// The data in two puts, the flag in a third; none waits for another.
			for _, part := range [][2]int{{0, n / 2}, {n / 2, n}} {
				if _, err := writer.Put(1, uint64(dataAt+part[0]), data[part[0]:part[1]], fabric.Implicit); err != nil {
					return err
				}
			}
			if _, err := writer.Put(1, 0, word8(uint64(k+1)), fabric.Implicit); err != nil {
				return err
			}
			// The source stays as it is until the answer came.
			if err := writer.WaitWord(ctx, ack, fabric.GreaterEqual, uint64(k+1), nil); err != nil {
				return fmt.Errorf("writer, round %d: %w", k, err)
			}
		}
		return writer.Flush(ctx)
	})
}

func (g *group) readMessages(ctx context.Context, l fabric.Lane, flag *uint64, dataAt int, sizes []int) error {
	for k, n := range sizes {
		if err := l.WaitWord(ctx, flag, fabric.GreaterEqual, uint64(k+1), nil); err != nil {
			return fmt.Errorf("reader, round %d: %w", k, err)
		}
		for i, b := range g.ranks[1].Segment[dataAt : dataAt+n] {
			if b != byte(k+1) {
				return fmt.Errorf("round %d: the flag came before byte %d of %d of the data", k, i, n)
			}
		}
		h, err := l.Put(0, 0, word8(uint64(k+1)), 0)
		if err == nil {
			_, err = l.Wait(ctx, h)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// flushOrders: of two ranks that each put a word and then, after a flush, get
// the other's, at least one sees the other's put.
func (g *group) flushOrders() {
	const pair = 128 // bytes: two words, each on a cache line of its own
	rounds := min(g.o.Rounds, g.o.SegmentSize/pair)
	clear(g.ranks[1].Segment[:rounds*pair])
	ls := []fabric.Lane{g.lane(0), g.lane(1)}
	saw := [2][]byte{make([]byte, 8*rounds), make([]byte, 8*rounds)}
	var arrived atomic.Int64
	one := word8(1)
	g.each(2, func(ctx context.Context, i int) error {
		mine, other := uint64(64*i), uint64(64*(1-i))
		for k := range rounds {
			if err := meet(ctx, g.host, &arrived, int64(2*(k+1))); err != nil {
				return err
			}
			base := uint64(k * pair)
			if _, err := ls[i].Put(1, base+mine, one, fabric.Implicit); err != nil {
				return err
			}
			if err := ls[i].Flush(ctx); err != nil {
				return err
			}
			h, err := ls[i].Get(1, base+other, saw[i][8*k:8*k+8], 0)
			if err != nil {
				return err
			}
			if _, err := ls[i].Wait(ctx, h); err != nil {
				return err
			}
		}
		return nil
	})
	for k := range rounds {
		if *wordAt(saw[0], 8*k) == 0 && *wordAt(saw[1], 8*k) == 0 {
			g.Fatalf("round %d: neither rank saw what the other had flushed", k)
		}
	}
}

// meet lets goroutines go on together, as closely as can be.
func meet(ctx context.Context, h Host, arrived *atomic.Int64, all int64) error {
	arrived.Add(1)
	for spins := 0; arrived.Load() < all; spins++ {
		if spins%1000 == 999 {
			h.Yield()
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}
