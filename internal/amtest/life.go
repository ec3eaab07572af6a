package amtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
)

// cancelled gives up calls in all of their stages.
func (g *group) cancelled() {
	h := g.table.Handle("slow", func(c *am.Call) { c.Defer(10 * time.Millisecond) })
	fast := g.table.Handle("fast", func(c *am.Call) { _ = c.Reply(7) })
	g.open(am.Config{Credits: 2, Replies: 2, Sends: 2})
	g.several(4, func(rank, i int, l *am.Endpoint) error {
		rng := source(rank, i)
		for k := range max(1, g.o.Rounds/10) {
			ctx, cancel := g.o.Host.WithTimeout(g.ctx, time.Duration(rng.IntN(3000))*time.Microsecond)
			_, err := h.Call(ctx, l, g.other(rank, rng))
			cancel()
			var late *am.RemoteError
			if !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &late) {
				return fmt.Errorf("call %d: %w", k, err)
			}
		}
		r, err := fast.Call(g.ctx, l, g.other(rank, rng))
		if err != nil || r.Arg(0) != 7 {
			return fmt.Errorf("afterwards: %v, %w", r.Args(), err)
		}
		return nil
	})
}

// death kills a rank while everybody calls it. Each call ends once, and the others go on.
func (g *group) death() {
	const victim = 1
	var serving atomic.Uint64
	h := g.table.Handle("serve", func(c *am.Call) {
		if c.Endpoint().Rank() == victim && serving.Add(1) > 20 {
			c.Defer(0) // for ever
			return
		}
		_ = c.Reply(c.Arg(0))
	})
	g.open(am.Config{Credits: 8, Replies: 8})
	g.dead[victim] = true
	g.several(4, func(rank, i int, l *am.Endpoint) error {
		if rank == victim {
			for i == 0 && serving.Load() < 25 && g.ctx.Err() == nil {
				g.o.Host.Sleep(time.Millisecond)
			}
			if i == 0 {
				g.o.Kill(victim)
			}
			return nil
		}
		rng := source(rank, i)
		for k := uint64(0); ; k++ {
			r, err := h.Call(g.ctx, l, victim, k)
			if err == nil && r.Arg(0) == k {
				continue
			}
			var e *fabric.PeerDownError
			if !errors.As(err, &e) || e.Rank != victim {
				return fmt.Errorf("call %d: %v", k, err)
			}
			break
		}
		if err := h.Post(g.ctx, l, victim); !errors.Is(err, fabric.ErrPeerDown) {
			return fmt.Errorf("post to a dead rank: %v", err)
		}
		for k := range uint64(20) { // the others
			to := g.other(rank, rng)
			if to == victim {
				continue
			}
			if r, err := h.Call(g.ctx, l, to, k); err != nil || r.Arg(0) != k {
				return fmt.Errorf("call to rank %d: %v, %w", to, r.Args(), err)
			}
		}
		return nil
	})
}
