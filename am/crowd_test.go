package am_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

// Goroutines that each wait for one credit, in turn, would wake one another once for each message.
func TestGoroutinesDoNotParkForEachPost(t *testing.T) {
	const goroutines, each = 6, 3000
	table := am.NewTable()
	h := table.Handle("take", func(*am.Call) {})
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
	ctx := bounded(t)
	go func() { _ = l[1].Serve(ctx) }()
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range each {
				if err := h.Post(ctx, l[0], 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	s := l[0].Stats()
	if s.Posts != goroutines*each || s.Parks > s.Posts/2 {
		t.Errorf("%d posts, of %d, parked %d times", s.Posts, goroutines*each, s.Parks)
	}
}

// More goroutines than buffers call a rank that does nothing but serve, without attendants.
func TestARankServesACrowd(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, AttendAfter: -1, Replies: 8})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- l[1].Serve(ctx) }()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range uint64(200) {
				if r, err := h.Call(ctx, l[0], 1, i); err != nil || r.Arg(0) != i {
					t.Error(r.Arg(0), err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.Fatalf("rank 0 polled %d times, rank 1 keeps %d replies: %v", l[0].Stats().Polls, l[1].Stats().Unsent, <-served)
	}
}

// A goroutine waits that parked behind another, which leads and goes.
func TestTheLeadGoesToAParkedGoroutine(t *testing.T) {
	table := am.NewTable()
	tokens := make(chan *am.DeferredReply, 2)
	h := table.Handle("hold", func(c *am.Call) { tokens <- c.Defer(0) })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, AttendAfter: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	go func() { _ = l[1].Serve(ctx) }()
	var ends [2]chan error
	var held [2]*am.DeferredReply
	for i := range ends {
		ends[i] = make(chan error, 1)
		go func() { _, err := h.Call(ctx, l[0], 1); ends[i] <- err }()
		select {
		case held[i] = <-tokens:
		case <-ctx.Done():
			t.Fatal("a call does not arrive")
		}
		if i == 1 {
			eventually(t, "the second is parked", func() bool { return l[0].Stats().Parks > 0 })
		}
	}
	for i := range ends {
		if err := held[i].Reply(); err != nil {
			t.Error(err)
		}
		if err := <-ends[i]; err != nil {
			t.Error(err)
		}
	}
}
