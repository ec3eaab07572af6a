//go:build linux && cgo

package ibv

import (
	"fmt"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// Reserve takes a send buffer.
func (p *port) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reserve(f)
}

func (p *port) reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if err := p.usable("reserve"); err != nil {
		return fabric.SendBuf{}, err
	}
	urgent := f&fabric.Urgent != 0
	k := len(p.freeBufs) - 1
	if k < 0 || !urgent && p.common == len(p.bufs)-p.cfg.Reserved {
		return fabric.SendBuf{}, errNoBuffer
	}
	id := p.freeBufs[k]
	p.freeBufs = p.freeBufs[:k]
	p.bufs[id] = bufState{state: bufOurs, urgent: urgent}
	if !urgent {
		p.common++
	}
	return fabric.SendBuf{Data: p.sendBytes(id), ID: id}, nil
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (p *port) Release(b fabric.SendBuf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if err := p.mine("release", b); err != nil {
		panic(err)
	}
	p.freeBuf(b.ID)
}

func (p *port) mine(op string, b fabric.SendBuf) error {
	if b.ID < 0 || int(b.ID) >= len(p.bufs) || p.bufs[b.ID].state != bufOurs {
		return fmt.Errorf("ibv: %s: send buffer %d is not the caller's", op, b.ID)
	}
	return nil
}

func (p *port) freeBuf(id int32) {
	if !p.bufs[id].urgent {
		p.common--
	}
	p.bufs[id] = bufState{}
	p.freeBufs = append(p.freeBufs, id)
}

// Send queues a message and, unless More follows, posts it.
func (p *port) Send(rank int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	var l lent
	if w != nil {
		if err := p.checkWrite(rank, n, w); err != nil {
			return err
		}
		l = p.lend(w.Src, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	copied := b.ID == fabric.Copied
	if copied {
		var err error
		if b, err = p.takeIn(rank, b, n, w, cookie, f); err != nil {
			return err
		}
	}
	c, err := p.admit(rank, b, n, &l)
	if err != nil {
		p.giveBack(&l)
		if copied {
			p.freeBuf(b.ID)
		}
		return err
	}
	i := p.newMessage(c)
	m := &p.msgs[i]
	m.buf, m.n, m.wrs, m.cookie, m.solicited = b.ID, int32(n), 1, cookie, f&fabric.Solicited != 0
	s := &p.bufs[b.ID]
	s.state, s.write = bufSent, l.how == lentBuffer
	m.urgent = s.urgent
	if w != nil {
		if l.how == lentBuffer {
			copy(p.sendBytes(b.ID)[n:], w.Src)
		}
		m.off, m.lent = w.Off, l
		m.wrs += p.pieces(len(w.Src))
		p.count.writes++
		p.count.writeBytes += uint64(len(w.Src))
	}
	p.count.sends++
	p.count.sendBytes += uint64(n)
	c.parting = false
	if f&fabric.More == 0 {
		_ = p.flush() // the message is taken; Poll tells of a port that is lost
	}
	return nil
}

// takeIn puts bytes that are to be copied into a send buffer. Where they go from within the request it is free again when
// they are posted.
func (p *port) takeIn(rank int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) (fabric.SendBuf, error) {
	if err := fabric.CheckCopied(rank, b, n, w, cookie); err != nil {
		return fabric.SendBuf{}, err
	}
	own, err := p.reserve(f)
	if err == nil {
		copy(own.Data, b.Data[:n])
	}
	return own, err
}

// admit checks everything that Send is given; the error changes nothing. The connection is begun if there is none.
func (p *port) admit(rank int, b fabric.SendBuf, n int, l *lent) (*conn, error) {
	if err := p.usable("send"); err != nil {
		return nil, err
	}
	if err := p.mine("send", b); err != nil {
		return nil, err
	}
	if err := p.reach("send", rank); err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	if n < 0 || n > p.cfg.SlotSize {
		return nil, &fabric.BoundsError{Op: "send", Rank: rank, Len: uint64(n), Size: uint64(p.cfg.SlotSize)}
	}
	if p.pieces(len(l.src))+1 > portDepth {
		return nil, &fabric.BoundsError{Op: "write", Rank: rank, Len: uint64(len(l.src)), Size: uint64(p.n.piece) * (portDepth - 1)}
	}
	c := p.peers[rank].conn
	if c != nil && c.count >= portQueue || p.freeMsg == none {
		return nil, errQueueFull
	}
	if c == nil {
		c = p.newConn(int32(rank), connWanted)
		if p.sleeping {
			p.Wake() // the poller makes it
		}
	}
	return c, nil
}

// reach says why a rank cannot be talked to; mu is held, so that nothing is queued behind the end of a peer.
func (p *port) reach(op string, rank int) error {
	if err := p.served(rank); err != nil {
		return err
	}
	if p.n.downSeq.Load() == 0 {
		return nil
	}
	if cause, down := p.n.downs.Load(rank); down {
		return &fabric.PeerDownError{Rank: rank, Op: op, Cause: cause.(error)}
	}
	return nil
}

// newMessage takes a record and puts it at the end of a connection's queue. There is one.
func (p *port) newMessage(c *conn) int32 {
	i := p.freeMsg
	m := &p.msgs[i]
	p.freeMsg = m.next
	p.freeMsgs--
	*m = message{generation: (m.generation + 1) & generationMask, next: none, conn: c, buf: none}
	if c.queued == 0 {
		c.first = i
	}
	if c.tail == none {
		c.head = i
	} else {
		p.msgs[c.tail].next = i
	}
	c.tail = i
	c.count++
	c.queued++
	p.clock++
	c.used = p.clock
	p.markReady(c)
	return i
}

func (p *port) markReady(c *conn) {
	if !c.ready && c.state == connUp && c.queued > 0 {
		c.ready = true
		p.ready = append(p.ready, c)
	}
}

// touch queues a write of nothing that asks for a completion, which tells of all before it and of the peer's life.
func (p *port) touch(c *conn) {
	if c.state != connUp || c.touched || p.freeMsg == none {
		return
	}
	c.touched = true
	used := c.used
	m := &p.msgs[p.newMessage(c)]
	c.used = used
	m.touch, m.wrs = true, 1
}

// Kick posts what More held back, and touches the connections with unconfirmed messages that asked for no completion.
func (p *port) Kick() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable("kick"); err != nil {
		return err
	}
	for i := range p.msgs {
		if m := &p.msgs[i]; m.unconfirmed() && m.conn.silent > 0 {
			p.touch(m.conn)
		}
	}
	return p.flush()
}

// Note sends a datagram.
func (p *port) Note(rank int, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable("note"); err != nil {
		return err
	}
	if err := p.reach("note", rank); err != nil {
		return err
	}
	if len(data) > maxNote {
		return &fabric.BoundsError{Op: "note", Rank: rank, Len: uint64(len(data)), Size: maxNote}
	}
	p.count.notes.Add(1)
	p.prepare() // slots go first: the note may tell of them
	if !p.say(datagram{kind: sayNote, to: uint32(rank), note: data}) {
		p.count.notesDropped.Add(1)
	}
	return p.flush()
}

// say stages a datagram. It reports whether there was room for it.
func (p *port) say(d datagram) bool {
	rank := int(d.to)
	n := p.n
	qpn := n.portQPNs[rank*n.cfg.Messages.Endpoints+p.num]
	if qpn == 0 || len(p.freeOut) == 0 || !p.room() {
		return false
	}
	path, err := verbs.ComputePath(n.path, n.peers[rank].end)
	if err != nil {
		return false // Reach said so
	}
	h, err := p.handles.get(path.AV)
	if err != nil {
		n.log.Warn("ibv: datagrams do not reach a rank", "rank", rank, "err", err)
		return false
	}
	i := p.freeOut[len(p.freeOut)-1]
	p.freeOut = p.freeOut[:len(p.freeOut)-1]
	p.outAH[i] = h
	d.port, d.from = uint16(p.num), uint32(n.cfg.Rank)
	b := p.outBytes(i)
	size := d.encode(b)
	slot := p.slots
	p.slots++
	w := p.chain.WR(slot)
	w.WRID, w.Opcode, w.Flags = idOut<<idShift|uint64(i), verbs.OpSend, verbs.Signaled|verbs.Solicited
	p.chain.SetLocal(slot, addrOf(b), uint32(size), p.mr.LKey())
	w.SetUD(h.ah, qpn, n.qkeys[rank])
	p.stage(run{kind: runDatagrams, first: slot, n: 1})
	return true
}
