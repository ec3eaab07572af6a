//go:build linux && cgo

package ibv

import (
	"cmp"
	"slices"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// Disconnect starts to close an idle connection.
func (p *port) Disconnect(rank int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable("disconnect"); err != nil {
		return err
	}
	if err := p.reach("disconnect", rank); err != nil {
		return err
	}
	if c := p.peers[rank].conn; c != nil && c.state == connUp && c.queued == 0 && !c.parting {
		c.parting, c.proven = true, false
		p.parting = append(p.parting, c)
		if p.sleeping {
			p.Wake()
		}
	}
	return nil
}

// part closes a connection if nothing of it is in flight. Messages that asked for no completion may have arrived
// long ago: a touch tells, and completed tries again. A touch is also how a peer is found dead whose connection is to
// be closed: nobody there answers the question, and whoever has to answer may take its time. mu is held.
func (p *port) part(c *conn) {
	switch {
	case c.state != connUp || c.refused != nil || !c.parting:
	case c.count > 0:
		if c.silent > 0 {
			p.touch(c)
		}
		if !c.touched {
			c.parting = false // it is in use
		}
	case int(c.rank) == p.n.cfg.Rank:
		if c.parting = false; c.sent == c.arrived {
			p.closing(c)
			p.shut(c)
		}
	default:
		if !c.proven {
			if p.touch(c); c.touched {
				return
			}
		}
		c.parting = false
		p.closing(c)
		c.attempt++
		p.begin(c)
	}
}

// closing is when no more is posted on a connection. mu is held.
func (p *port) closing(c *conn) {
	c.state = connClosing
	p.open.Add(-1)
}

// askedToClose answers the peer that has nothing in flight: this end agrees if it has neither, and if all messages
// of both were taken. Who did not agree to an attempt must not agree to a late copy of it: the peer goes on.
func (p *port) askedToClose(at *peer, d *datagram) {
	c := at.conn
	if c == nil || c.state == connWanted || c.state == connAsking {
		if d.epoch <= at.epoch { // it was closed before; the answer was lost
			p.tell(&conn{rank: int32(d.from)}, datagram{kind: sayClosed, epoch: d.epoch, attempt: d.attempt})
		}
		return
	}
	if c.epoch != d.epoch {
		if d.epoch < c.epoch {
			p.tell(c, datagram{kind: sayClosed, epoch: d.epoch, attempt: d.attempt})
		}
		return
	}
	if c.state == connAnswering {
		p.made(c) // it would not close what is not open
	}
	mere := c.count == 1 && c.touched // which leaves nothing behind
	inFlight := c.count > 0 && !mere && c.state == connUp
	agreed := !inFlight && c.refused == nil && c.sent == d.arrived && c.arrived == d.sent && d.attempt > c.declined &&
		(c.state == connUp || c.state == connClosing)
	if agreed {
		if c.state == connUp {
			p.closing(c)
		}
		p.tell(c, datagram{kind: sayClosed, attempt: d.attempt})
		if mere {
			p.endMessage(c, nil)
		}
		p.shut(c)
		return
	}
	c.declined = max(c.declined, d.attempt)
	if c.silent > 0 {
		p.touch(c) // the next attempt finds it idle
	}
	p.tell(c, datagram{kind: sayStay, attempt: d.attempt})
}

// shut is when this end knows that both agree. What was queued meanwhile needs another connection. mu is held.
func (p *port) shut(c *conn) {
	p.count.disconnects.Add(1)
	p.events.push(fabric.Event{Kind: fabric.Idle, Peer: int(c.rank), Epoch: c.epoch})
	p.forget(c)
	if c.count == 0 {
		return
	}
	next := p.newConn(c.rank, connWanted)
	next.head, next.tail, next.first, next.count, next.queued, next.used = c.head, c.tail, c.first, c.count, c.queued, c.used
	for i := next.head; i != none; i = p.msgs[i].next {
		p.msgs[i].conn = next
	}
	c.head, c.tail, c.count, c.queued = none, none, 0, 0
}

// forget ends a connection: the device reaches nothing through it any more. mu is held.
func (p *port) forget(c *conn) {
	c.state = connGone
	if p.peers[c.rank].conn == c {
		p.peers[c.rank].conn = nil
	}
	p.dropQP(c)
}

// noticeDowns ends what there is with ranks that somebody found dead.
func (p *port) noticeDowns() {
	p.downSeen = p.n.downSeq.Load()
	p.n.downs.Range(func(rank, cause any) bool {
		p.bury(rank.(int), cause.(error))
		return true
	})
}

// bury ends what there is with a dead rank. Every message has its one end before the rank has its own.
func (p *port) bury(rank int, cause error) {
	if p.served(rank) != nil || p.peers[rank].down {
		return
	}
	p.mu.Lock()
	c := p.peers[rank].conn
	p.mu.Unlock()
	if c != nil && c.qp != nil {
		// The slot of a message that was cut off comes back as flushed; what arrived whole is still delivered.
		if err := c.qp.ToError(); err != nil {
			p.n.log.Warn("ibv: queue pair of a dead rank cannot be stopped", "rank", rank, "err", err)
		}
		p.drain()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c != nil {
		if c.state == connUp {
			p.open.Add(-1)
		}
		p.forget(c)
		for c.head != none {
			p.endMessage(c, &fabric.PeerDownError{Rank: rank, Op: "send", Cause: cause})
		}
	}
	p.peers[rank].down = true
	p.events.push(fabric.Event{Kind: fabric.Down, Peer: rank, Err: cause})
}

// drain takes all that the completion queue holds, before a queue pair is closed: some devices forget what is left of it
// then, with the slots of its messages (mlx5_cq_clean, providers/mlx5/cq.c of rdma-core).
func (p *port) drain() {
	for left := p.listener.cq.Cap(); left > 0; {
		p.mu.Lock()
		n, _, _ := p.turn(pollBudget) // of an error the next turn tells
		if n == 0 {
			return
		}
		left -= n
	}
}

// timers repeats what had no answer, closes idle connections when there are too many, and tries those that are silent.
func (p *port) timers(now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking = slices.DeleteFunc(p.asking, func(c *conn) bool {
		c.waits = c.state != connUp && c.state != connGone
		return !c.waits
	})
	for _, c := range p.asking {
		switch {
		case now < c.next:
		case now-c.since >= p.n.cfg.Messages.ConnectTimeout:
			p.lose(c, cmp.Or(c.trouble, errNoAnswer))
			c.next = never
		case c.state == connWanted:
			c.next = never
			p.wanted = append(p.wanted, c)
		default:
			c.tries++
			c.next = now + min(askFirst<<min(c.tries, 16), askMost)
			p.repeat(c)
		}
	}
	if now >= p.trimAt {
		p.trim(now)
	}
	if every := p.n.cfg.Messages.Keepalive; every > 0 && now >= p.keepAt {
		p.keepAt = now + every
		for _, c := range p.byQPN {
			// Of messages that asked for no completion nobody hears whether they arrived. Of all others the device tells.
			if !c.busy && c.state == connUp && c.count == c.silent {
				p.touch(c)
			}
			c.busy = false
		}
	}
}

// nextTimer is when timers has something to do.
func (p *port) nextTimer() time.Duration {
	at := never
	for _, c := range p.asking {
		if c.state != connUp && c.state != connGone {
			at = min(at, c.next)
		}
	}
	if len(p.byQPN) > 0 {
		at = min(at, p.trimAt)
		if p.n.cfg.Messages.Keepalive > 0 {
			at = min(at, p.keepAt)
		}
	}
	return at
}

// trim closes the idle connections that were not used for longest, if there are too many. It looks again while
// there are: those that are in use now become idle.
func (p *port) trim(now time.Duration) {
	p.trimAt = never
	limit := p.n.cfg.Messages.Connections
	excess := int(p.open.Load()) - limit
	if limit <= 0 || excess <= 0 {
		return
	}
	p.trimAt = now + askFirst
	var idle []*conn
	for _, c := range p.byQPN {
		if c.state == connUp && c.refused == nil && c.queued == 0 && now >= c.restsUntil {
			idle = append(idle, c)
		}
	}
	slices.SortFunc(idle, func(a, b *conn) int { return cmp.Compare(a.used, b.used) })
	for _, c := range idle[:min(excess, len(idle))] {
		if !c.parting {
			c.parting, c.proven = true, false
		}
		p.part(c)
	}
}
