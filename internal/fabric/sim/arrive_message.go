package sim

import "github.com/ibconduit/conduit/internal/fabric"

// fire is one of the timers.
func (c *conn) fire(t *timer) {
	if t == &c.hand {
		c.again()
		return
	}
	n := c.p.n
	w := n.r.w
	blocked := w.paths.blockedBack(t, n.r.id, c.peer)
	if t == &c.arrive {
		blocked = w.paths.blocked(n.r.id, c.peer) || c.far.state == gone && c.state != closing
	}
	switch w.paths.passes(t, n.r.id, c.peer, blocked) {
	case hold:
	case lost:
		n.reportDown(c.peer, errSilent)
	case pass:
		switch {
		case t == &c.arrive && c.state == closing:
			c.asked()
		case t == &c.arrive:
			c.land()
		case c.state == closing:
			c.answered()
		default:
			c.acked()
		}
	}
}

// again repeats what had no answer.
func (c *conn) again() {
	switch {
	case c.peer == c.p.n.r.id:
		c.far = c
		c.count()
		c.made(true)
	case c.tries >= c.p.n.r.w.cfg.HandshakeTries:
		c.p.n.reportDown(c.peer, errHandshake)
	case c.state == connecting:
		c.handshake(request)
	case c.state == accepting:
		c.handshake(reply)
	}
}

// land is the arrival of the first message on the wire.
func (c *conn) land() {
	p := c.p
	w := p.n.r.w
	q := c.far.p
	if c.far.state == accepting {
		c.far.made(false) // it knows now that its reply came
	}
	m := c.out.Item(c.landed)
	if m.w.Src != nil && !m.written {
		m.written = true
		copy(q.n.r.segment[m.w.Off:], m.w.Src)
		w.touch(q.n.r)
	}
	k := len(q.posted) - 1
	if k < 0 {
		q.stats.RNR++
		w.rnr++
		w.emit(markRNR, q.n.r.id, p.n.r.id, uint64(q.num), uint64(m.n))
		w.arm(&c.arrive, w.now+int64(w.cfg.RNRDelay)+w.rng.upTo(w.cfg.Jitter))
		return
	}
	id := q.posted[k]
	q.posted = q.posted[:k]
	slot := &q.slots[id]
	slot.lent, slot.used = true, m.n
	data := q.memory(slot)[:m.n:m.n]
	copy(data, p.sends[m.buf].data)
	q.stats.Arrivals++
	q.stats.ArrivalBytes += uint64(m.n)
	q.used(c.far)
	w.emit(markDeliver, q.n.r.id, p.n.r.id, uint64(q.num), uint64(m.n))
	q.push(fabric.Event{Kind: fabric.Arrived, Peer: int(p.n.r.id), Slot: id, Epoch: c.epoch, Data: data}, m.solicited)

	c.landed++
	m.at = max(c.lastAck, w.now+w.paths.lag(c.peer, p.n.r.id)+w.rng.upTo(w.cfg.Jitter))
	c.lastAck = m.at
	if !c.ack.armed() && !p.n.r.dead {
		w.arm(&c.ack, c.out.Item(0).at)
	}
	if c.landed < c.posted {
		w.arm(&c.arrive, c.out.Item(c.landed).at)
	}
}

// acked is when the sender learns that its oldest message arrived.
func (c *conn) acked() {
	p := c.p
	c.landed--
	c.posted--
	p.sent(c, c.out.Pop(), nil)
	if c.landed > 0 {
		p.n.r.w.arm(&c.ack, c.out.Item(0).at)
	}
	if c.out.Len() == 0 {
		p.trim()
	}
}

// asked is the arrival of the request to close.
func (c *conn) asked() {
	w, far := c.p.n.r.w, c.far
	if far.state == accepting {
		far.made(false)
	}
	c.no = far != c && far.state == up && far.out.Len() > 0 || far == c && c.out.Len() > 0
	if !c.no && far != c && far.state != gone {
		if far.state == up {
			far.p.open--
			far.p.up--
			far.p.stats.Disconnects++
		}
		far.shut()
	}
	w.arm(&c.ack, w.now+w.paths.lag(c.peer, c.p.n.r.id)+w.rng.upTo(w.cfg.Jitter))
}

// answered is the arrival of the answer.
func (c *conn) answered() {
	p := c.p
	if !c.no {
		c.shut()
		return
	}
	p.n.r.w.emit(markRefused, p.n.r.id, c.peer, uint64(p.num), uint64(c.epoch))
	c.state = up
	p.open++
	p.up++
	p.stats.Disconnects--
	p.used(c)
	c.post()
	p.trim()
}

// fire is its arrival.
func (d *datagram) fire(*timer) {
	w := d.w
	n := &w.ranks[d.to].net
	if w.paths.blocked(d.from, d.to) {
		w.emit(markNoteLost, d.from, d.to, uint64(d.endpoint), uint64(d.kind))
		d.recycle()
		return
	}
	p, known := n.endpoint(int(d.endpoint))
	switch {
	case p == nil && !known && d.kind == request && n.state != closed:
		// The rank lives and has not got so far.
		answer := w.newDatagram()
		answer.kind, answer.from, answer.to, answer.endpoint, answer.ticket = later, d.to, d.from, d.endpoint, d.ticket
		answer.launch()
		d.recycle()
	case p == nil || p.closed:
		d.recycle()
	case d.kind == note:
		p.noteArrived(d)
	default:
		p.handshake(d)
		d.recycle()
	}
}

// noteArrived keeps a note for the next Poll, if there is room.
func (p *endpoint) noteArrived(d *datagram) {
	w := p.n.r.w
	if p.notes.Len() >= w.cfg.Notes.Room {
		p.stats.NotesDropped++
		w.emit(markNoteDropped, d.to, d.from, uint64(d.endpoint), uint64(d.n))
		d.recycle()
		return
	}
	if p.n.deaths.Cause(int(d.from)) != nil { // Down was its last event
		d.recycle()
		return
	}
	p.stats.NotesArrived++
	w.emit(markNoteArrived, d.to, d.from, uint64(d.endpoint), uint64(d.n))
	p.notes.Push(d)
	p.push(fabric.Event{Kind: fabric.NoteArrived, Peer: int(d.from), Data: d.data[:d.n:d.n]}, true)
}

// handshake gives a datagram to the end that it is for.
func (p *endpoint) handshake(d *datagram) {
	if d.kind == request {
		p.requested(d.from, d.ticket)
		return
	}
	c := p.conns[d.from]
	switch {
	case c == nil:
	case d.kind == reply:
		c.replied(d.ticket)
	case d.kind == rtu:
		if c.ticket == d.ticket && c.state == accepting {
			c.made(false)
		}
	case d.kind == later:
		c.wait(d.ticket)
	}
}

// requested is the arrival of a peer's request. The world knows whether it is a late copy.
func (p *endpoint) requested(from int32, ticket uint64) {
	w := p.n.r.w
	theirs, _ := w.ranks[from].net.endpoint(p.num)
	if theirs == nil || p.n.deaths.Cause(int(from)) != nil {
		return
	}
	caller := theirs.conns[p.n.r.id]
	if caller == nil || caller.ticket != ticket || caller.state != connecting {
		return
	}
	if theirs.cfg.SlotSize != p.cfg.SlotSize {
		p.n.reportDown(from, errSlotSize)
		theirs.n.reportDown(p.n.r.id, errSlotSize)
		return
	}
	c := p.conns[from]
	if c != nil && c.state == closing { // the peer would not connect if it had not agreed
		c.shut()
		c = p.conns[from]
	}
	switch {
	case c == nil:
		c = p.newConn(from)
	case c.state == accepting && c.ticket == ticket:
		c.sendHandshake(reply) // the first was lost, perhaps
		return
	case c.state == connecting && p.n.r.id > from:
		w.disarm(&c.hand) // both request at once: it counts as the lower rank's
	default:
		return
	}
	c.ticket, c.far, c.state, c.tries = ticket, caller, accepting, 0
	c.count()
	c.handshake(reply)
}

// replied is the arrival of a reply.
func (c *conn) replied(ticket uint64) {
	if c.ticket != ticket {
		return
	}
	switch c.state {
	case connecting:
		theirs, _ := c.p.n.r.w.ranks[c.peer].net.endpoint(c.p.num)
		far := theirs.conns[c.p.n.r.id]
		if far == nil || far.ticket != ticket {
			return // it has given up
		}
		c.far, c.epoch = far, far.epoch
		c.sendHandshake(rtu)
		c.made(true)
	case up:
		c.sendHandshake(rtu) // the first was lost
	}
}

// wait is the answer of a rank whose endpoint is not open yet: it lives, repeat the request.
func (c *conn) wait(ticket uint64) {
	if c.ticket == ticket && c.state == connecting {
		c.tries = min(c.tries, 1)
	}
}
