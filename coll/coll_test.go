package coll_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

// small makes messages of 64 to some hundred bytes, so that few bytes are many messages.
var small = coll.Config{Slots: 8, SlotBytes: 4 << 10}

// program is what each rank does with the team of all.
type program func(ctx context.Context, e env.Env, all *coll.Team) error

// onSim runs a program in a simulated world.
func onSim(t *testing.T, cfg sim.Config, c coll.Config, before func(w *envtest.World), f program) *envtest.World {
	t.Helper()
	w := newWorld(t, cfg, c)
	if before != nil {
		before(w)
	}
	if err := w.Run(with(c, f)); err != nil {
		t.Fatalf("%d ranks, seed %d: %v", cfg.Ranks, cfg.Seed, err)
	}
	return w
}

func newWorld(t *testing.T, cfg sim.Config, c coll.Config) *envtest.World {
	t.Helper()
	spec, err := coll.Spec(cfg.Ranks, c)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.MaxTime == 0 {
		cfg.MaxTime = time.Minute
	}
	w, err := envtest.NewWorld(cfg, spec)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// onSHM runs it on ranks that share memory.
func onSHM(t testing.TB, n int, c coll.Config, f program) {
	t.Helper()
	spec, err := coll.Spec(n, c)
	if err != nil {
		t.Fatal(err)
	}
	envtest.SHM(t, n, with(c, f), spec)
}

func with(c coll.Config, f program) func(ctx context.Context, e env.Env) error {
	return func(ctx context.Context, e env.Env) error {
		m, err := coll.Open(e, c)
		if err != nil {
			return err
		}
		err = f(ctx, e, m.All())
		return errors.Join(err, m.Close())
	}
}

// fill makes bytes that tell who wrote them.
func fill(n int, seed ...int) []byte {
	b := make([]byte, n)
	var x uint64 = 88172645463325252
	for _, s := range seed {
		x = (x ^ uint64(s+1)) * 0x9E3779B97F4A7C15
	}
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// sizes of payloads: none, short, about a message, many.
var sizes = []int{0, 1, 8, 56, 57, 64, 200, 1000, 10_000}

// everything runs each operation from each root with each size, through lanes of its own too.
func everything(ctx context.Context, e env.Env, t *coll.Team) error {
	lanes, err := e.NewLanes()
	if err != nil {
		return err
	}
	defer lanes.Close()
	own := t.Through(lanes)
	for i, n := range sizes {
		for _, ops := range []interface {
			Barrier(context.Context) error
			Broadcast(context.Context, int, []byte) error
			AllGather(context.Context, []byte) ([][]byte, error)
		}{t, own} {
			if err := ops.Barrier(ctx); err != nil {
				return err
			}
			for root := range t.Size() {
				buf, want := make([]byte, n), fill(n, i, root)
				if t.Rank() == root {
					copy(buf, want)
				}
				if err := ops.Broadcast(ctx, root, buf); err != nil {
					return err
				}
				if !bytes.Equal(buf, want) {
					return fmt.Errorf("%d bytes of root %d arrived changed at %d", n, root, t.Rank())
				}
			}
			all, err := ops.AllGather(ctx, fill(n+t.Rank()%3, i, t.Rank()))
			if err != nil {
				return err
			}
			if err := gathered(t, all, n, i); err != nil {
				return err
			}
		}
	}
	return nil
}

func gathered(t *coll.Team, all [][]byte, n, i int) error {
	if len(all) != t.Size() {
		return fmt.Errorf("%d blobs of %d members", len(all), t.Size())
	}
	for r, b := range all {
		if !bytes.Equal(b, fill(n+r%3, i, r)) {
			return fmt.Errorf("the blob of %d (about %d bytes) is wrong at %d", r, n, t.Rank())
		}
	}
	return nil
}

// teamSizes of simulated teams: all up to 17 in the plain build, in the others some.
func teamSizes() []int {
	if parttest.Of(10) < 10 {
		return []int{1, 2, 3, 4, 5, 8, 17}
	}
	return []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}
}

func TestOperationsGiveTheRightBytes(t *testing.T) {
	for _, n := range teamSizes() {
		onSim(t, sim.Config{Ranks: n, Seed: uint64(n)}, small, nil,
			func(ctx context.Context, e env.Env, all *coll.Team) error { return everything(ctx, e, all) })
	}
}

func TestOperationsOverSharedMemory(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		onSHM(t, n, small, everything)
		onSHM(t, n, coll.Config{}, everything)
	}
}

// A barrier that ends before all have come would let a rank see an old value.
func TestNobodyLeavesABarrierBeforeAllHaveCome(t *testing.T) {
	for n := 1; n <= 17; n++ {
		came := make([]int, n)
		onSim(t, sim.Config{Ranks: n, Seed: uint64(n)}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
			for round := 1; round <= 20; round++ {
				e.Host().Sleep(time.Duration(e.Rank()*round%7) * time.Microsecond)
				came[e.Rank()] = round
				if err := all.Barrier(ctx); err != nil {
					return err
				}
				for r, c := range came {
					if c < round {
						return fmt.Errorf("rank %d left barrier %d before rank %d came", e.Rank(), round, r)
					}
				}
			}
			return nil
		})
	}
}

// Of 10,000 ranks none sends more than some multiple of log2(10,000) = 14 messages, counted.
func TestMessagesGrowWithTheLogarithmOfRanks(t *testing.T) {
	n := parttest.Of(10_000)
	c := coll.Config{Slots: 1, SlotBytes: 4 << 10}
	const rounds = 4
	puts := make([][2]uint64, n)
	onSim(t, sim.Config{Ranks: n, Seed: 1}, c, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		counted := func(f func() error) (uint64, error) {
			from := all.Counters().Puts
			err := f()
			return all.Counters().Puts - from, err
		}
		var err error
		if puts[e.Rank()][0], err = counted(func() error {
			for range rounds {
				if err := all.Barrier(ctx); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		puts[e.Rank()][1], err = counted(func() error {
			for i := range rounds {
				root := i * n / rounds
				buf := make([]byte, 8)
				if e.Rank() == root {
					binary.LittleEndian.PutUint64(buf, uint64(root+1))
				}
				if err := all.Broadcast(ctx, root, buf); err != nil {
					return err
				}
				if got := binary.LittleEndian.Uint64(buf); got != uint64(root+1) {
					return fmt.Errorf("rank %d got %d from root %d", e.Rank(), got, root)
				}
			}
			return nil
		})
		return err
	})
	var most, sum [2]uint64
	for _, p := range puts {
		for k := range p {
			most[k], sum[k] = max(most[k], p[k]), sum[k]+p[k]
		}
	}
	t.Logf("%d ranks, %d barriers: at most %d puts a rank, %.2f on average; %d broadcasts: at most %d, %.2f on average",
		n, rounds, most[0], float64(sum[0])/float64(n), rounds, most[1], float64(sum[1])/float64(n))
	rails := uint64(14)
	// A barrier: a word for each rail.
	if most[0] > rounds*rails {
		t.Errorf("%d barriers took %d puts on one rank, want at most %d", rounds, most[0], rounds*rails)
	}
	// A broadcast: two puts for each child, at most one child a rail, and an acknowledgement.
	if most[1] > rounds*(2*rails+1) {
		t.Errorf("%d broadcasts took %d puts on one rank, want at most %d", rounds, most[1], rounds*(2*rails+1))
	}
}

// A message of the rails of 16 ranks has 4 KiB, a place of a pair 32: of each piece the data, its
// word and a grant.
func TestLongBlocksAreGatheredInLargePieces(t *testing.T) {
	const n, pieces = 16, 2
	onSim(t, sim.Config{Ranks: n, Seed: 1}, coll.Config{}, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		src, dst := make([]byte, pieces*32<<10), make([]byte, n*pieces*32<<10)
		if err := coll.AllGather(ctx, all, dst, src); err != nil { // it also learns who is near
			return err
		}
		before := all.Counters().Puts
		err := coll.AllGather(ctx, all, dst, src)
		if puts := all.Counters().Puts - before; puts > (n-1)*pieces*3 {
			return fmt.Errorf("rank %d: %d puts, want at most %d", e.Rank(), puts, (n-1)*pieces*3)
		}
		return err
	})
}
