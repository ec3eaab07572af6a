package sim

import (
	"fmt"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// message is one message that is not complete.
type message struct {
	buf       int32 // send buffer
	n         int32
	solicited bool
	written   bool // w was
	cookie    uint64
	w         fabric.Write
	at        int64 // when it arrives; then when that is known
}

// Reserve takes a send buffer.
func (p *endpoint) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if err := p.usable("reserve"); err != nil {
		return fabric.SendBuf{}, err
	}
	id, err := p.out.Reserve(f)
	if err != nil {
		p.starved = true
		return fabric.SendBuf{}, err
	}
	return fabric.SendBuf{Data: p.memory(&p.sends[id]), ID: id}, nil
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (p *endpoint) Release(b fabric.SendBuf) {
	if p.closed {
		return
	}
	if err := p.out.Take("release", b.ID); err != nil {
		panic(fmt.Errorf("sim: %w", err))
	}
	p.sends[b.ID].used = int32(len(p.sends[b.ID].data))
	p.give(b.ID)
}

// give makes a send buffer free.
func (p *endpoint) give(id int32) {
	b := &p.sends[id]
	scribble(b.data[:b.used])
	b.used = 0
	p.out.Free(id)
	if p.starved && (!p.out.Urgent(id) || p.out.Left() == 1) { // one more of those for replies is no room for others
		p.starved = false
		p.Wake()
	}
}

// Send queues a message, and posts it unless More follows.
func (p *endpoint) Send(peer int, b fabric.SendBuf, n int, wr *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if b.ID != fabric.Copied {
		return p.send(peer, b, n, wr, cookie, f)
	}
	if err := fabric.CheckCopied(peer, b, n, wr, cookie); err != nil {
		return err
	}
	own, err := p.Reserve(f)
	if err != nil {
		return err
	}
	copy(own.Data, b.Data[:n])
	if err = p.send(peer, own, n, nil, 0, f); err != nil {
		starved := p.starved
		p.starved = false // no room has come by giving back what was free before
		p.Release(own)
		p.starved = starved
	}
	return err
}

func (p *endpoint) send(peer int, b fabric.SendBuf, n int, wr *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if err := p.checkSend(peer, b, n, wr); err != nil {
		return err
	}
	c := p.conns[int32(peer)]
	if c == nil {
		c = p.connect(int32(peer))
	}
	if c.out.Len() >= p.n.r.w.cfg.Queue {
		p.full = true
		return fabric.ErrQueueFull
	}
	m := message{buf: b.ID, n: int32(n), cookie: cookie, solicited: f&fabric.Solicited != 0}
	p.stats.Sends++
	p.stats.SendBytes += uint64(n)
	if wr != nil {
		m.w = *wr
		p.stats.Writes++
		p.stats.WriteBytes += uint64(len(wr.Src))
	}
	_ = p.out.Take("send", b.ID) // checkSend found it the caller's
	p.sends[b.ID].used = int32(n)
	c.out.Push(m)
	p.used(c)
	p.n.r.w.emit(markSend, p.n.r.id, int32(peer), uint64(p.num), uint64(n))
	if f&fabric.More != 0 {
		p.held = append(p.held, c)
		return nil
	}
	c.post()
	return p.Kick()
}

func (p *endpoint) checkSend(peer int, b fabric.SendBuf, n int, wr *fabric.Write) error {
	if err := p.usable("send"); err != nil {
		return err
	}
	if err := p.out.Check("send", b.ID); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	if err := p.n.refuse("send", peer); err != nil {
		return err
	}
	if n < 0 || n > p.cfg.SlotSize {
		return &fabric.BoundsError{Op: "send", Rank: peer, Len: uint64(n), Size: uint64(p.cfg.SlotSize)}
	}
	if wr == nil {
		return nil
	}
	return fabric.CheckTarget(p.n, "write", peer, wr.Off, uint64(len(wr.Src)))
}

// Kick posts what More held back.
func (p *endpoint) Kick() error {
	for _, c := range p.held {
		c.post()
	}
	clear(p.held)
	p.held = p.held[:0]
	return p.usable("kick")
}

// post puts what is queued on the wire, if the connection is made.
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

// sent ends a message.
func (p *endpoint) sent(c *conn, m message, err error) {
	p.give(m.buf)
	if p.full {
		p.full = false
		p.Wake()
	}
	p.n.r.w.emit(markSent, p.n.r.id, c.peer, m.cookie, uint64(m.n))
	if m.cookie != 0 {
		p.push(fabric.Event{Kind: fabric.Sent, Peer: int(c.peer), Cookie: m.cookie, Err: err}, true)
	}
}

// push adds an event. A poll sees each, a sleeper only those that wake.
func (p *endpoint) push(e fabric.Event, wakes bool) {
	p.q.Push(e)
	if p.waiter != nil && (wakes || p.polls) {
		p.n.r.w.wake(p.waiter)
	}
}

// Poll returns events, or none after budget.
func (p *endpoint) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	if err := p.usable("poll"); err != nil {
		return 0, err
	}
	p.stats.Polls++
	p.returnNotes()
	w := p.n.r.w
	if slow := p.n.r.slow; slow > 0 {
		if err := w.pause("polls slowly", slow); err != nil {
			return 0, err
		}
	}
	if p.q.Len() == 0 {
		t, err := w.task("poll")
		if err != nil {
			return 0, err
		}
		if err := p.sleep(t, true, reason{"polls endpoint", p.num}, nil,
			w.now+int64(max(budget, w.cfg.PollCost))); err != nil {
			return 0, err
		}
		if err := p.usable("poll"); err != nil {
			return 0, err
		}
	}
	n := min(len(events), p.q.Len())
	for i := range n {
		events[i] = p.q.Pop()
		if events[i].Kind == fabric.NoteArrived {
			p.lent = append(p.lent, p.notes.Pop())
		}
	}
	return n, nil
}

// Post gives slots back.
func (p *endpoint) Post(slots ...int32) error {
	if err := p.usable("post"); err != nil {
		return err
	}
	for _, id := range slots {
		if id < 0 || int(id) >= len(p.slots) || !p.slots[id].lent {
			return fmt.Errorf("sim: post: slot %d is not the caller's", id)
		}
		s := &p.slots[id]
		scribble(s.data[:s.used])
		s.lent = false
		p.posted = append(p.posted, id)
	}
	return nil
}
