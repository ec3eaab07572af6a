package am_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

func TestThousandsOfRanksRandomAllToAll(t *testing.T) {
	ranks := cmp.Or(*ranksFlag, parttest.Of(2000))
	o := traffic{cfg: sim.Config{Ranks: ranks, Seed: 21}, calls: 10, slow: []int{3, 50, 51}, stall: 10 * time.Second}.run(t)
	o.allEnded(t)
	o.noneMetNoBuffer(t)
	o.booksAgree(t)
}

func TestSlowReceiversDelayOnlyThemselves(t *testing.T) {
	o := traffic{cfg: sim.Config{Ranks: 100, Seed: 22}, calls: 30, slow: []int{3, 50, 51}, stall: 10 * time.Second}.run(t)
	o.allEnded(t)
	o.noneMetNoBuffer(t)
	o.booksAgree(t)
}

func TestLimitedConnectionsAndLostNotes(t *testing.T) {
	o := traffic{cfg: sim.Config{Ranks: 100, Seed: 23, Connections: 3, Notes: sim.Notes{Loss: 0.2, Dup: 0.2}, HandshakeTries: 60}, calls: 20, stall: 30 * time.Second}.run(t)
	o.allEnded(t)
	o.noneMetNoBuffer(t)
	o.booksAgree(t)
}

func TestKillsEndTheirCallsAndNoOthers(t *testing.T) {
	died := int64(0)
	for seed := range uint64(parttest.Of(5)) {
		o := traffic{cfg: sim.Config{Ranks: 60, Seed: 30 + seed, MaxEvents: 4e6}, calls: 40, kill: []int{7, 8, 40}, stall: 20 * time.Second}.run(t)
		o.allEnded(t)
		o.noneMetNoBuffer(t)
		o.booksAgree(t)
		died += o.died
	}
	if died == 0 {
		t.Error("nobody called the dead: this test shows nothing")
	}
}

// An endpoint among a million ranks is as large as one among two, but for a quarter of a byte for
// each here and in flow.
func TestAnEndpointDoesNotGrowWithSilentRanks(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	opened := func(size int) float64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		l := endpointsOf(t, amtest.NewMemory(2, 64), 2, size, am.Config{Table: table})
		if _, err := h.Call(bounded(t), l[0], 1, 1); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc-before.TotalAlloc) / 2
	}
	const many = 1 << 20
	if n := (opened(many) - opened(2)) / many; n > 0.75 {
		t.Errorf("%.2f bytes for each of %d others", n, many)
	}
}

// The endpoints of a simulated job add nothing of the machine's: a seed names their run, too.
func TestASeedNamesTheRunOfLanesWhateverGOMAXPROCS(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var first *outcome
	for _, procs := range []int{1, 2, 4, 2} {
		runtime.GOMAXPROCS(procs)
		o := traffic{cfg: sim.Config{Ranks: 20, Seed: 24, SegmentSize: 1024, Connections: 4, Notes: sim.Notes{Loss: 0.1, Dup: 0.1}, HandshakeTries: 60},
			calls: parttest.Of(50), posts: true, kill: []int{7}, slow: []int{3}, stall: 30 * time.Second}.run(t)
		o.allEnded(t)
		if first == nil {
			first = o
		}
		if o.hash != first.hash || o.messages != first.messages {
			t.Errorf("with GOMAXPROCS=%d %d messages and trace %#x, with 1 %d and %#x", procs, o.messages, o.hash, first.messages, first.hash)
		}
	}
}

// A rank dies with all credits of another, which never sends it anything: only those who wait for
// the credits miss it.
func TestCreditsOfADeadIdleRankComeBack(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	w, err := sim.New(sim.Config{Ranks: 3, Seed: 1, MaxTime: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	err = w.Run(func(ctx context.Context, s *sim.Rank) error {
		l, err := am.Open(s.Net(), 0, am.Config{Rank: s.ID(), Size: 3, Table: table, Host: amtest.SimHost(s), Credits: 2, StallAfter: 20 * time.Second, SilentAfter: time.Second})
		if err != nil {
			return err
		}
		switch s.ID() {
		case 1:
			if _, err := h.Call(ctx, l, 0, 1); err != nil {
				return err
			}
			w.Kill(1)
			return s.Sleep(ctx, time.Hour)
		case 2:
			if err := s.Sleep(ctx, 100*time.Millisecond); err != nil {
				return err
			}
			if r, err := h.Call(ctx, l, 0, 2); err != nil || r.Arg(0) != 2 {
				return fmt.Errorf("the call of a rank that lives: %v, %w", r.Args(), err)
			}
		default:
			if err := s.Sleep(ctx, 30*time.Second); err != nil {
				return err
			}
		}
		return l.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Questions that are repeated rarely are no less unanswered.
func TestASilentRankIsDeadHoweverRarelyAsked(t *testing.T) {
	for _, c := range []struct{ retry, silent, most time.Duration }{
		{0, 0, 40 * time.Second},
		{250 * time.Millisecond, 0, 3 * time.Minute},
		{40 * time.Millisecond, 2 * time.Second, 30 * time.Second},
		{5 * time.Second, 0, time.Hour},
	} {
		table := am.NewTable()
		note := table.Handle("note", func(*am.Call) {})
		w, err := sim.New(sim.Config{Ranks: 2, Seed: 1, MaxTime: c.most})
		if err != nil {
			t.Fatal(err)
		}
		w.ConnectAll()
		w.Kill(1)
		err = w.Run(func(ctx context.Context, s *sim.Rank) error {
			l, err := am.Open(s.Net(), 0, am.Config{Rank: 0, Size: 2, Table: table, Host: amtest.SimHost(s), StallAfter: -1, SilentAfter: c.silent, Flow: credit.Config{Retry: c.retry}})
			if err != nil {
				return err
			}
			if err := note.Post(ctx, l, 1); !errors.Is(err, fabric.ErrPeerDown) {
				return fmt.Errorf("a post to a dead rank: %v", err)
			}
			return l.Close()
		})
		if err != nil {
			t.Errorf("asked again after %v, dead after %v: %v", c.retry, c.silent, err)
		}
	}
}

// Who sleeps for the endpoint since before the call had no reason to come back.
func TestAPingWakesASleepingLeader(t *testing.T) {
	for name, x := range map[string]struct {
		serve bool // somebody does, besides
		wait  func(ctx context.Context, s *sim.Rank, p *am.Pending) error
	}{
		"Call, another goroutine serves": {true, func(ctx context.Context, _ *sim.Rank, p *am.Pending) error {
			_, err := p.Wait(ctx)
			return err
		}},
		"Start, the attendant polls": {false, func(ctx context.Context, s *sim.Rank, p *am.Pending) error {
			for {
				if _, done, err := p.Test(); done {
					return err
				}
				if err := s.Sleep(ctx, time.Millisecond); err != nil {
					return err
				}
			}
		}},
	} {
		table := am.NewTable()
		note := table.Handle("note", func(*am.Call) {})
		never := table.Handle("never", func(c *am.Call) { c.Defer(time.Hour) })
		w, err := sim.New(sim.Config{Ranks: 2, Seed: 1, MaxTime: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		w.ConnectAll()
		w.At(200*time.Millisecond, func() { w.Kill(1) })
		err = w.Run(func(ctx context.Context, s *sim.Rank) error {
			l, err := am.Open(s.Net(), 0, am.Config{Rank: s.ID(), Size: 2, Table: table, Host: amtest.SimHost(s), StallAfter: -1})
			if err != nil {
				return err
			}
			if s.ID() == 1 {
				return s.Sleep(ctx, time.Hour)
			}
			if x.serve {
				s.Go("serve", func(ctx context.Context) error {
					if err := l.Serve(ctx); !errors.Is(err, am.ErrClosed) {
						return err
					}
					return nil
				})
			}
			if err := note.Post(ctx, l, 1); err != nil { // else credits are to come first
				return err
			}
			if err := s.Sleep(ctx, 100*time.Millisecond); err != nil {
				return err
			}
			p, err := never.Start(ctx, l, 1, am.Payload{})
			if err != nil {
				return err
			}
			if err := x.wait(ctx, s, p); !errors.Is(err, fabric.ErrPeerDown) {
				return fmt.Errorf("the call ended with %w", err)
			}
			return l.Close()
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
