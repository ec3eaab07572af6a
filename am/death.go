package am

import (
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/fabric"
)

// of says whose message it was.
func of(rank int, err error) error {
	if e, ok := err.(*MessageError); ok {
		e.Peer = rank
	}
	return err
}

// cut ends what there is with a peer that broke the protocol: its counts cannot be trusted any
// more. What still arrives from it is counted and dropped.
func (c *core) cut(p *peer, why error) { c.down(p, of(p.rank, why), false) }

// death is one that the network of this endpoint has not found.
type death struct {
	rank  int
	cause error
	next  *death
}

// peerDown reports a death. It may be called with any lock held, and by the network.
func (c *core) peerDown(rank int, cause error) {
	if rank < 0 || rank >= c.peers.Len() || rank == c.cfg.Rank {
		return
	}
	d := &death{rank: rank, cause: cause}
	for d.next = c.deaths.Load(); !c.deaths.CompareAndSwap(d.next, d); d.next = c.deaths.Load() {
	}
	c.net.Wake()
}

// takeDeaths ends what there is with the peers that peerDown was told of, if there are any: credits
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

// endCallsLocked ends what is in flight to a rank, or to all.
func (c *core) endCallsLocked(rank int, n need, cause error, count *uint64) {
	for i := range c.calls.e {
		e := &c.calls.e[i]
		n := n & e.needs
		if n == 0 || rank >= 0 && int(e.peer) != rank {
			continue
		}
		if n&needReply != 0 {
			*count++
			if int(e.peer) != c.cfg.Rank {
				c.acquirer.leavePlace(c.known(int(e.peer)))
			}
		}
		if n&needSent != 0 {
			c.stats.written++
		}
		if e.w != nil && e.w.err == nil {
			e.w.err = cause
		}
		if w := c.calls.settle(int32(i+1), n); w != nil {
			w.resume()
		}
	}
}

// answeredLocked ends a call. p is nil for one of this rank to itself.
func (c *core) answeredLocked(p *peer, rank int, h *head, payload []byte) error {
	e := c.calls.find(h.token, rank)
	if e == nil || e.needs&needReply == 0 {
		return &MessageError{Rule: "replies to no call", Got: h.token}
	}
	if w := e.w; w != nil && h.kind == reply && h.cat != long && e.needs == needReply && p != nil { // the straight path
		c.stats.replied++
		w.answered = true
		w.set(h, payload)
		c.calls.awaits--
		e.needs = 0
		c.calls.release(e, index(h.token)).resume()
		c.acquirer.leavePlace(p)
		return nil
	}
	if h.cat == long {
		if h.off > uint64(len(c.cfg.Segment)) || uint64(h.length) > uint64(len(c.cfg.Segment))-h.off {
			return &MessageError{Rule: "writes beyond the segment", Got: h.off + uint64(h.length), Limit: uint64(len(c.cfg.Segment))}
		}
		payload = c.cfg.Segment[h.off : h.off+uint64(h.length) : h.off+uint64(h.length)]
	}
	if h.kind == failure {
		c.stats.failed++
	} else {
		c.stats.replied++
	}
	if w := e.w; w == nil {
		c.stats.late++
	} else if w.answered = true; h.kind == failure {
		w.err = &RemoteError{Rank: rank, Handler: w.h.name, Reason: Reason(h.args[0]), Text: string(payload)}
	} else {
		w.set(h, payload)
	}
	if w := c.calls.settle(index(h.token), needReply); w != nil {
		w.resume()
	}
	if p != nil {
		c.acquirer.leavePlace(p)
	}
	return nil
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
