package am_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/am/amtest"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/sim"
)

// lateNet has whoever slept wake up late.
type lateNet struct {
	fabric.Messenger
	r *sim.Rank
	d time.Duration
}

func (n lateNet) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	p, err := n.Messenger.NewEndpoint(i, cfg)
	return latePort{p, n}, err
}

type latePort struct {
	fabric.Endpoint
	net lateNet
}

func (p latePort) Wait(ctx context.Context) error {
	return errors.Join(p.Endpoint.Wait(ctx), p.net.r.Sleep(context.Background(), p.net.d))
}

// Two ranks that answer each other sleep at each message at first, since each wakes up too late for the other.
func TestRanksThatWakeUpLateFindThatPollingPays(t *testing.T) {
	const late, waits = 3 * time.Millisecond, 200
	w, err := sim.New(sim.Config{Ranks: 2, Seed: 1, MaxTime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	w.Delay(0, 1, 100*time.Microsecond) // each round trip outlasts the polling
	table := am.NewTable()
	echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply() })
	var first, last time.Duration
	var stats am.Stats
	var idle uint64
	err = w.Run(func(ctx context.Context, s *sim.Rank) error {
		l, err := am.Open(lateNet{s.Net(), s, late}, 0,
			am.Config{Rank: s.ID(), Size: 2, Table: table, Host: amtest.SimHost(s), AttendAfter: -1})
		if err != nil {
			return err
		}
		if s.ID() == 1 {
			if err := l.Serve(ctx); !errors.Is(err, am.ErrClosed) {
				return err
			}
			return nil
		}
		trips := func(n int) (time.Duration, error) {
			began := w.Now()
			for range n {
				if _, err := echo.Call(ctx, l, 1); err != nil {
					return 0, err
				}
			}
			return (w.Now() - began) / time.Duration(n), nil
		}
		if first, err = trips(10); err != nil {
			return err
		}
		if _, err = trips(500); err != nil {
			return err
		}
		if last, err = trips(100); err != nil {
			return err
		}
		stats = l.Stats()
		// Nothing comes any more, and no wait is long enough for a sleep.
		for range waits {
			short, cancel := w.WithTimeout(ctx, 5*time.Millisecond)
			err := l.Serve(short)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("serving for a while: %w", err)
			}
		}
		idle = l.Stats().Sleeps - stats.Sleeps
		w.Kill(1)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if first < late {
		t.Fatalf("a round trip took %v though ranks woke up after %v", first, late)
	}
	if last > late/10 {
		t.Errorf("a round trip takes %v, at first %v; %d trials, %d sleeps", last, first, stats.Trials, stats.Sleeps)
	}
	if idle < waits/2 {
		t.Errorf("in %d waits of 5 ms in which nothing came it slept %d times", waits, idle)
	}
	if stats.Trials == 0 {
		t.Error("no trial was counted")
	}
}
