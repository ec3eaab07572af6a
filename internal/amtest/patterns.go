package amtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
)

// alltoall has every rank send to every other: in order of ranks, in rotation, at random.
func (g *group) alltoall() {
	counts := make([]atomic.Uint64, len(g.ranks)*len(g.ranks)) // from, to
	h := g.table.Handle("count", func(c *am.Call) {
		counts[c.From()*len(g.ranks)+c.Endpoint().Rank()].Add(c.Arg(0))
		_ = c.Reply(c.Arg(0) + 1)
	})
	g.open(am.Config{Credits: 8, Replies: 4})
	size := len(g.endpoints)
	for pattern := range 3 {
		g.each(func(rank int, l *am.Endpoint) error {
			rng := source(rank, pattern)
			order := rng.Perm(size)
			for i := range size * max(1, g.o.Rounds/size) {
				to := i % size
				switch pattern {
				case 1:
					to = (rank + i) % size
				case 2:
					to = order[i%size]
				}
				if i%2 == 0 {
					if err := h.PostWith(g.ctx, l, to, am.Medium(make([]byte, 10*pattern)), 1); err != nil {
						return err
					}
					continue
				}
				if r, err := h.Call(g.ctx, l, to, 1); err != nil || r.Arg(0) != 2 {
					return fmt.Errorf("call: %d, %w", r.Arg(0), err)
				}
			}
			return nil
		})
	}
	g.settle()
	want := uint64(3 * max(1, g.o.Rounds/size))
	for i := range counts {
		if got := counts[i].Load(); got != want {
			g.Fatalf("rank %d had %d messages of rank %d, want %d", i%size, got, i/size, want)
		}
	}
}

// immediate uses the forms that do not wait, for all that they can send.
func (g *group) immediate() {
	var got atomic.Uint64
	h := g.table.Handle("got", func(c *am.Call) { got.Add(c.Arg(0)) })
	g.open(am.Config{Credits: 4, Sends: 4})
	var sent, refused atomic.Uint64
	g.each(func(rank int, l *am.Endpoint) error {
		rng := source(rank, 0)
		for i := range g.o.Rounds {
			for k := 0; ; k++ {
				before := l.Stats().Waits
				err := g.tryOne(h, l, g.other(rank, rng), i%4)
				if n := l.Stats().Waits; n != before {
					return fmt.Errorf("form %d waited %d times", i%4, n-before)
				}
				if err == nil {
					sent.Add(1)
					break
				}
				if !obstacle(err) {
					return err
				}
				if refused.Add(1); g.ctx.Err() != nil {
					return context.Cause(g.ctx)
				}
				if err := g.progress(l, k); err != nil {
					return err
				}
			}
		}
		return nil
	})
	g.settle()
	if got.Load() != sent.Load() || refused.Load() == 0 {
		g.Fatalf("%d were sent, %d came, %d were refused", sent.Load(), got.Load(), refused.Load())
	}
}

func (g *group) tryOne(h *am.Handler, l *am.Endpoint, to, form int) error {
	switch form {
	case 0:
		return h.Post(am.NoWait, l, to, 1)
	case 1:
		return h.PostWith(am.NoWait, l, to, am.Medium(make([]byte, 100)), 1)
	case 2:
		return h.PostWith(am.NoWait, l, to, am.Long(0, make([]byte, 100)), 1)
	}
	p, err := h.Prepare(am.NoWait, l, to, 100)
	if err != nil {
		return err
	}
	if err := p.Commit(am.NoWait, 1); err != nil {
		p.Cancel()
		return err
	}
	return nil
}

// barrier has ranks meet at barriers made of messages (dissemination: in step k each tells the rank
// 2^k further), between which they call one another. Nobody passes a barrier before all have come
// to it.
func (g *group) barrier() {
	size := len(g.ranks)
	var arrived [32][]atomic.Uint64 // by step, by rank: signals
	for k := range arrived {
		arrived[k] = make([]atomic.Uint64, size)
	}
	came := make([]atomic.Uint64, g.o.Rounds) // ranks, by barrier
	var handled atomic.Uint64
	signal := g.table.Handle("signal", func(c *am.Call) { arrived[c.Arg(0)][c.Endpoint().Rank()].Add(1) })
	work := g.table.Handle("work", func(c *am.Call) { _ = c.Reply(handled.Add(1)) })
	g.open(am.Config{Credits: 8, Replies: 2, Sends: 4})
	g.each(func(rank int, l *am.Endpoint) error {
		rng := source(rank, 0)
		for round := range g.o.Rounds {
			if _, err := work.Call(g.ctx, l, g.other(rank, rng)); err != nil {
				return err
			}
			came[round].Add(1)
			for k, far := 0, 1; far < size; k, far = k+1, 2*far {
				if err := signal.Post(g.ctx, l, (rank+far)%size, uint64(k)); err != nil {
					return err
				}
				if err := g.until(l, func() bool { return arrived[k][rank].Load() > uint64(round) }); err != nil {
					return fmt.Errorf("barrier %d, step %d: %w", round, k, err)
				}
			}
			if n := came[round].Load(); n != uint64(size) {
				return fmt.Errorf("barrier %d let it pass when %d of %d ranks had come", round, n, size)
			}
			if n := handled.Load(); n < uint64((round+1)*size) {
				return fmt.Errorf("behind barrier %d, %d calls were handled of %d that were answered", round, n, (round+1)*size)
			}
		}
		return nil
	})
}

// until makes progress until something holds.
func (g *group) until(l *am.Endpoint, holds func() bool) error {
	for k := 0; !holds(); k++ {
		if g.ctx.Err() != nil {
			return context.Cause(g.ctx)
		}
		if err := g.progress(l, k); err != nil {
			return err
		}
	}
	return nil
}

// progress is one step of somebody who waits without a wait, for the k-th time: what takes long is
// slept for.
func (g *group) progress(l *am.Endpoint, k int) error {
	_, err := l.Test()
	if k < 100 {
		g.o.Host.Yield()
	} else {
		g.o.Host.Sleep(time.Millisecond)
	}
	return err
}
