package am

import (
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// stage is a resource that a request needs. Requests take them in this order, without exceptions. A
// request that waits for one holds those before it and none behind it, so no two requests wait for
// each other. What ends each wait does not depend on requests that wait: replies end calls,
// receivers give credits back, the network sends messages, and a program cannot prepare all
// buffers.
type stage uint8

const (
	stagePlace   stage = iota // a call's place at its peer
	stageReply                // the receive buffer for the reply
	stageCredit               // the right to use one receive buffer of the peer
	stageShare                // of the send buffers, for a peer that is not connected
	stageRoom                 // in the network's queue to the peer
	stagePrepare              // the right to keep a send buffer in the program's hands
	stageBuffer               // a send buffer
	acquired
)

// claim is what one request needs, and what it has of it: all stages before next.
type claim struct {
	p       *peer
	needs   needs
	next    stage
	share   uint32            // the connection that the share was taken for, counted from 1; 0: none
	buf     fabric.SendBuf    // of stageBuffer
	waiting queue.Link[claim] // in the queue of next
	w       *waiter           // unparked when the claim is complete
}

// needs are the stages that a request goes through, a bit for each.
type needs uint8

const (
	needsCall    needs = 1<<stagePlace | 1<<stageReply
	needsSend    needs = 1<<stageCredit | 1<<stageShare | 1<<stageRoom
	needsBuffer  needs = 1 << stageBuffer
	needsPrepare needs = 1<<stagePrepare | 1<<stageBuffer
)

// has reports whether a stage is among them.
func (n needs) has(s stage) bool { return n>>s&1 != 0 }

// fifo is a queue of claims that wait for one resource.
type fifo = queue.List[claim]

// resources are the pools behind an acquirer. None of the methods waits.
type resources interface {
	// takeBoth takes a credit and, for a call, a reply buffer; or nothing.
	takeBoth(p *peer, call bool) bool
	takeReply(p *peer) bool
	giveReply(p *peer)
	takeCredit(p *peer) bool
	giveCredit(p *peer)
	takeBuffer() (fabric.SendBuf, bool)
	giveBuffer(b fabric.SendBuf)
}

// acquirer gives requests what they need. Each resource has one queue, first come, first served; a
// resource that comes back goes to the first in its queue, at once. An acquirer never waits: its
// callers serialise all calls (the endpoint's lock).
type acquirer struct {
	from resources

	places   int // the most calls to one peer that wait or are unanswered
	shares   int // the most messages to peers that are not connected
	prepares int // the most send buffers in the program's hands

	shared     int // messages to peers that are not connected
	prepared   int
	committing int // prepared messages that are being sent: the network may refuse them yet

	replies, shareless, unprepared, buffers fifo
}

// peerClaims is a peer's part of an acquirer.
type peerClaims struct {
	calls               int    // that have a place
	connection          uint32 // counts the network's connections, from 1
	connected           bool
	shares              int  // of acquirer.shared
	full                bool // the network's queue to the peer
	place, credit, room fifo
}

// queueOf is where claims wait for a resource.
func (a *acquirer) queueOf(c *claim) *fifo {
	switch c.next {
	case stagePlace:
		return &c.p.place
	case stageReply:
		return &a.replies
	case stageCredit:
		return &c.p.credit
	case stageShare:
		return &a.shareless
	case stageRoom:
		return &c.p.room
	case stagePrepare:
		return &a.unprepared
	}
	return &a.buffers
}

// takeAtOnce takes everything for a request to a connected peer, if no request waits for any of it.
// Else it changes nothing.
func (a *acquirer) takeAtOnce(c *claim) bool {
	buffer := c.needs.has(stageBuffer)
	if c.needs.has(stagePrepare) || buffer && a.buffers.Len() > 0 || !a.takeSmall(c.p, c.needs&needsCall != 0) {
		return false
	}
	c.next, c.share = acquired, 0
	if !buffer {
		return true
	}
	var ok bool
	if c.buf, ok = a.from.takeBuffer(); !ok {
		c.next = stageBuffer
		a.retreat(c, 0)
	}
	return ok
}

// takeSmall is takeAtOnce without a claim, which a request that takes no send buffer and is sent at
// once does not need.
func (a *acquirer) takeSmall(p *peer, call bool) bool {
	if !p.connected || p.full || p.credit.Len()+p.room.Len() > 0 ||
		call && (p.calls >= a.places || p.place.Len()+a.replies.Len() > 0) || !a.from.takeBoth(p, call) {
		return false
	}
	if call {
		p.calls++
	}
	return true
}

// try takes all that c lacks, or changes nothing: then c.next is the first that was missing. It
// waits behind the claims that are queued, but does not queue.
func (a *acquirer) try(c *claim) bool {
	had := c.next
	if a.advance(c) {
		return true
	}
	missing := c.next
	a.retreat(c, had)
	c.next = missing
	return false
}

// commit is try for a prepared message with its payload in b. A message that has to wait gives
// its buffer back, after keep has copied the payload: the requests in front of it may wait for a
// buffer.
func (a *acquirer) commit(c *claim, b fabric.SendBuf, keep func()) bool {
	if a.try(c) {
		return true
	}
	keep()
	a.cancel(b)
	return false
}

// cancel takes a prepared buffer back.
func (a *acquirer) cancel(b fabric.SendBuf) {
	a.from.giveBuffer(b)
	a.serve(&a.buffers)
	a.unprepare()
}

// reply reports whether a reply to a peer may be sent now: always. It takes none of these
// resources.
func (a *acquirer) reply(*peer) bool { return true }

// acquire takes what c lacks as far as it is there, and queues c for the rest. It reports whether c
// is complete; if not, its waiter is unparked when it is.
func (a *acquirer) acquire(c *claim) bool {
	if a.advance(c) {
		return true
	}
	a.queueOf(c).Add(&c.waiting, c)
	return false
}

// acquireFirst is acquire for a claim that has come back to a resource: it goes to the head.
func (a *acquirer) acquireFirst(c *claim) bool {
	if a.advance(c) {
		return true
	}
	a.queueOf(c).AddFirst(&c.waiting, c)
	return false
}

// advance takes what c lacks, in order, up to the first that is missing.
func (a *acquirer) advance(c *claim) bool {
	for ; c.next < acquired; c.next++ {
		none := c.next == stageShare && c.p.connected // it needs none, and so has no queue
		if c.needs.has(c.next) && !((none || a.queueOf(c).Len() == 0) && a.take(c)) {
			return false
		}
	}
	return true
}

// take takes one resource of stage c.next, without regard to the queue.
func (a *acquirer) take(c *claim) (ok bool) {
	p := c.p
	switch c.next {
	case stagePlace:
		if ok = p.calls < a.places; ok {
			p.calls++
		}
	case stageReply:
		ok = a.from.takeReply(p)
	case stageCredit:
		ok = a.from.takeCredit(p)
	case stageShare:
		if c.share = 0; p.connected {
			return true
		}
		if ok = a.shared < a.shares; ok {
			a.shared++
			p.shares++
			c.share = p.connection + 1
		}
	case stageRoom:
		ok = !p.full
	case stagePrepare:
		if ok = a.prepared+a.committing < a.prepares; ok {
			a.prepared++
		}
	case stageBuffer:
		c.buf, ok = a.from.takeBuffer()
	}
	return ok
}

// serve gives the free units of a resource to the claims that wait for it. A claim that then misses
// another one queues there.
func (a *acquirer) serve(q *fifo) {
	if q.First() != nil {
		a.serveAll(q)
	}
}

func (a *acquirer) serveAll(q *fifo) {
	for c := q.First(); c != nil && a.take(c); c = q.First() {
		a.passOn(c)
	}
}

// passOn moves a claim that has what it waited for on to what comes next.
func (a *acquirer) passOn(c *claim) {
	c.waiting.Leave()
	c.next++
	if a.acquire(c) {
		c.w.unpark()
	}
}

// abandon ends a claim: it leaves its queue, and gives everything back. A dead peer's claim may
// have kept those behind it.
func (a *acquirer) abandon(c *claim) {
	if c.waiting.In() != nil {
		c.waiting.Leave()
		a.serve(a.queueOf(c))
	}
	a.retreat(c, 0)
}

// retreat gives back what c holds from a stage on, the last first.
func (a *acquirer) retreat(c *claim, to stage) {
	for c.next > to {
		c.next--
		if c.needs.has(c.next) {
			a.give(c)
		}
	}
}

// give gives back the resource of stage c.next.
func (a *acquirer) give(c *claim) {
	switch c.next {
	case stagePlace:
		a.leavePlace(c.p)
	case stageReply:
		a.from.giveReply(c.p)
		a.serve(&a.replies)
	case stageCredit:
		a.from.giveCredit(c.p)
		a.serve(&c.p.credit)
	case stageShare:
		if c.share == c.p.connection+1 && c.p.shares > 0 {
			c.p.shares--
			a.shared--
			a.serve(&a.shareless)
		}
		c.share = 0
	case stagePrepare:
		a.unprepare()
	case stageBuffer:
		a.from.giveBuffer(c.buf)
		c.buf = fabric.SendBuf{}
		a.serve(&a.buffers)
	}
}

// leavePlace ends a call's stay at its peer.
func (a *acquirer) leavePlace(p *peer) {
	p.calls--
	a.serve(&p.place)
}

// unprepare takes a send buffer out of the program's hands.
func (a *acquirer) unprepare() {
	a.prepared--
	a.serve(&a.unprepared)
}

// committed ends the sending of a prepared message: if it was not sent, it is still prepared.
func (a *acquirer) committed(sent bool) {
	a.committing--
	a.prepared++
	if sent {
		a.unprepare()
	}
}

// reserving counts the claims that wait for a buffer to prepare a message in.
func (a *acquirer) reserving() (n int) {
	for c := a.buffers.First(); c != nil; c = c.waiting.Next() {
		if c.needs.has(stagePrepare) {
			n++
		}
	}
	return n
}

// credited serves the claims that wait for credits of a peer, which has granted some.
func (a *acquirer) credited(p *peer) { a.serve(&p.credit) }

// roomAt serves the claims that wait for room in the queue to a peer.
func (a *acquirer) roomAt(p *peer) {
	p.full = false
	a.serve(&p.room)
}

// connect notes that the network has a connection to a peer: messages sent before are on their way.
func (a *acquirer) connect(p *peer) {
	p.connected = true
	p.connection++
	a.dropShares(p)
}

// disconnect notes that there is no connection to a peer any more.
func (a *acquirer) disconnect(p *peer) { p.connected = false }

// dropShares ends the shares of a peer that needs none any more, and serves claims on one.
func (a *acquirer) dropShares(p *peer) {
	a.shared -= p.shares
	p.shares = 0
	for c := a.shareless.First(); c != nil; {
		next := c.waiting.Next()
		if c.p == p && p.connected {
			c.share = 0 // of a request before it, if it queued behind others at once
			a.passOn(c)
		}
		c = next
	}
	a.serve(&a.shareless)
}

// unparkAll wakes all claims of a peer, or with nil all claims of the queues that peers share.
func (a *acquirer) unparkAll(p *peer) {
	queues := [...]*fifo{&a.replies, &a.shareless, &a.unprepared, &a.buffers, nil, nil, nil}
	if p != nil {
		queues[4], queues[5], queues[6] = &p.place, &p.credit, &p.room
	}
	for _, q := range queues {
		if q == nil {
			continue
		}
		for c := q.First(); c != nil; c = c.waiting.Next() {
			if p == nil || c.p == p {
				c.w.unpark()
			}
		}
	}
}
