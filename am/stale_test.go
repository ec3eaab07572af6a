package am_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

// A call may run a slow handler of a batch of another goroutine before it polls for the first time.
// The time at which it began is over then: with that rank 1 would be asked for credits long ago,
// and be dead for want of an answer. The wait behind the handler counts as one.
func TestACallThatHelpedFirstKnowsTheTime(t *testing.T) {
	const slowly, ranks = 500 * time.Millisecond, 10
	table := am.NewTable()
	var begun atomic.Int32
	fast := table.Handle("fast", func(*am.Call) {})
	echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply() })
	slow := table.Handle("slow", func(*am.Call) { begun.Add(1); time.Sleep(slowly) })
	var dead atomic.Value
	m := amtest.NewMemory(ranks, 64)
	var ls [ranks]*am.Endpoint
	for i := range ls {
		cfg := am.Config{Table: table, Rank: i, Size: ranks, Segment: m.Rank(i).Segment, Credits: 8, SilentAfter: slowly / 2}
		if i == 0 { // polls when the test has it do so
			cfg.AttendAfter = -1
			cfg.OnClosed = func(_ int, err error) { dead.CompareAndSwap(nil, err) }
		}
		l, err := am.Open(m.Rank(i), 0, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		ls[i] = l
	}
	ctx := bounded(t)
	pollUntil(t, ls[0], func() error { // rank 1 comes to hold credits of rank 0
		for range 60 {
			if err := fast.Post(ctx, ls[1], 0); err != nil {
				return err
			}
		}
		return nil
	})
	for posted := 0; posted < 2; { // rank 1 may not have looked for the credits yet
		switch err := slow.Post(am.NoWait, ls[1], 0); err {
		case nil:
			posted++
		case am.ErrNoCredit:
			time.Sleep(time.Millisecond)
		default:
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	all.Go(func() { // takes both, and runs the handler of the first
		for begun.Load() == 0 {
			_, _ = ls[0].Test()
		}
	})
	for begun.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	all.Go(func() { // meanwhile others want credits, and rank 1 sends on
		time.Sleep(slowly / 2)
		for _, l := range ls[2:] {
			all.Go(func() { _ = fast.Post(ctx, l, 0) })
		}
		time.Sleep(slowly / 10)
		_ = fast.Post(am.NoWait, ls[1], 0)
	})
	waits := ls[0].Stats().Waits
	if _, err := echo.Call(ctx, ls[0], 1); err != nil { // helps with the second, then leads
		t.Error(err)
	}
	if n := ls[0].Stats().Waits - waits; n != 1 {
		t.Errorf("%d waits of one call", n)
	}
	pollUntil(t, ls[0], func() error { all.Wait(); time.Sleep(slowly / 5); return nil })
	if err := dead.Load(); err != nil {
		t.Error(err)
	}
}

// pollUntil polls an endpoint until f has returned.
func pollUntil(t *testing.T, l *am.Endpoint, f func() error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { cancel(f()) }()
	for ctx.Err() == nil {
		if _, err := l.Test(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if err := context.Cause(ctx); err != context.Canceled {
		t.Fatal(err)
	}
}
