package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// begun is a get that was begun.
type begun struct {
	h        fabric.Handle
	rank     int
	off      uint64
	dst      []byte
	implicit bool
	passed   bool // the cache by
}

func (g *begun) overlaps(rank int, off uint64, n int) bool {
	return g.rank == rank && off < g.off+uint64(len(g.dst)) && g.off < off+uint64(n)
}

func (g *begun) check(want *[3][]byte) error {
	if w := want[g.rank][g.off:][:len(g.dst)]; !bytes.Equal(g.dst, w) {
		return fmt.Errorf("%d bytes at %d of rank %d are % x, want % x", len(g.dst), g.off, g.rank, g.dst, w)
	}
	return nil
}

// Bytes that nobody writes meanwhile are what they were, whatever a rank does between the begin of
// a get and its end.
func TestGetsInFlightFindWhatWasWritten(t *testing.T) {
	for name, cfg := range configs() {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(8) {
				getsModel(t, seed, cfg)
			}
		})
	}
}

func getsModel(t *testing.T, seed uint64, cfg cache.Config) {
	rng := rand.New(rand.NewPCG(seed, 11))
	want := [3][]byte{1: make([]byte, regionSize), 2: make([]byte, regionSize)}
	onSim(t, sim.Config{Seed: seed}, cfg, func(ctx context.Context, x *fixture) error {
		for r := 1; r < 3; r++ {
			for i := range want[r] {
				want[r][i] = byte(rng.Uint32())
			}
			copy(x.data(r), want[r])
		}
		gets, begin := x.Lanes()[0], x.env.Region("data").Off
		var all []*begun
		ended := func(i int, err error) error {
			g := all[i]
			all = slices.Delete(all, i, i+1)
			return errors.Join(err, g.check(&want))
		}
		flush := func() error {
			err := gets.Flush(ctx)
			for _, g := range all {
				err = errors.Join(err, g.check(&want))
			}
			all = slices.DeleteFunc(all, func(g *begun) bool { return g.implicit })
			return err
		}
		step := func() error {
			rank, n := 1+rng.IntN(2), 1+rng.IntN(1<<rng.IntN(10))
			off := uint64(rng.IntN(1 << (4 + rng.IntN(12))))
			if off+uint64(n) > regionSize || rng.IntN(16) == 0 {
				off = regionSize - uint64(n)
			}
			free := !slices.ContainsFunc(all, func(g *begun) bool { return g.overlaps(rank, off, n) })
			b := make([]byte, n)
			switch op := rng.IntN(40); {
			case op < 18:
				g := &begun{rank: rank, off: off, dst: b, implicit: rng.IntN(4) == 0}
				before, direct, flag := x.w.Now(), x.Stats().GetsDirect, fabric.Flag(0)
				if g.implicit {
					flag = fabric.Implicit
				}
				h, err := gets.Get(rank, begin+off, b, flag)
				g.passed = x.Stats().GetsDirect != direct
				if d := x.w.Now() - before; !g.passed && d > 500*time.Nanosecond { // a post takes 50 ns, a round trip more than 1 us
					return errors.Join(err, fmt.Errorf("the begin of a get took %v", d))
				}
				if g.h = h; err != nil {
					return err
				}
				if h == fabric.Done && !g.implicit {
					return g.check(&want)
				}
				all = append(all, g)
			case op < 28 && len(all) > 0:
				i := rng.IntN(len(all))
				if all[i].implicit {
					return nil
				}
				if rng.IntN(2) == 0 {
					_, err := gets.Wait(ctx, all[i].h)
					return ended(i, err)
				}
				_, done, err := gets.Test(all[i].h)
				if done || err != nil {
					return ended(i, err)
				}
				x.env.Host().Sleep(time.Duration(rng.IntN(4000)))
			case op < 29 && len(all) > 0:
				i := rng.IntN(len(all))
				g := all[i]
				if g.passed { // the network goes on to write to it
					return nil
				}
				gets.Abandon(g.h)
				if !g.implicit { // those have no handle to give back
					clear(g.dst)
					defer func() {
						if !bytes.Equal(g.dst, make([]byte, len(g.dst))) {
							t.Error("an abandoned get was written to")
						}
					}()
					all = slices.Delete(all, i, i+1)
				}
			case op < 34 && free:
				for i := range b {
					b[i] = byte(rng.Uint32())
				}
				copy(want[rank][off:], b)
				return x.Put(ctx, rank, off, b)
			case op < 35:
				x.Acquire()
			case op < 36:
				return x.Release(ctx)
			case op < 37 && free: // a write that passes by
				copy(want[rank][off:], b)
				if err := x.Direct(ctx, rank, off, n, true); err != nil {
					return err
				}
				_, err := x.lanes.To(rank).Put(rank, x.env.Region("data").Off+off, b, fabric.Implicit)
				return errors.Join(err, x.Release(ctx))
			case op < 38:
				if err := x.Get(ctx, rank, off, b); err != nil {
					return err
				}
				return (&begun{rank: rank, off: off, dst: b}).check(&want)
			case op < 39:
				return x.Prefetch(ctx, rank, off, n)
			default:
				return flush()
			}
			return nil
		}
		for i := range 600 {
			if err := errors.Join(step(), x.Verify()); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
		}
		return flush()
	})
}

// Where pages go to and fro between gets that are tested in turns, all end.
func TestGetsInFlightDoNotKeepEachOther(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{Pages: 2, PageSize: 128, DirectMin: 700, NoBypass: true, NoReadahead: true}, func(_ context.Context, x *fixture) error {
		gets, begin, begun := x.Lanes()[0], x.env.Region("data").Off, 0
		for range 100 {
			var hs []fabric.Handle
			for i := range uint64(8) {
				h, err := gets.Get(1, begin+i*128+64, make([]byte, 128), 0)
				if err != nil {
					return err
				}
				if h&fabric.MarkCache == 0 {
					gets.Abandon(h)
				} else {
					hs = append(hs, h)
				}
			}
			x.Acquire()
			begun += len(hs)
			for tests := 0; len(hs) > 0; tests++ {
				if tests > 10000 {
					return fmt.Errorf("after %d tests %d gets have not ended", tests, len(hs))
				}
				var err error
				hs = slices.DeleteFunc(hs, func(h fabric.Handle) bool {
					_, done, e := gets.Test(h)
					err = errors.Join(err, e)
					return done
				})
				if err = errors.Join(err, x.Verify()); err != nil {
					return err
				}
			}
		}
		if begun < 100 {
			return fmt.Errorf("%d gets were in flight", begun)
		}
		return nil
	})
}

// A get goes on where its wait does not, and errors come where they are waited for.
func TestErrorsOfGetsInFlight(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{NoReadahead: true}, func(ctx context.Context, x *fixture) error {
		copy(x.data(1), "abc")
		gets, begin, b := x.Lanes()[0], x.env.Region("data").Off, make([]byte, 3)
		h, err := gets.Get(1, begin, b, 0)
		if err != nil || h&fabric.MarkCache == 0 {
			return fmt.Errorf("begin: %d, %w", h, err)
		}
		cause := errors.New("enough")
		over, cancel := context.WithCancelCause(ctx)
		cancel(cause)
		if _, err := gets.Wait(over, h); !errors.Is(err, cause) {
			return fmt.Errorf("a wait whose context has ended: %w", err)
		}
		if err := gets.Flush(over); !errors.Is(err, cause) {
			return fmt.Errorf("a flush whose context has ended: %w", err)
		}
		if err := gets.Flush(ctx); err != nil || string(b) != "abc" {
			return fmt.Errorf("after a flush there is %q, %w", b, err)
		}
		if _, err := gets.Wait(ctx, h); err != nil {
			return fmt.Errorf("a wait after the flush: %w", err)
		}
		copy(x.data(1)[8192:], "abc")
		b = make([]byte, 3)
		if h, err = gets.Get(1, begin+8192, b, 0); err != nil || h&fabric.MarkCache == 0 {
			return fmt.Errorf("begin: %d, %w", h, err)
		}
		gets.Abandon(h)
		if err := gets.Flush(ctx); err != nil || string(b) != "\x00\x00\x00" {
			return fmt.Errorf("what was abandoned was written to: %q, %w", b, err)
		}
		x.w.Kill(2)
		h, err = gets.Get(2, begin+64, make([]byte, 8), 0)
		_, later := gets.Get(2, begin+4096, make([]byte, 8), fabric.Implicit)
		if err = errors.Join(err, later); err != nil {
			return err
		}
		lost := gets.Flush(ctx)
		_, waited := gets.Wait(ctx, h)
		_, again := gets.Wait(ctx, h)
		for off, err := range map[uint64]error{4096: lost, 64: waited} {
			var failed *fabric.OpError
			if !errors.As(err, &failed) || failed.Rank != 2 || failed.Off != begin+off || !errors.Is(err, fabric.ErrPeerDown) {
				return fmt.Errorf("a get at %d of a dead rank: %w", off, err)
			}
		}
		return again
	})
}
