package env_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/park"
)

// realHost is goroutines and real time.
type realHost struct{ began time.Time }

func (realHost) Go(_ string, f func()) { go f() }
func (realHost) Sleep(d time.Duration) { time.Sleep(d) }
func (realHost) Yield()                { runtime.Gosched() }
func (realHost) NewParker() am.Parker  { return park.New() }
func (h realHost) Now() time.Duration  { return time.Since(h.began) }
func (realHost) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

// simHost is a rank of a simulation.
type simHost struct {
	am.Host
	r *sim.Rank
}

func (h simHost) Now() time.Duration { return h.r.World().Now() }
func (h simHost) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return h.r.WithTimeout(ctx, d)
}

// onHosts runs f in goroutines, and in a simulation.
func onHosts(t *testing.T, f func(t *testing.T, ctx context.Context, h env.Host)) {
	t.Run("Goroutines", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f(t, ctx, realHost{time.Now()})
	})
	t.Run("Simulation", func(t *testing.T) {
		inWorld(t, 1, func(ctx context.Context, w *sim.World) {
			f(t, ctx, simHost{amtest.SimHost(w.Rank(0)), w.Rank(0)})
		})
	})
}

func inWorld(t *testing.T, ranks int, f func(context.Context, *sim.World)) {
	t.Helper()
	w, err := sim.New(sim.Config{Ranks: ranks, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	err = w.Do(func(context.Context) error {
		ctx, cancel := w.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f(ctx, w)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWorkRunsInTheOrderOfPosting(t *testing.T) {
	onHosts(t, func(t *testing.T, ctx context.Context, h env.Host) {
		s := env.NewService(h, "test", 100)
		var ran []int
		for i := range 100 {
			if err := s.Post(func(context.Context) { h.Yield(); ran = append(ran, i) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if len(ran) != 100 || !slices.IsSorted(ran) {
			t.Errorf("ran %v", ran)
		}
		if err := s.Post(func(context.Context) {}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := s.Close(ctx); err != nil {
			t.Errorf("the second Close: %v", err)
		}
	})
}

func TestAFullServiceRefusesWork(t *testing.T) {
	onHosts(t, func(t *testing.T, ctx context.Context, h env.Host) {
		s := env.NewService(h, "test", 3)
		hold, begun := h.NewParker(), h.NewParker()
		_ = s.Post(func(ctx context.Context) { begun.Unpark(); _ = hold.Park(ctx) })
		if err := begun.Park(ctx); err != nil {
			t.Fatal(err)
		}
		ran := 0
		for range 3 {
			if err := s.Post(func(context.Context) { ran++ }); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Post(func(context.Context) { t.Error("it ran") }); err == nil || !strings.Contains(err.Error(), "has 3 pieces of work") {
			t.Errorf("the fourth: %v", err)
		}
		hold.Unpark()
		if err := s.Close(ctx); err != nil || ran != 3 {
			t.Errorf("Close: %v; %d pieces ran, want 3", err, ran)
		}
	})
}

func TestCloseGivesUpOnWorkThatHangs(t *testing.T) {
	onHosts(t, func(t *testing.T, ctx context.Context, h env.Host) {
		s := env.NewService(h, "test", 8)
		var cause error
		_ = s.Post(func(ctx context.Context) { cause = h.NewParker().Park(ctx) })
		_ = s.Post(func(context.Context) { t.Error("it ran after Close had given up") })
		h.Sleep(2 * time.Millisecond) // the first hangs now
		short, cancel := h.WithTimeout(ctx, 5*time.Millisecond)
		defer cancel()
		err := s.Close(short)
		if !errors.Is(err, context.DeadlineExceeded) || err.Error() != `conduit: close of service "test" with work that runs, and 1 pieces behind it: context deadline exceeded` {
			t.Errorf("Close: %v", err)
		}
		if err := s.Close(ctx); err != nil || cause == nil {
			t.Errorf("the second Close: %v; the work's context ended with %v", err, cause)
		}
	})
}

// A handler may neither call nor wait; the service does both for it, and makes the reply.
func TestAServiceCallsForAHandler(t *testing.T) {
	const ranks = 5
	inWorld(t, ranks, func(ctx context.Context, w *sim.World) {
		var endpoints [ranks]*am.Endpoint
		var services [ranks]*env.Service
		var sums [ranks]*am.Handler
		for r := range ranks {
			table := am.NewLibraryTable()
			sums[r] = table.Handle("conduit.sum", func(c *am.Call) { // of the ranks from here to the last
				here := c.Endpoint().Rank()
				if here == ranks-1 {
					_ = c.Reply(uint64(here))
					return
				}
				later := c.Defer(0)
				if err := services[here].Post(func(ctx context.Context) {
					rest, err := sums[here].Call(ctx, endpoints[here], here+1)
					if err != nil {
						t.Error(err)
					}
					_ = later.Reply(uint64(here) + rest.Arg(0))
				}); err != nil {
					t.Error(err)
				}
			})
			h := simHost{amtest.SimHost(w.Rank(r)), w.Rank(r)}
			l, err := am.Open(w.Rank(r).Net(), 0, am.Config{Rank: r, Size: ranks, Table: table, Host: h})
			if err != nil {
				t.Fatal(err)
			}
			endpoints[r], services[r] = l, env.NewService(h, fmt.Sprint("of rank ", r), 4)
		}
		reply, err := sums[0].Call(ctx, endpoints[0], 0)
		if err != nil || reply.Arg(0) != 10 {
			t.Errorf("reply %v, %v", reply.Args(), err)
		}
		for r := range ranks {
			if err := errors.Join(services[r].Close(ctx), endpoints[r].Close()); err != nil {
				t.Error(err)
			}
		}
	})
}
