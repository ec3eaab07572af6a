//go:build linux && cgo

package ibv

import (
	"cmp"
	"slices"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// closeIfIdle closes a connection if nothing of it is in flight. Messages without a
// completion may have arrived long ago: a probe shows it, and at its end this is tried again. A
// probe also finds that a peer is down: it would not answer the close,
// and a peer that has to answer may take its time.
func (s *connections) closeIfIdle(c *conn) {
	switch {
	case c.state != connUp || c.q.err != nil || !c.closing:
	case c.q.flight.n+c.waiting.n > 0:
		if c.q.silent > 0 {
			s.out.tx.probe(&c.q)
		}
		if !c.q.probing {
			c.closing = false // it is in use
		}
	case int(c.q.rank) == s.n.cfg.Rank:
		if c.closing = false; c.sent == c.arrived {
			s.stop(c)
			s.shut(c)
		}
	default:
		if !c.proven && s.out.tx.probe(&c.q) {
			return
		}
		c.closing = false
		s.stop(c)
		c.attempt++
		s.begin(c)
	}
}

// stop ends the posting to a connection.
func (s *connections) stop(c *conn) {
	c.state = connClosing
	s.open.Add(-1)
}

// askedToClose answers the peer that has nothing in flight: this end agrees if it has neither, and
// if all messages of both were taken. An attempt that was not agreed to is not agreed to later, by
// a late copy: the peer goes on.
func (s *connections) askedToClose(at *peer, d *datagram) {
	c := at.conn
	if c == nil || c.state == connWanted || c.state == connAsking {
		if d.epoch <= at.epoch { // it was closed before; the answer was lost
			s.sendTo(&conn{q: sendQueue{rank: int32(d.from)}}, datagram{kind: dgClosed, epoch: d.epoch, attempt: d.attempt})
		}
		return
	}
	if c.q.epoch != d.epoch {
		if d.epoch < c.q.epoch {
			s.sendTo(c, datagram{kind: dgClosed, epoch: d.epoch, attempt: d.attempt})
		}
		return
	}
	if c.state == connAnswering {
		s.made(c) // it closes open ones only
	}
	probe := c.q.flight.n == 1 && c.waiting.n == 0 && c.q.probing // which leaves nothing behind
	inFlight := c.q.flight.n+c.waiting.n > 0 && !probe && c.state == connUp
	agreed := !inFlight && c.q.err == nil && c.sent == d.arrived && c.arrived == d.sent && d.attempt > c.declined &&
		(c.state == connUp || c.state == connClosing)
	if agreed {
		if c.state == connUp {
			s.stop(c)
		}
		s.sendTo(c, datagram{kind: dgClosed, attempt: d.attempt})
		if probe {
			s.out.tx.end(&c.q, nil)
		}
		s.shut(c)
		return
	}
	c.declined = max(c.declined, d.attempt)
	if c.q.silent > 0 {
		s.out.tx.probe(&c.q) // the next attempt finds it idle
	}
	s.sendTo(c, datagram{kind: dgStay, attempt: d.attempt})
}

// shut is called when this end knows that both agree. Messages queued meanwhile need another
// connection.
func (s *connections) shut(c *conn) {
	s.count.Disconnects++
	s.events.push(fabric.Event{Kind: fabric.Idle, Peer: int(c.q.rank), Epoch: c.q.epoch})
	s.forget(c)
	if c.waiting.n == 0 {
		return
	}
	next := s.want(c.q.rank)
	next.waiting, next.used = c.waiting, c.used
	for i, n := next.waiting.head, next.waiting.n; n > 0; i, n = s.out.tx.requests[i].next, n-1 {
		s.out.all[i].conn = next
	}
	c.waiting = list{}
}

// forget ends a connection: the device reaches nothing through it any more.
func (s *connections) forget(c *conn) {
	c.state = connGone
	if s.peers[c.q.rank].conn == c {
		s.peers[c.q.rank].conn = nil
	}
	s.dropQP(c)
}

// endPeer ends the connection to a rank that is down, and everything of it.
func (s *connections) endPeer(rank int, cause error) {
	if c := s.to(rank); c != nil {
		if c.state == connUp {
			s.open.Add(-1)
		}
		s.forget(c)
		s.out.endConn(c, &fabric.PeerDownError{Rank: rank, Op: "send", Cause: cause})
	}
	s.peer(rank).down = true
}

// runTimers repeats what had no answer, closes idle connections when there are too many, and probes
// those without traffic.
func (s *connections) runTimers(now time.Duration) {
	s.asking = slices.DeleteFunc(s.asking, func(c *conn) bool {
		c.listed = c.state != connUp && c.state != connGone
		return !c.listed
	})
	for _, c := range s.asking {
		switch {
		case now < c.next:
		case now-c.since >= s.n.cfg.ConnectTimeout:
			s.out.tx.fail(&c.q, cmp.Or(c.trouble, errNoAnswer))
			c.next = fabric.Never
		case c.state == connWanted:
			c.next = fabric.Never
			s.wanted = append(s.wanted, c)
		default:
			c.tries++
			c.next = now + min(askFirst<<min(c.tries, 16), askMost)
			s.repeat(c)
		}
	}
	if now >= s.trimAt {
		s.trim(now)
	}
	if every := s.n.cfg.Messages.Keepalive; every > 0 && now >= s.keepAt {
		s.keepAt = now + every
		for _, c := range s.byQPN {
			// Unsignaled messages do not show whether they arrived. All others do.
			if !c.busy && c.state == connUp && c.waiting.n == 0 && c.q.flight.n == c.q.silent {
				s.out.tx.probe(&c.q)
			}
			c.busy = false
		}
	}
}

// nextTimer is when runTimers has something to do.
func (s *connections) nextTimer() time.Duration {
	at := fabric.Never
	for _, c := range s.asking {
		if c.state != connUp && c.state != connGone {
			at = min(at, c.next)
		}
	}
	if len(s.byQPN) > 0 {
		at = min(at, s.trimAt)
		if s.n.cfg.Messages.Keepalive > 0 {
			at = min(at, s.keepAt)
		}
	}
	return at
}

// trim closes the idle connections that were not used for longest, if there are too many. It looks
// again while there are: those that are in use now become idle.
func (s *connections) trim(now time.Duration) {
	s.trimAt = fabric.Never
	limit := s.n.cfg.Messages.Connections
	excess := int(s.open.Load()) - limit
	if limit <= 0 || excess <= 0 {
		return
	}
	s.trimAt = now + askFirst
	var idle []*conn
	for _, c := range s.byQPN {
		if c.state == connUp && c.q.err == nil && c.waiting.n == 0 && now >= c.restsUntil {
			idle = append(idle, c)
		}
	}
	slices.SortFunc(idle, func(a, b *conn) int { return cmp.Compare(a.used, b.used) })
	for _, c := range idle[:min(excess, len(idle))] {
		if !c.closing {
			c.closing, c.proven = true, false
		}
		s.closeIfIdle(c)
	}
}
