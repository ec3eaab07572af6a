package am

import (
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
)

// cut ends what there is with a peer that broke the protocol: its counts cannot be trusted any
// more. What still arrives from it is counted and dropped.
func (c *core) cut(p *peer, why error) { c.down(p, of(p.rank, why), false) }

// takeDeaths ends calls and credits of the peers that peerDown has named, if there are any: credits
// that they held may be due to others. The caller leads.
func (c *core) takeDeaths() (some bool) {
	if c.deaths.Load() == nil {
		return false
	}
	var first *death
	for d := c.deaths.Swap(nil); d != nil; {
		d.next, first, d = first, d, d.next // the last one reported is the first in the list
	}
	for d := first; d != nil; d = d.next {
		c.down(c.known(d.rank), d.cause, false) // the network itself tells how its writes ended
	}
	return true
}

// down ends everything that has to do with a peer, once. dead says that the network knows of it,
// and has ended its writes. OnClosed is called first: a program that learns of the death by a call
// finds that the rest of it knows. The caller leads.
func (c *core) down(p *peer, cause error, dead bool) {
	if cause == nil {
		cause = errors.New("the network gave no cause")
	}
	c.mu.Lock()
	known := p.down != nil
	c.mu.Unlock()
	if known {
		return // the leader is the only one to find out
	}
	if f := c.cfg.OnClosed; f != nil {
		f(p.rank, cause)
	}
	p.sending.Lock() // no message is half sent
	c.mu.Lock()
	p.down = cause
	p.credits.Close()
	needs := needReply
	if dead {
		needs |= needSent
	}
	c.endCallsLocked(p.rank, needs, &fabric.PeerDownError{Rank: p.rank, Op: "call", Cause: cause}, &c.stats.dead)
	c.dropOwedLocked(p.rank)
	p.large.end(&fabric.PeerDownError{Rank: p.rank, Op: "send", Cause: cause})
	c.acquirer.disconnect(p)
	c.acquirer.unparkAll(p) // its claims end, and give back what they hold
	c.pool.Close(p.rank, c.net.Now())
	c.acquirer.dropShares(p)
	c.acquirer.serve(&c.acquirer.replies)
	c.mu.Unlock()
	p.sending.Unlock()
	c.stats.closed.Add(1)
	c.report(p.rank, fmt.Errorf("am: rank %d is closed: %w", p.rank, cause))
}

// fail ends the endpoint because its network does not work.
func (c *core) fail(err error) {
	c.report(-1, err)
	c.shut(fmt.Errorf("am: the endpoint's network failed: %w", err))
}

// shut wakes all waiters with an error, once.
func (c *core) shut(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return
	}
	c.end = cause
	if cause == ErrClosed {
		c.rest = c.inFlightLocked()
	}
	c.closing.Store(true)
	c.endCallsLocked(-1, needReply|needSent, cause, &c.stats.ended)
	c.dropOwedLocked(-1)
	for _, at := range c.peers.All() {
		if p := at.Load(); p != nil {
			p.large.end(cause)
		}
	}
	c.stats.nowhere.Add(uint64(len(c.late)))
	c.late = nil
	for w := c.parked.First(); w != nil; w = w.place.Next() {
		w.unpark()
	}
	if w := c.attendant; w != nil {
		w.unpark()
	}
	c.net.Wake()
}
