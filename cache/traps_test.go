package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// The tests of this file are what other caches of this kind have got wrong: each fails without the
// line that avoids it (planted_test.go).

// Chapel's cache waits for completions in the order of the requests, whatever rank they are to.
func TestNoRankWaitsForAnother(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		x.w.Slow(1, time.Millisecond)
		if err := errors.Join(x.Prefetch(ctx, 1, 0, 64), x.Put(ctx, 1, 4096, []byte{1})); err != nil {
			return err
		}
		before := x.w.Now()
		if err := x.Get(ctx, 2, 0, make([]byte, 8)); err != nil {
			return err
		}
		if d := x.w.Now() - before; d > 500*time.Microsecond {
			return fmt.Errorf("a get of rank 2 took %v, with others to a slow rank in flight", d)
		}
		return nil
	})
}

// There, prefetches of a full ring block, as the test for that can never be true.
func TestAPrefetchNeverWaits(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{Ring: 2}, func(ctx context.Context, x *fixture) error {
		before := x.w.Now()
		for i := range uint64(40) {
			if err := errors.Join(x.Prefetch(ctx, 1, i*1024, 1024), x.Verify()); err != nil {
				return err
			}
		}
		if d := x.w.Now() - before; d > 40*100*time.Nanosecond { // what polling costs
			return fmt.Errorf("40 prefetches took %v", d)
		}
		if n := x.Stats().Flights; n > 4 {
			return fmt.Errorf("%d are in flight, with a ring of 2", n)
		}
		return nil
	})
}

// There, one of more than two pages may write behind its page.
func TestALargePrefetchStaysInItsPages(t *testing.T) {
	for _, cfg := range []cache.Config{{}, {Pages: 2}, {Pages: 8, PageSize: 64}, {Pages: 64, PageSize: 4096}} {
		onSim(t, sim.Config{}, cfg, func(ctx context.Context, x *fixture) error {
			for i := range x.data(1) {
				x.data(1)[i] = byte(i * 5 >> 3)
			}
			got := make([]byte, regionSize)
			for _, off := range []uint64{0, 1000, 5, 30000, regionSize - 5000} {
				if err := errors.Join(x.Prefetch(ctx, 1, off, regionSize*2), x.Verify()); err != nil {
					return err
				}
				for at := off; at < regionSize; at += 50 {
					n := min(50, regionSize-at)
					if err := x.Get(ctx, 1, at, got[at:at+n]); err != nil {
						return err
					}
				}
				if !bytes.Equal(got[off:], x.data(1)[off:]) {
					return fmt.Errorf("a prefetch from %d on brought other bytes", off)
				}
			}
			return nil
		})
	}
}

func TestACloseWaitsNoLongerThanItMay(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		x.w.Delay(0, 1, time.Second)
		if err := x.Put(ctx, 1, 0, []byte("late")); err != nil {
			return err
		}
		before := x.env.Host().Now()
		bound, cancel := x.env.Host().WithTimeout(ctx, time.Millisecond)
		defer cancel()
		err := x.CloseWithin(bound)
		if took := x.env.Host().Now() - before; err == nil || took > 2*time.Millisecond {
			return fmt.Errorf("%v after %v", err, took)
		}
		return x.lanes.To(1).Flush(ctx) // or its memory goes with the test
	})
}

// There, a thread's end forgets what it has not sent.
func TestACloseLosesNothing(t *testing.T) {
	w := onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
		return x.Put(ctx, 1, 100, []byte("kept"))
	})
	if got := w.Env(1).Region("data").Bytes[100:104]; string(got) != "kept" {
		t.Errorf("the memory has %q", got)
	}
}

// There, readahead fetched more and more for nothing, until it was made timid for all.
func TestReadaheadForNothingIsBounded(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{NoBypass: true}, func(ctx context.Context, x *fixture) error {
		b := make([]byte, 8)
		for i := range uint64(3000) { // four lines each, and then an acquire
			for k := range uint64(4) {
				if err := x.Get(ctx, 1, i*1024%(32<<10)+64*k, b); err != nil {
					return err
				}
			}
			x.Acquire()
		}
		if s := x.Stats(); s.PrefetchUnused > s.Gets/20 {
			return fmt.Errorf("%d lines of %d gets were fetched for nothing", s.PrefetchUnused, s.Gets)
		}
		return nil
	})
}

// A get that comes back after the write that it overtook is not kept.
func TestAGetDoesNotUndoAWrite(t *testing.T) {
	for seed := range uint64(40) {
		onSim(t, sim.Config{Seed: seed}, cache.Config{}, func(ctx context.Context, x *fixture) error {
			for i := range x.data(1) {
				x.data(1)[i] = 1
			}
			b := make([]byte, 8)
			if err := errors.Join(x.Put(ctx, 1, 0, []byte{2}), x.Prefetch(ctx, 1, 0, 1024), x.Release(ctx)); err != nil {
				return err
			}
			if err := x.Get(ctx, 1, 0, b); err != nil {
				return err
			}
			if b[0] != 2 || b[1] != 1 {
				return fmt.Errorf("read %v", b)
			}
			return x.Verify()
		})
	}
}

// A write that passes by makes a copy old, also while it is in flight.
func TestWhatPassedByIsNotKept(t *testing.T) {
	for seed := range uint64(20) {
		onSim(t, sim.Config{Seed: seed}, cache.Config{}, func(ctx context.Context, x *fixture) error {
			b := make([]byte, 8)
			if err := x.Get(ctx, 1, 64, b); err != nil {
				return err
			}
			if err := x.Direct(ctx, 1, 64, 1, true); err != nil {
				return err
			}
			off := x.env.Region("data").Off + 64
			if _, err := x.lanes.To(1).Put(1, off, []byte{5}, fabric.Implicit); err != nil {
				return err
			}
			for range 2 { // the second finds what the first kept
				if err := errors.Join(x.Get(ctx, 1, 64, b), x.Verify()); err != nil {
					return err
				}
			}
			if err := errors.Join(x.Release(ctx), x.Get(ctx, 1, 64, b)); err != nil || b[0] != 5 {
				return fmt.Errorf("after the release %d is read, %w", b[0], err)
			}
			return nil
		})
	}
}

// What was lost nobody reads, also where copies survive an acquire.
func TestLostBytesAreNotRead(t *testing.T) {
	for _, hint := range []cache.Hint{cache.Default, cache.Private} {
		onSim(t, sim.Config{}, cache.Config{}, func(ctx context.Context, x *fixture) error {
			x.Hint(1, 0, 4096, hint)
			if err := errors.Join(x.Get(ctx, 1, 0, make([]byte, 8)), x.Put(ctx, 1, 0, []byte{1})); err != nil {
				return err
			}
			if x.Hit(1, 0, 8) == nil {
				return errors.New("the bytes cannot be read before")
			}
			x.w.Kill(1)
			if err := x.Release(ctx); !errors.Is(err, fabric.ErrPeerDown) {
				return fmt.Errorf("a release of what is lost: %w", err)
			}
			if x.Hit(1, 0, 8) != nil {
				return fmt.Errorf("hint %d: what was lost is read", hint)
			}
			return x.Verify()
		})
	}
}
