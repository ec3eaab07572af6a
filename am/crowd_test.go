package am_test

import (
	"sync"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/am/amtest"
)

// Goroutines that each wait for one credit, in turn, would wake one another once for each message.
func TestGoroutinesThatPostToOneRankDoNotParkForEachMessage(t *testing.T) {
	const goroutines, each = 6, 3000
	table := am.NewTable()
	h := table.Handle("take", func(*am.Call) {})
	l := lanes(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
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
