//go:build linux && cgo

package ibv

import (
	"errors"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// Poll posts what waits and takes what there is, mostly in one call into C, and if that is nothing polls in another
// until the budget has passed.
func (p *port) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	if !p.poller.TryLock() {
		return 0, p.occupied("poll")
	}
	defer p.poller.Unlock()
	p.mu.Lock()
	if err := p.usable("poll"); err != nil {
		p.mu.Unlock()
		return 0, err
	}
	p.count.polls++
	p.returnNotes()
	if p.events.len() > 0 {
		p.mu.Unlock()
	} else if err := p.progress(budget); err != nil {
		return 0, err
	}
	n := min(len(events), p.events.len())
	for i := range n {
		p.events.pop(&events[i])
		if events[i].Kind == fabric.NoteArrived {
			p.lent = append(p.lent, events[i].Slot)
			events[i].Slot = 0
		}
	}
	return n, nil
}

// returnNotes takes back the buffers of the notes that the last Poll returned. mu is held.
func (p *port) returnNotes() {
	p.bareRecv = append(p.bareRecv, p.lent...)
	p.lent = p.lent[:0]
}

// progress is one turn of the poller, and further ones as long as completions come that are no events, with mu, which it gives up: when
// Poll returns nothing there was nothing.
func (p *port) progress(budget time.Duration) error {
	n, more, err := p.turn(budget)
	for left := p.listener.cq.Cap(); err == nil && n > 0 && left > 0 && p.events.len() == 0; left -= n { // no longer than for what was there
		var also bool
		p.mu.Lock()
		n, also, err = p.turn(0)
		more = more || also
	}
	if err != nil {
		return err
	}
	if p.downSeen != p.n.downSeq.Load() {
		p.noticeDowns()
		more = true
	}
	if p.polls++; n == 0 || p.polls%timersEvery == 0 {
		p.timers(p.Now())
		more = true
	}
	if more {
		p.makeAndPart()
	}
	return nil
}

// turn posts, polls within the budget, and takes what came, with mu, which it gives up. The count is of completions;
// more says that there is work for makeAndPart.
func (p *port) turn(budget time.Duration) (n int, more bool, err error) {
	p.prepare()
	if len(p.staged) > 0 {
		p.ring(1)
	}
	err = p.deaf
	if n = len(p.taken); n > 0 {
		p.reap(p.taken)
		p.taken = p.taken[:0]
	}
	more = p.owes()
	p.mu.Unlock()
	if n > 0 || err != nil {
		return n, more, err
	}
	if n, err = p.bell.Ring(1, budget); n == 0 && err == nil {
		return 0, more, nil
	}
	p.mu.Lock()
	p.reap(p.bell.Completions())
	if err != nil {
		p.goDeaf(err)
		err = p.deaf
	}
	more = p.owes()
	p.mu.Unlock()
	return n, more, err
}

// reap deals with completions. mu is held.
func (p *port) reap(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		index := int32(uint32(wc.WRID))
		switch wc.WRID >> idShift {
		case idSlot:
			p.landed(index, wc)
		case idIn:
			p.heard(index, wc)
		case idOut:
			p.said(index, wc)
		default:
			p.completed(index, uint32(wc.WRID>>generationShift)&generationMask, wc)
		}
	}
}

var errImmediate = errors.New("ibv: it took a receive buffer by a write with immediate data, which no rank does")

// landed is the arrival of a message.
func (p *port) landed(slot int32, wc *verbs.WC) {
	c := p.byQPN[wc.QPNum]
	if c == nil || c.state == connGone || wc.Status != verbs.StatusSuccess {
		p.bare = append(p.bare, slot)
		if c != nil && wc.Status != verbs.StatusFlushed {
			p.lose(c, wc.Err())
		}
		return
	}
	if wc.Opcode != verbs.WCRecv || int(wc.ByteLen) > p.cfg.SlotSize { // the slot holds what came before
		p.bare = append(p.bare, slot)
		p.lose(c, errImmediate)
		return
	}
	if c.state == connAnswering {
		p.made(c) // it sends, hence our reply came
	}
	c.arrived++
	c.busy = true
	p.clock++
	c.used = p.clock
	p.slotOurs[slot] = false
	p.count.posted--
	p.count.arrivals++
	p.count.arrivalBytes += uint64(wc.ByteLen)
	p.events.push(fabric.Event{Kind: fabric.Arrived, Peer: int(c.rank), Slot: slot, Epoch: c.epoch, Data: p.slotBytes(slot)[:wc.ByteLen:wc.ByteLen]})
}

// completed ends a message, and those before it on the same connection: their success is implied.
func (p *port) completed(index int32, generation uint32, wc *verbs.WC) {
	if int(index) >= len(p.msgs) {
		return
	}
	m := &p.msgs[index]
	c := m.conn
	if m.generation != generation || c == nil || c.state == connGone {
		return // of a connection that is gone
	}
	if wc.Status != verbs.StatusSuccess {
		p.lose(c, wc.Err())
		return // all that is out ends with the connection
	}
	for c.head != none {
		i := c.head
		p.endMessage(c, nil)
		if i == index {
			break
		}
	}
	p.markReady(c)
	c.busy = true
	if c.parting && c.count == 0 {
		c.proven = true
		p.parting = append(p.parting, c)
	}
}

// endMessage ends the oldest message of a connection. One that was not posted is at the head only when the
// connection ends.
func (p *port) endMessage(c *conn, err error) {
	i := c.head
	m := &p.msgs[i]
	if c.head = m.next; c.head == none {
		c.tail = none
	}
	if c.count == c.queued {
		c.queued--
		c.first = m.next
	} else {
		c.wrs -= m.wrs
		p.out -= m.wrs
	}
	if c.count--; c.count == c.queued {
		c.silent, c.holding = 0, false
	}
	if m.touch {
		c.touched = false
	}
	if m.buf != none {
		p.freeBuf(m.buf)
	}
	p.giveBack(&m.lent)
	if m.cookie != 0 {
		p.events.push(fabric.Event{Kind: fabric.Sent, Peer: int(c.rank), Cookie: m.cookie, Err: err})
	}
	m.conn = nil
	m.next, p.freeMsg = p.freeMsg, i
	p.freeMsgs++
}

// lose notes that a connection's queue pair is of no more use; the peer is taken for dead.
func (p *port) lose(c *conn, cause error) {
	if c.refused == nil {
		c.refused = cause
		p.broken = append(p.broken, c)
	}
}

// said is the end of a datagram that went out.
func (p *port) said(i int32, wc *verbs.WC) {
	p.outAH[i].uses--
	p.outAH[i] = nil
	p.freeOut = append(p.freeOut, i)
	if wc.Status != verbs.StatusSuccess && wc.Status != verbs.StatusFlushed {
		// The send queue stops at an error (IBTA 1.4 vol. 1 §10.3.1.6); what is lost is lost.
		p.n.log.Warn("ibv: a datagram was not sent", "port", p.num, "err", wc.Err())
		_ = p.listener.qp.Modify(verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateSQE}, verbs.AttrState|verbs.AttrCurState)
	}
}

// heard is the arrival of a datagram. Whatever is wrong with it, it is dropped and counted.
func (p *port) heard(i int32, wc *verbs.WC) {
	d, ok := p.understand(p.inBytes(i), wc)
	if !ok {
		p.count.notesDropped.Add(1)
	} else if d.kind == sayNote {
		p.count.notesArrived.Add(1)
		p.events.push(fabric.Event{Kind: fabric.NoteArrived, Peer: int(d.from), Slot: i, Data: d.note})
		return // Poll takes it back
	} else {
		p.control = append(p.control, d) // it may need a queue pair: not under the lock
	}
	p.bareRecv = append(p.bareRecv, i)
}

// understand checks that a datagram is from whom it says, and for this port.
func (p *port) understand(b []byte, wc *verbs.WC) (d datagram, ok bool) {
	if wc.Status != verbs.StatusSuccess || wc.ByteLen < grhBytes || int(wc.ByteLen) > len(b) {
		return d, false
	}
	d, err := decodeDatagram(b[grhBytes:wc.ByteLen])
	if err != nil || d.to != uint32(p.n.cfg.Rank) || int(d.port) != p.num || d.from >= uint32(p.n.cfg.Size) || p.served(int(d.from)) != nil {
		return d, false
	}
	n := p.n
	if wc.SrcQP != n.portQPNs[int(d.from)*n.cfg.Messages.Endpoints+p.num] ||
		!sentFrom(&n.peers[d.from].end, b, wc.SLID, wc.Flags&verbs.WCWithGRH != 0) {
		return d, false
	}
	return d, !p.peers[d.from].down
}

// eventRing is a queue of events.
type eventRing struct {
	buf  []fabric.Event // a power of two
	head int
	n    int
}

func (r *eventRing) len() int { return r.n }

func (r *eventRing) push(e fabric.Event) {
	if r.n == len(r.buf) {
		bigger := make([]fabric.Event, max(64, 2*len(r.buf)))
		for i := range r.n {
			bigger[i] = r.buf[(r.head+i)&(len(r.buf)-1)]
		}
		r.buf, r.head = bigger, 0
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = e
	r.n++
}

func (r *eventRing) pop(to *fabric.Event) {
	e := &r.buf[r.head]
	*to, *e = *e, fabric.Event{}
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
}
