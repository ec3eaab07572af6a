package coll

import (
	"context"
	"fmt"
	"sync"

	"github.com/ibconduit/conduit/am"
)

// Pending is an operation that was started and has its place in the team's order. Its buffers are
// the operation's until it is done. It runs in a goroutine of its own, and through the lanes that
// all teams share.
type Pending struct {
	gate    *gate
	mu      sync.Mutex
	done    bool
	err     error
	all     [][]byte
	waiters []am.Parker
}

// StartBarrier starts Team.Barrier. If ctx ends before the operation does the team is broken, also
// when it had not begun.
func (t *Team) StartBarrier(ctx context.Context) *Pending {
	return t.pending().start(t, ctx, barrier(""))
}

// StartBroadcast starts Team.Broadcast, as StartBarrier does.
func (t *Team) StartBroadcast(ctx context.Context, root int, buf []byte) *Pending {
	if err := checkRoot(t, KindBroadcast, root); err != nil {
		return refused(t, err)
	}
	return t.pending().start(t, ctx, broadcast(root, buf))
}

// StartAllGather starts Team.AllGather, as StartBarrier does. Blobs has the result.
func (t *Team) StartAllGather(ctx context.Context, mine []byte) *Pending {
	p := t.pending()
	return p.start(t, ctx, allGather(mine, &p.all))
}

func (t *Team) pending() *Pending { return &Pending{gate: &t.teams.gate} }

// start takes the operation's place in the order and runs it when it is its turn.
func (p *Pending) start(t *Team, ctx context.Context, c *call) *Pending {
	if err := p.gate.enter(); err != nil {
		p.end(c, err)
		return p
	}
	turn := t.turns.join()
	p.gate.host.Go("collective operation", func() {
		defer p.gate.leave()
		if err := turn.wait(ctx); err != nil {
			// The others go on to it, and must not wait for ever.
			p.end(c, fmt.Errorf("coll: %v: %w", c.kind, t.health.fail(c.kind, 0, err)))
			return
		}
		defer t.turns.unlock()
		var err error
		ended := false
		defer func() {
			if !ended { // the program's function has ended the goroutine
				err = fmt.Errorf("coll: %v: %w", c.kind, t.health.fail(c.kind, 0, errExited))
			}
			p.end(c, err)
		}()
		err = t.perform(ctx, c)
		ended = true
	})
	return p
}

func (p *Pending) end(c *call, err error) {
	if c.data != nil {
		c.data.release()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.err = true, err
	for _, w := range p.waiters {
		w.Unpark()
	}
}

// Done reports whether the operation has ended, and its error.
func (p *Pending) Done() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done, p.err
}

// Wait blocks until the operation has ended and returns its error. When ctx ends the wait, with its
// cause, the operation goes on.
func (p *Pending) Wait(ctx context.Context) error {
	if done, err := p.Done(); done {
		return err
	}
	if err := p.gate.admit("wait"); err != nil {
		return err
	}
	defer p.gate.leave()
	p.mu.Lock()
	if p.done {
		defer p.mu.Unlock()
		return p.err
	}
	w := p.gate.host.NewParker()
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	for {
		if done, err := p.Done(); done {
			return err
		}
		if err := w.Park(ctx); err != nil {
			return err
		}
	}
}

// Blobs is the result of an all-gather that is done, as AllGather returns it.
func (p *Pending) Blobs() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		return nil
	}
	return p.all
}

// refused is an operation that was started and cannot be.
func refused(on On, err error) *Pending {
	t, _ := on.on()
	p := t.pending()
	p.end(&call{}, err)
	return p
}

// start starts it.
func start(ctx context.Context, on On, k Kind, root int, d *payload, f func(*op) error) *Pending {
	t, lanes := on.on()
	return t.pending().start(t, ctx, &call{kind: k, root: root, lanes: lanes, data: d, do: f})
}
