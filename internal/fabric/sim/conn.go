package sim

import (
	"errors"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// conn is one end of a connection.
type conn struct {
	p      *endpoint
	far    *conn // the other end; itself, when a rank talks to itself
	peer   int32
	state  connState
	no     bool // closing: the other end disagrees
	tries  int  // datagrams since something came back
	epoch  uint32
	ticket uint64 // of the handshake

	use queue.Link[conn]

	out             queue.Ring[message] // first those that landed, then those on the wire, then those to be posted
	landed          int
	posted          int // those on the wire included
	lastAt, lastAck int64

	arrive timer // of the first on the wire; closing: of the question
	ack    timer // of the first that landed; closing: of the answer
	hand   timer // repeats a datagram of the handshake
}

type connState uint8

const (
	connecting connState = iota // requested; the request is repeated
	accepting                   // answered, and does not know yet whether that came
	up
	closing // the other end may refuse
	gone
)

// link is two ranks' endpoints of one number.
type link struct {
	pair
	endpoint int32
}

var (
	errHandshake = errors.New("sim: no answer to the attempts to connect")
	errSlotSize  = errors.New("sim: the two endpoints differ in their size of slots")
)

// newConn adds an end.
func (p *endpoint) newConn(peer int32) *conn {
	c := &conn{p: p, peer: peer}
	c.arrive.owner, c.ack.owner, c.hand.owner = c, c, c
	p.conns[peer] = c
	p.byUse.Add(&c.use, c)
	p.open++
	return c
}

// connect begins a handshake.
func (p *endpoint) connect(peer int32) *conn {
	w := p.n.r.w
	c := p.newConn(peer)
	w.tickets++
	c.ticket = w.tickets
	if peer == p.n.r.id { // it agrees
		w.arm(&c.hand, w.paths.transit(peer, peer, headerBytes))
		return c
	}
	c.handshake(request)
	return c
}

// handshake sends a datagram of the handshake, and has it repeated.
func (c *conn) handshake(kind datagramKind) {
	const doublings = 6
	w := c.p.n.r.w
	c.sendHandshake(kind)
	c.tries++
	d := int64(w.cfg.HandshakeTimeout) << min(c.tries-1, doublings)
	w.arm(&c.hand, w.now+d+w.rng.below(d/2+1))
}

// sendHandshake sends a datagram of the handshake.
func (c *conn) sendHandshake(kind datagramKind) {
	p := c.p
	p.stats.Handshakes++
	p.n.r.w.emit(markHandshake, p.n.r.id, c.peer, c.ticket, uint64(kind))
	p.datagram(kind, c.peer, c.ticket, nil)
}

// count numbers the connection.
func (c *conn) count() {
	w := c.p.n.r.w
	l := link{pairOf(c.p.n.r.id, c.peer), int32(c.p.num)}
	w.links[l]++
	c.epoch = w.links[l]
}

// made is when this end knows that both are ready.
func (c *conn) made(active bool) {
	p := c.p
	w := p.n.r.w
	w.disarm(&c.hand)
	c.state = up
	p.up++
	if active {
		p.stats.Connects++
	} else {
		p.stats.Accepts++
	}
	w.emit(markUp, p.n.r.id, c.peer, uint64(p.num), uint64(c.epoch))
	p.push(fabric.Event{Kind: fabric.Up, Peer: int(c.peer), Epoch: c.epoch}, true)
	c.post()
	p.trim()
}

// trim closes the connection that was unused for longest, if there are too many.
func (p *endpoint) trim() {
	limit := p.n.r.w.cfg.Connections
	if limit == 0 || p.open <= limit {
		return
	}
	for c := p.byUse.First(); c != nil && p.open > limit; c = c.use.Next() {
		if c.state == up && c.out.Len() == 0 {
			c.close()
		}
	}
}

// Disconnect starts to close an idle connection. One that is not idle, or not made, stays.
func (p *endpoint) Disconnect(peer int) error {
	if err := p.usable("disconnect"); err != nil {
		return err
	}
	if err := p.n.refuse("disconnect", peer); err != nil {
		return err
	}
	if c := p.conns[int32(peer)]; c != nil && c.state == up && c.out.Len() == 0 {
		c.close()
	}
	return nil
}

// close requests it of the other end, behind all messages.
func (c *conn) close() {
	p := c.p
	w := p.n.r.w
	w.emit(markClosing, p.n.r.id, c.peer, uint64(p.num), uint64(c.epoch))
	c.state = closing
	p.open--
	p.up--
	p.stats.Disconnects++
	c.lastAt = max(c.lastAt+1, w.paths.transit(p.n.r.id, c.peer, headerBytes))
	w.arm(&c.arrive, c.lastAt)
}

// shut is when this end knows that both agree. Messages queued meanwhile need another connection.
func (c *conn) shut() {
	p := c.p
	p.n.r.w.emit(markIdle, p.n.r.id, c.peer, uint64(p.num), uint64(c.epoch))
	c.state = closing // its counts are settled
	queued := c.out
	c.remove()
	p.push(fabric.Event{Kind: fabric.Idle, Peer: int(c.peer), Epoch: c.epoch}, true)
	if queued.Len() > 0 {
		p.connect(c.peer).out = queued
	}
}

// remove forgets this end.
func (c *conn) remove() {
	p := c.p
	w := p.n.r.w
	w.disarm(&c.arrive)
	w.disarm(&c.ack)
	w.disarm(&c.hand)
	if c.state != closing {
		p.open--
	}
	if c.state == up {
		p.up--
	}
	c.state, c.out = gone, queue.Ring[message]{}
	delete(p.conns, c.peer)
	c.use.Leave()
}

// used makes the connection the one that was used last.
func (p *endpoint) used(c *conn) {
	if c.state != gone {
		p.byUse.Add(&c.use, c)
	}
}

// post puts queued messages on the wire, if the connection is made.
func (c *conn) post() {
	p := c.p
	w := p.n.r.w
	if c.state != up || c.posted == c.out.Len() {
		return
	}
	p.stats.Doorbells++
	for ; c.posted < c.out.Len(); c.posted++ {
		m := c.out.Item(c.posted)
		c.lastAt = max(c.lastAt+1, w.paths.transit(p.n.r.id, c.peer, headerBytes+int(m.n)+len(m.w.Src)))
		m.at = c.lastAt
	}
	if !c.arrive.armed() {
		w.arm(&c.arrive, c.out.Item(c.landed).at)
	}
}
