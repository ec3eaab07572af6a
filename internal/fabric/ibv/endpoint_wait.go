//go:build linux && cgo

package ibv

import (
	"context"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Wait arms the completion queue, looks once more, and parks in the runtime's poller.
func (p *endpoint) Wait(ctx context.Context) error {
	if !p.poller.TryLock() {
		return p.occupied("wait")
	}
	defer p.poller.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.mu.Lock()
	err := p.usableLocked("wait")
	if err == nil {
		p.datagrams.takeBack()
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	err = p.sleep(ctx)
	p.mu.Lock()
	p.sleeping, p.armedAny = false, false
	if p.closed {
		err = p.errClosed("wait")
	}
	p.mu.Unlock()
	if err == nil && ctx.Err() != nil && p.events.len() == 0 {
		err = context.Cause(ctx)
	}
	return err
}

// sleep returns when there may be something, without an error when ctx ends.
func (p *endpoint) sleep(ctx context.Context) error {
	if p.events.len() > 0 || p.woken.Swap(false) {
		return nil
	}
	if err := p.arm(); err != nil {
		return err
	}
	// What came between the last poll and the arming makes no event.
	n, _, err := p.turn(0)
	p.settle()
	if n > 0 || err != nil || p.downSeen != p.n.deaths.N.Load() {
		return err
	}
	return p.waker.sleep(ctx, p.listener.channel, func() time.Duration {
		now := p.Now()
		p.mu.Lock()
		until := p.conns.nextTimer()
		p.mu.Unlock()
		due, next := p.alarms.Take(now)
		if until = min(until, next); due {
			return 0
		}
		if until == fabric.Never {
			return until
		}
		return until - now
	})
}

// arm posts what waits and arms the completion queue: for the messages that are to wake, and for
// any completion while one of this end's own is awaited.
func (p *endpoint) arm() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.flushLocked(); err != nil {
		return err
	}
	p.sleeping, p.armedAny = true, p.out.tx.out > 0
	return p.listener.cq.Arm(!p.armedAny)
}
