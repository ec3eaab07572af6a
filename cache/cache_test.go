package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// regionSize is odd, so that the last line and the last page of a rank are cut.
const regionSize = 40*1024 + 13

// onSim runs f on rank 0 of a simulated job, with a cache of its own, and returns the world.
func onSim(t *testing.T, cfg sim.Config, c cache.Config, f func(ctx context.Context, x *fixture) error) *envtest.World {
	t.Helper()
	if cfg.Ranks == 0 {
		cfg.Ranks = 3
	}
	if cfg.MaxTime == 0 {
		cfg.MaxTime = time.Minute
	}
	w, err := envtest.NewWorld(cfg, env.Spec{Name: "front", Size: 192}, env.Spec{Name: "data", Size: regionSize}, env.Spec{Name: "behind", Size: 64})
	if err != nil {
		t.Fatal(err)
	}
	err = w.Run(func(ctx context.Context, e env.Env) error {
		if e.Rank() != 0 {
			return nil
		}
		return withCache(ctx, w, e, c, f)
	})
	if err != nil {
		t.Fatalf("seed %d, %+v: %v", cfg.Seed, c, err)
	}
	return w
}

// fixture is a cache and the lanes that it uses.
type fixture struct {
	*cache.Cache
	w     *envtest.World
	env   env.Env
	lanes env.Lanes
}

func withCache(ctx context.Context, w *envtest.World, e env.Env, cfg cache.Config, f func(ctx context.Context, x *fixture) error) error {
	lanes, err := e.NewLanes()
	if err != nil {
		return err
	}
	cfg.Region = "data"
	c, err := cache.New(e, lanes, cfg)
	if err != nil {
		return err
	}
	err = f(ctx, &fixture{c, w, e, lanes})
	return errors.Join(err, c.Verify(), c.Close(), lanes.Close())
}

// data is a rank's memory itself.
func (x *fixture) data(rank int) []byte { return x.w.Env(rank).Region("data").Bytes }

// counters are those of the network.
func (x *fixture) counters() fabric.Counters { return x.lanes.To(1).Counters().Load() }

// configs are caches whose parts are scarce in different ways.
func configs() map[string]cache.Config {
	all := map[string]cache.Config{
		"default": {},
		"ring 1":  {Ring: 1},
		"dirty 1": {Dirty: 1},
		"64":      {Pages: 32, PageSize: 64},
		"4096":    {Pages: 8, PageSize: 4096},
		"line":    {Pages: 16, PageSize: 256, LineSize: 8},
		"whole":   {Pages: 16, PageSize: 256, LineSize: 256, DirectMin: 2000},
		"direct":  {Pages: 16, DirectMin: 20},
		"admit":   {Pages: 16, PageSize: 256, Policy: cache.Admission},
		"admit 1": {Pages: 1, Policy: cache.Admission, NoBypass: true},
		"duel":    {Pages: 8, PageSize: 128, Policy: cache.Duel, NoBypass: true},
	}
	for n := 1; n <= 4; n++ {
		all[fmt.Sprintf("%d pages", n)] = cache.Config{Pages: n, PageSize: 128, DirectMin: 700}
	}
	return all
}

// A rank whose memory nobody else writes reads what it wrote, whatever it does in between.
func TestReadsFindWhatWasWritten(t *testing.T) {
	for name, cfg := range configs() {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(8) {
				model(t, seed, cfg)
			}
		})
	}
}

func model(t *testing.T, seed uint64, cfg cache.Config) {
	rng := rand.New(rand.NewPCG(seed, 7))
	want := [3][]byte{1: make([]byte, regionSize), 2: make([]byte, regionSize)}
	w := onSim(t, sim.Config{Seed: seed}, cfg, func(ctx context.Context, x *fixture) error {
		for r := 1; r < 3; r++ {
			for i := range want[r] {
				want[r][i] = byte(rng.Uint32())
			}
			copy(x.data(r), want[r])
		}
		buf := make([]byte, 3000)
		for step := range 600 {
			rank := 1 + rng.IntN(2)
			n := 1 + rng.IntN(1<<rng.IntN(9))
			if rng.IntN(20) == 0 {
				n = rng.IntN(3000)
			}
			off := uint64(rng.IntN(1 << (4 + rng.IntN(12)))) // mostly near the begin
			if off+uint64(n) > regionSize || rng.IntN(16) == 0 {
				off = regionSize - uint64(n)
			}
			b := buf[:n]
			var err error
			switch op := rng.IntN(40); {
			case op < 18:
				if err = x.Get(ctx, rank, off, b); err == nil && !bytes.Equal(b, want[rank][off:off+uint64(n)]) {
					at := 0
					for b[at] == want[rank][int(off)+at] {
						at++
					}
					err = fmt.Errorf("byte %d of %d bytes at %d of rank %d is %#x, want %#x", at, n, off, rank, b[at], want[rank][int(off)+at])
				}
			case op < 34:
				for i := range b {
					b[i] = byte(rng.Uint32())
				}
				copy(want[rank][off:], b)
				err = x.Put(ctx, rank, off, b)
			case op < 35:
				x.Acquire()
			case op < 36:
				if err = x.Release(ctx); err == nil && !(bytes.Equal(x.data(1), want[1]) && bytes.Equal(x.data(2), want[2])) {
					err = errors.New("a release leaves writes behind")
				}
			case op < 38: // a write that passes by, and is not waited for
				copy(want[rank][off:], b)
				if err = x.Direct(ctx, rank, off, n, true); err == nil {
					_, err = x.lanes.To(rank).Put(rank, x.env.Region("data").Off+off, append([]byte(nil), b...), fabric.Implicit)
				}
				if err == nil {
					err = x.Release(ctx)
				}
			case op < 39:
				if err = x.Direct(ctx, rank, off, n, false); err == nil && !bytes.Equal(x.data(rank)[off:off+uint64(n)], want[rank][off:off+uint64(n)]) {
					err = errors.New("a direct read would miss writes")
				}
			default:
				err = x.Prefetch(ctx, rank, off, n)
			}
			if err == nil {
				err = x.Verify()
			}
			if err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}
		return nil
	})
	for r := 1; r < 3; r++ {
		if !bytes.Equal(w.Env(r).Region("data").Bytes, want[r]) {
			t.Fatalf("seed %d: memory of rank %d is not what was written", seed, r)
		}
		for _, name := range []string{"front", "behind"} {
			if b := w.Env(r).Region(name).Bytes; !bytes.Equal(b, make([]byte, len(b))) {
				t.Fatalf("seed %d: region %q of rank %d was written", seed, name, r)
			}
		}
	}
}

func TestAGetOverPartlyDirtyBytesIsOneRoundTrip(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		for i := range x.data(1) {
			x.data(1)[i] = byte(i)
		}
		if err := x.Put(ctx, 1, 70, []byte{200, 201, 202}); err != nil {
			return err
		}
		before := x.counters()
		b := make([]byte, 8)
		if err := x.Get(ctx, 1, 68, b); err != nil {
			return err
		}
		after := x.counters()
		if n := after.Doorbells - before.Doorbells; n != 1 || after.Puts != before.Puts || after.Gets != before.Gets+1 {
			return fmt.Errorf("%d doorbells, %d puts, %d gets", n, after.Puts-before.Puts, after.Gets-before.Gets)
		}
		if want := []byte{68, 69, 200, 201, 202, 73, 74, 75}; !bytes.Equal(b, want) {
			return fmt.Errorf("read %v, want %v", b, want)
		}
		return nil
	})
}

func TestAGetAcrossPagesIsOneRoundTrip(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{PageSize: 128}, func(ctx context.Context, x *fixture) error {
		before, b := x.counters(), make([]byte, 600)
		if err := x.Get(ctx, 1, 100, b); err != nil {
			return err
		}
		after := x.counters()
		if n := after.Doorbells - before.Doorbells; n != 1 || after.Gets != before.Gets+6 {
			return fmt.Errorf("%d doorbells, %d gets", n, after.Gets-before.Gets)
		}
		return nil
	})
}

func TestAFlushIsAChainForEachRank(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{Pages: 64, Dirty: 64}, func(ctx context.Context, x *fixture) error {
		for i := range uint64(30) {
			if err := x.Put(ctx, 1+int(i%2), i*1024, []byte{1, 2, 3}); err != nil {
				return err
			}
		}
		before := x.counters()
		if err := x.Release(ctx); err != nil {
			return err
		}
		after := x.counters()
		if n := after.Doorbells - before.Doorbells; n != 1 || after.Puts != before.Puts+30 {
			return fmt.Errorf("%d doorbells, %d puts", n, after.Puts-before.Puts)
		}
		return nil
	})
}

// What is in flight at an acquire was read before it.
func TestWhatIsInFlightAtAnAcquireIsNotKept(t *testing.T) {
	for seed := range uint64(20) {
		onSim(t, sim.Config{Seed: seed}, cache.Config{}, func(ctx context.Context, x *fixture) error {
			if err := x.Prefetch(ctx, 1, 0, 8); err != nil {
				return err
			}
			x.Acquire()
			// After the peer answered, and before the answer is here or not.
			if err := x.env.Host().(interface{ Sleep(time.Duration) }); err != nil {
				err.Sleep(time.Duration(seed) * 200 * time.Nanosecond)
			}
			x.data(1)[3] = 9
			b := make([]byte, 8)
			if err := x.Get(ctx, 1, 0, b); err != nil {
				return err
			}
			if b[3] != 9 {
				return errors.New("the get returned what was prefetched before the acquire")
			}
			return nil
		})
	}
}

func TestErrorsOfLostWritesAreReported(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		for r := 1; r < 3; r++ {
			if err := x.Put(ctx, r, 5, []byte{7}); err != nil {
				return err
			}
		}
		x.w.Kill(1)
		err := x.Release(ctx)
		var failed *fabric.OpError
		if !errors.Is(err, fabric.ErrPeerDown) || !errors.As(err, &failed) || failed.Rank != 1 || failed.Off != x.env.Region("data").Off+5 {
			return fmt.Errorf("a release that lost writes: %w", err)
		}
		if x.data(2)[5] != 7 {
			return errors.New("writes to another rank are lost")
		}
		if err := x.Release(ctx); err != nil {
			return fmt.Errorf("the error comes twice: %w", err)
		}
		if err := x.Get(ctx, 1, 5, make([]byte, 1)); !errors.Is(err, fabric.ErrPeerDown) {
			return fmt.Errorf("a get of what was lost: %w", err)
		}
		if err := errors.Join(x.Verify(), x.Put(ctx, 1, 5, []byte{7})); err != nil {
			return err
		}
		if err := x.Close(); !errors.Is(err, fabric.ErrPeerDown) {
			return fmt.Errorf("a close that lost writes: %w", err)
		}
		return nil
	})
}

func TestAReleaseThatMayNotWaitBegins(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		if err := x.Put(ctx, 1, 5, []byte{7}); err != nil {
			return err
		}
		why := errors.New("no wait")
		ended, cancel := context.WithCancelCause(context.Background())
		cancel(why)
		if err := x.Release(ended); !errors.Is(err, why) {
			return fmt.Errorf("before it is done: %w", err)
		}
		before := x.counters()
		if err := errors.Join(x.Release(ctx), x.Release(ended)); err != nil || x.data(1)[5] != 7 {
			return fmt.Errorf("byte %d: %w", x.data(1)[5], err)
		}
		if x.counters().Puts != before.Puts {
			return errors.New("it did not begin")
		}
		return nil
	})
}

func TestMistakesAreErrors(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		b := make([]byte, 8)
		bounds, rank := new(fabric.BoundsError), new(fabric.RankError)
		for _, off := range []uint64{regionSize - 7, regionSize, 1<<64 - 8, 1<<64 - 1, 1 << 63} {
			for _, err := range []error{x.Get(ctx, 1, off, b), x.Put(ctx, 1, off, b), x.Direct(ctx, 1, off, 8, true)} {
				if !errors.As(err, &bounds) {
					return fmt.Errorf("offset %d: %w", off, err)
				}
			}
			if err := x.Prefetch(ctx, 1, off, 8); err != nil {
				return fmt.Errorf("a prefetch at %d: %w", off, err)
			}
		}
		for _, r := range []int{-1, 3, 1 << 40} {
			if err := x.Get(ctx, r, 0, b); !errors.As(err, &rank) {
				return fmt.Errorf("rank %d: %w", r, err)
			}
		}
		return errors.Join(x.Get(ctx, 1, regionSize, nil), x.Put(ctx, 1, regionSize, nil))
	})
}
