//go:build linux && cgo

package ibv

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// call is a request for a connection, or the word that one is closed, which is repeated until the
// peer has answered.
type call struct {
	datagram
	rank    uint32
	lane    uint16
	since   time.Time
	next    time.Time // when to send it again
	tries   uint8
	trouble error       // a request: why the peer does not accept it
	answer  chan answer // a request's, with room for one
}

// answer ends a request.
type answer struct {
	qpn, psn uint32
	err      error
}

// link names a connection that was made.
type link struct{ epoch, qpn, psn uint32 }

// usable is why it is of no more use.
func (c *connector) usable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// connect requests a connection to a rank for a lane's queue pair, and waits until it has one, the
// rank is down, or ctx ends. A rank that leaves the request unanswered for Config.ConnectTimeout is
// down.
func (c *connector) connect(ctx context.Context, op string, lane, rank int, qpn, psn uint32) (link, error) {
	c.mu.Lock()
	if c.lost != nil {
		defer c.mu.Unlock()
		return link{}, c.lost
	}
	if c.epoch++; c.epoch == 0 {
		c.epoch = 1
	}
	x := &call{datagram: datagram{kind: dgRequest, epoch: c.epoch, qpn: qpn, psn: psn}, rank: uint32(rank),
		lane:  uint16(lane),
		since: time.Now(), answer: make(chan answer, 1)}
	c.calls[x.epoch] = x
	c.mu.Unlock()
	c.Wake()
	select {
	case <-ctx.Done():
		c.hangUp(lane, rank, x.epoch)
		return link{}, context.Cause(ctx)
	case a := <-x.answer:
		if a.err == errNoReply {
			c.n.found(rank, fmt.Errorf("ibv: rank %d left requests for a connection unanswered for %v "+
				"(Config.ConnectTimeout): is its process stopped, or its host out of reach?", rank, c.n.cfg.ConnectTimeout))
		}
		if err := c.n.deaths.Err(op, rank); err != nil {
			c.hangUp(lane, rank, x.epoch)
			return link{}, err
		}
		return link{x.epoch, a.qpn, a.psn}, a.err
	}
}

// hangUp has the peer close its end of a connection, on which nothing is in flight, or which is not
// made yet.
func (c *connector) hangUp(lane, rank int, epoch uint32) {
	c.mu.Lock()
	delete(c.made, epoch)
	delete(c.calls, epoch)
	if c.lost == nil && c.n.deaths.Cause(rank) == nil {
		c.calls[epoch] = &call{datagram: datagram{kind: dgClose, epoch: epoch}, rank: uint32(rank),
			lane: uint16(lane), since: time.Now()}
	}
	c.mu.Unlock()
	c.Wake()
}

// answered deals with a peer's answer. It reports whether that is one.
func (c *connector) answered(at laneOf, d *datagram) bool {
	c.mu.Lock()
	x := c.calls[d.epoch]
	if x != nil && (x.rank != at.rank || x.lane != at.lane) {
		c.mu.Unlock()
		return false
	}
	rank, made := c.made[d.epoch]
	switch asked := x != nil && x.kind == dgRequest; {
	case d.kind == dgReply && asked:
		c.made[d.epoch] = int(at.rank)
		c.endLocked(x, answer{qpn: d.qpn, psn: d.psn})
	case d.kind == dgReply && made:
		c.mu.Unlock()
		return rank == int(at.rank) // a copy
	case d.kind == dgReply:
		// It has made its end for a late copy of the request: of one that no lane waits for, or of a
		// connection that is closed.
		c.mu.Unlock()
		c.send(at.rank, at.lane, datagram{kind: dgClose, epoch: d.epoch})
		return x != nil
	case d.kind == dgRefusal && asked:
		x.trouble = fmt.Errorf("ibv: rank %d has no queue pair for a connection: %w; "+
			"have fewer (Config.Connections), or fewer lanes", at.rank, syscall.Errno(d.errno))
	case d.kind == dgClosed && x != nil && !asked:
		delete(c.calls, d.epoch)
	default:
		c.mu.Unlock()
		return false
	}
	c.mu.Unlock()
	return true
}

// errNoReply ends a request that had no answer.
var errNoReply = fmt.Errorf("ibv: no answer to requests for a connection")

// endLocked ends a call; the answer is for a request.
func (c *connector) endLocked(x *call, a answer) {
	delete(c.calls, x.epoch)
	if x.answer != nil {
		x.answer <- a
	}
}

// sendDue sends datagrams that are due, and ends requests that stay unanswered.
func (c *connector) sendDue(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.calls {
		switch {
		case c.n.deaths.Cause(int(x.rank)) != nil:
			c.endLocked(x, answer{})
		case now.Sub(x.since) >= c.n.cfg.ConnectTimeout:
			err := x.trouble
			if err == nil {
				err = errNoReply
			}
			c.endLocked(x, answer{err: err})
		case !now.Before(x.next):
			x.next = now.Add(min(askFirst<<min(x.tries, 16), askMost))
			x.tries++
			c.send(x.rank, x.lane, x.datagram)
		}
	}
}

// nextDueLocked is when sendDue has something to do; zero: never.
func (c *connector) nextDueLocked() (at time.Time) {
	for _, x := range c.calls {
		due := x.since.Add(c.n.cfg.ConnectTimeout)
		if x.next.Before(due) {
			due = x.next
		}
		if at.IsZero() || due.Before(at) {
			at = due
		}
	}
	return at
}

// lose ends all calls: datagrams come and go no more.
func (c *connector) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		return
	}
	c.lost = fmt.Errorf("ibv: lanes connect to no further rank: %w", err)
	c.n.log.Warn("ibv: lanes connect to no further rank", "err", err)
	for _, x := range c.calls {
		c.endLocked(x, answer{err: c.lost})
	}
}

// send sends a datagram to a rank, about a lane.
func (c *connector) send(to uint32, lane uint16, d datagram) {
	d.to, d.endpoint = to, lane|laneBit
	out := []datagram{d}
	if c.n.cfg.mangle != nil {
		out = c.n.cfg.mangle(d)
	}
	for _, d := range out {
		c.datagramsSent.Add(1)
		c.datagrams.send(d) // without room it is as good as lost
	}
}
