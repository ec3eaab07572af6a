package am_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/am/amtest"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/sim"
)

// traffic is random traffic of many ranks on few buffers.
type traffic struct {
	cfg      sim.Config
	calls    int   // of each rank
	kill     []int // who dies meanwhile
	slow     []int // who polls slowly
	deadline time.Duration
}

// run returns the lanes at rest, and how often messages met no buffer.
func (x traffic) run(t *testing.T) {
	t.Helper()
	w, err := sim.New(x.cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	table := am.NewTable()
	h := table.Handle("echo", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload()), c.Arg(0)) })
	for i, r := range x.slow {
		w.Slow(r, time.Duration(1+i)*20*time.Microsecond)
	}
	dead := map[int]bool{}
	for i, r := range x.kill {
		dead[r] = true
		w.At(time.Duration(1+i)*300*time.Microsecond, func() { w.Kill(r) })
	}
	lanes := make([]*am.Lane, x.cfg.Ranks)
	var left, ended, died atomic.Int64
	left.Store(int64(x.cfg.Ranks - len(x.kill)))
	err = w.Run(func(ctx context.Context, r *sim.Rank) error {
		l, err := am.Open(r.Net(), 0, am.Config{Rank: r.ID(), Size: r.Size(), Table: table, Host: amtest.SimHost(r), Credits: 16, Replies: 8, Spares: 4,
			Sends: 8, ReplySends: 4, MaxMedium: 512, StallAfter: x.deadline, SilentAfter: x.deadline / 2, PingAfter: x.deadline / 8})
		if err != nil {
			return err
		}
		lanes[r.ID()] = l
		for i := range uint64(x.calls) {
			to := r.Rand().IntN(r.Size())
			b := make([]byte, r.Rand().IntN(100))
			reply, err := h.CallWith(ctx, l, to, am.Medium(b), i)
			switch {
			case err == nil && reply.Arg(0) == i && len(reply.Data) == len(b):
			case dead[to] && errors.Is(err, fabric.ErrPeerDown):
				died.Add(1)
			default:
				left.Store(-1) // the others need not go on
				return fmt.Errorf("call %d to rank %d: %w", i, to, err)
			}
			if !dead[r.ID()] {
				ended.Add(1)
			}
		}
		if dead[r.ID()] { // it has to die first
			return r.Sleep(ctx, time.Hour)
		}
		left.Add(-1)
		for left.Load() > 0 {
			if err := r.Sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		if err := r.Sleep(ctx, 2*time.Millisecond); err != nil { // control messages may be on their way
			return err
		}
		return l.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := w.RNR(); n != 0 {
		t.Errorf("%d messages met no buffer", n)
	}
	if want := int64((x.cfg.Ranks - len(x.kill)) * x.calls); ended.Load() != want {
		t.Errorf("%d calls ended, want %d", ended.Load(), want)
	}
	var live []*am.Lane
	for i, l := range lanes {
		if dead[i] {
			continue
		}
		live = append(live, l)
		s := l.Stats()
		if err := s.Check(); err != nil || s.CallsInFlight != 0 || s.Broken != 0 {
			t.Fatalf("rank %d: %v, %+v", i, err, s)
		}
	}
	if len(x.kill) == 0 {
		if err := am.Reconcile(live); err != nil {
			t.Error(err)
		}
	} else {
		t.Logf("%d calls found their rank dead", died.Load())
	}
}

func TestThousandsOfRanksRandomAllToAll(t *testing.T) {
	ranks := manyRanks
	if testing.Short() {
		ranks = 200
	}
	traffic{cfg: sim.Config{Ranks: ranks, Seed: 21}, calls: 10, deadline: 10 * time.Second}.run(t)
}

func TestSlowReceiversDelayOnlyThemselves(t *testing.T) {
	traffic{cfg: sim.Config{Ranks: 100, Seed: 22}, calls: 30, slow: []int{3, 50, 51}, deadline: 10 * time.Second}.run(t)
}

func TestLimitedConnectionsAndLostNotes(t *testing.T) {
	traffic{cfg: sim.Config{Ranks: 100, Seed: 23, Connections: 3, Notes: sim.Notes{Loss: 0.2, Dup: 0.2}, HandshakeTries: 60}, calls: 20, deadline: 30 * time.Second}.run(t)
}

func TestKillsEndTheirCallsAndNoOthers(t *testing.T) {
	for seed := range uint64(5) {
		traffic{cfg: sim.Config{Ranks: 60, Seed: 30 + seed, MaxEvents: 4e6}, calls: 40, kill: []int{7, 8, 40}, deadline: 20 * time.Second}.run(t)
	}
}
