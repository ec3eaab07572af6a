package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// pingPong: two ranks that sleep until the other's message wakes them. One that is lost
// stops both.
func (g *messageGroup) pingPong() {
	drivers := g.open()[:2]
	g.each(2, func(ctx context.Context, i int) error {
		c, peer := drivers[i], 1-i
		for round := range uint64(g.o.Rounds) {
			if i == 0 {
				if err := c.sendOne(ctx, peer); err != nil {
					return err
				}
			}
			for c.peers[peer].arrived <= round {
				n, err := c.poll(0)
				if err == nil && n == 0 {
					err = c.p.Wait(ctx)
				}
				if err != nil {
					return fmt.Errorf("rank %d, round %d: %w", i, round, err)
				}
			}
			if i == 1 {
				if err := c.sendOne(ctx, peer); err != nil {
					return err
				}
			}
		}
		// The last answer may still need this end's help.
		left := c.peers[peer].sent
		return c.until(ctx, func() bool { return c.drained(peer) >= left })
	})
}

// sendOne sends one solicited message.
func (c *driver) sendOne(ctx context.Context, peer int) error {
	var err error
	return errors.Join(c.until(ctx, func() bool {
		var ok bool
		ok, err = c.send(peer, headLen, nil, false, fabric.Solicited)
		return ok || err != nil
	}), err)
}

// wake: before a Wait or during it, each Wake ends one.
func (g *messageGroup) wake() {
	c := g.open()[0]
	c.p.Wake()
	g.must("wait after a wake", c.p.Wait(g.ctx))
	var asked, seen atomic.Int64
	g.each(2, func(ctx context.Context, i int) error {
		for k := range int64(g.o.Rounds) {
			if i == 0 {
				asked.Store(k + 1)
				c.p.Wake()
				for seen.Load() <= k {
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
					g.host.Yield()
				}
				continue
			}
			for asked.Load() <= k {
				if err := c.p.Wait(ctx); err != nil {
					return fmt.Errorf("wake %d was lost: %w", k, err)
				}
			}
			seen.Store(k + 1)
			if k%3 == 0 {
				g.host.Yield() // the next one comes before the Wait
			}
		}
		return nil
	})
}

// after: Wait ends though nothing happens, not for a time past only.
func (g *messageGroup) after() {
	p := g.open()[0].p
	for _, d := range []time.Duration{0, -time.Second, 10 * time.Microsecond, 5 * time.Millisecond} {
		at := p.Now() + d
		p.After(at + 3*time.Millisecond)
		p.After(at) // the earlier one counts, and the others still do
		p.After(at + time.Hour)
		for _, at := range []time.Duration{at, at + 3*time.Millisecond} {
			for p.Now() < at {
				g.must("wait for a time", p.Wait(g.ctx))
			}
		}
	}
	p.After(p.Now() - 1)
	g.must("wait for a time that is over", p.Wait(g.ctx))
	a := p.Now()
	g.host.Sleep(2 * time.Millisecond)
	if b := p.Now(); b-a < time.Millisecond {
		g.Fatalf("2 ms took %v on the endpoint's clock", b-a)
	}
}

// full: after ErrAgain, Wait waits for room. Nothing arrives meanwhile, and no event is asked for.
func (g *messageGroup) full() {
	cfg := fabric.EndpointConfig{Slots: 3 * slotCount, SlotSize: slotSize, Sends: 4, Reserved: 1}
	a, b := g.openOne(0, cfg), g.openOne(1, cfg)
	g.deliver(a, 1)
	want, times := a.peers[1].sent+uint64(g.o.Rounds), 0
	g.each(2, func(ctx context.Context, i int) error {
		if i == 1 {
			return b.until(ctx, func() bool { return b.peers[0].arrived >= want })
		}
		for a.peers[1].sent < want {
			if a.peers[1].sent-g.drained[1].Load() >= uint64(cfg.Slots/len(g.ranks)) { // no slot is known to be free
				g.host.Yield()
			} else if ok, err := a.send(1, slotSize, nil, false, fabric.Solicited); err != nil {
				return err
			} else if !ok {
				times++
				if err := a.p.Wait(ctx); err != nil {
					return fmt.Errorf("after %d messages the endpoint was full, and there was never room again: %w",
						a.peers[1].sent, err)
				}
				if _, err := a.poll(0); err != nil {
					return err
				}
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		return nil
	})
	g.Logf("the endpoint was full %d times", times)
}

// until polls until something holds.
func (c *driver) until(ctx context.Context, holds func() bool) error {
	for !holds() {
		if _, err := c.poll(100 * time.Microsecond); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// waitContext: the cause comes out.
func (g *messageGroup) waitContext() {
	p := g.open()[0].p
	cause := errors.New("enough")
	over, cancel := context.WithCancelCause(g.ctx)
	cancel(cause)
	timed, stop := g.host.WithTimeout(g.ctx, 5*time.Millisecond)
	defer stop()
	for _, x := range []struct {
		ctx  context.Context
		want error
	}{{over, cause}, {timed, context.DeadlineExceeded}} {
		var err error
		for range 10_000 { // it may end without a reason at times
			if err = p.Wait(x.ctx); err != nil {
				break
			}
		}
		if !errors.Is(err, x.want) {
			g.Fatalf("wait: %v, want %v", err, x.want)
		}
	}
	// And while it waits.
	late, cancel := context.WithCancelCause(g.ctx)
	g.each(2, func(_ context.Context, i int) error {
		if i == 0 {
			g.host.Sleep(5 * time.Millisecond)
			cancel(cause)
			return nil
		}
		for {
			if err := p.Wait(late); errors.Is(err, cause) {
				return nil
			} else if err != nil {
				return err
			}
		}
	})
}
