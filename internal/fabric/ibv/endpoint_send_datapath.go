//go:build linux && cgo

package ibv

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Reserve takes a send buffer.
func (p *endpoint) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usableLocked("reserve"); err != nil {
		return fabric.SendBuf{}, err
	}
	return p.out.reserve(f)
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (p *endpoint) Release(b fabric.SendBuf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if err := p.out.bufs.Take("release", b.ID); err != nil {
		panic(fmt.Errorf("ibv: %w", err))
	}
	p.out.bufs.Free(b.ID)
}

// Send queues a message and, unless More follows, posts it. A short one that is Copied is posted
// from where it is, if there is room.
func (p *endpoint) Send(rank int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	switch {
	case b.ID != fabric.Copied:
		return p.sendBuffer(rank, b, n, w, cookie, f)
	case w != nil || cookie != 0 || uint(n) > uint(len(b.Data)):
		return fabric.CheckCopied(rank, b, n, w, cookie)
	}
	p.mu.Lock()
	if o := &p.out; !p.closed && o.lost == nil && f&fabric.More == 0 && uint(n-1) < uint(o.inline) &&
		uint(rank) < uint(len(p.conns.peers)) {
		if c := p.conns.to(rank); c != nil && p.n.deaths.N.Load() == 0 {
			p.prepareLocked(true)
			if o.takesNow(c) {
				o.postCopied(c, b.Data[:n], f)
				p.mu.Unlock()
				return nil
			}
		}
	}
	err := p.queueCopiedLocked(rank, b.Data[:n], f)
	p.mu.Unlock()
	return err
}

// queueCopiedLocked sends Copied data by way of a send buffer.
func (p *endpoint) queueCopiedLocked(rank int, data []byte, f fabric.SendFlag) error {
	if err := p.usableLocked("send"); err != nil {
		return err
	}
	own, err := p.out.reserve(f)
	if err != nil {
		return err
	}
	copy(own.Data, data)
	if err = p.sendLocked(rank, own, len(data), &message{buf: own.ID, n: int32(len(data)), wrs: 1}, f); err != nil {
		if p.out.bufs.Take("release", own.ID) == nil {
			p.out.bufs.Free(own.ID)
		}
	}
	return err
}

// sendBuffer sends a message that is in its send buffer.
func (p *endpoint) sendBuffer(rank int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64,
	f fabric.SendFlag) error {
	m := message{buf: b.ID, n: int32(n), wrs: 1, cookie: cookie}
	if w != nil {
		if err := fabric.CheckTarget(p.n, "write", rank, w.Off, uint64(len(w.Src))); err != nil {
			return err
		}
		m.src, m.off, m.wrs = p.n.mem.newSource(w.Src, p.n.inline, p.cfg.SlotSize-n), w.Off, 1+pieces(len(w.Src), p.n.piece)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.sendLocked(rank, b, n, &m, f)
	if err != nil {
		m.src.release(&p.n.mem)
		return err
	}
	if w != nil {
		p.count.Writes++
		p.count.WriteBytes += uint64(len(w.Src))
	}
	return nil
}

// sendLocked queues a message that is in its buffer.
func (p *endpoint) sendLocked(rank int, b fabric.SendBuf, n int, m *message, f fabric.SendFlag) error {
	c, err := p.admitLocked(rank, b, n, &m.src)
	if err != nil {
		return err
	}
	if err := p.out.bufs.Take("send", b.ID); err != nil {
		return err
	}
	m.solicited, m.urgent = f&fabric.Solicited != 0, p.out.bufs.Urgent(b.ID)
	if m.src.how == sourceBuffer {
		copy(p.out.bytes(b.ID)[n:], m.src.src)
	}
	p.count.Sends++
	p.count.SendBytes += uint64(n)
	if f&fabric.More == 0 && m.wrs == 1 && c.state == connUp {
		p.prepareLocked(true)
		if p.out.takesNow(c) {
			p.out.stageNow(c, m)
			p.out.ring(0)
			return nil
		}
	}
	p.out.enqueue(c, *m)
	if f&fabric.More == 0 {
		_ = p.flushLocked() // the message is taken; Poll has the error of an endpoint that is lost
	} else {
		p.look.Store(true)
	}
	return nil
}

// admitLocked checks everything that Send is given; the error changes nothing. A connection is
// begun if there is none.
func (p *endpoint) admitLocked(rank int, b fabric.SendBuf, n int, s *source) (*conn, error) {
	if err := p.usableLocked("send"); err != nil {
		return nil, err
	}
	if err := p.out.bufs.Check("send", b.ID); err != nil {
		return nil, fmt.Errorf("ibv: %w", err)
	}
	if err := p.n.reachable("send", rank); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if n < 0 || n > p.cfg.SlotSize {
		return nil, &fabric.BoundsError{Op: "send", Rank: rank, Len: uint64(n), Size: uint64(p.cfg.SlotSize)}
	}
	if pieces(len(s.src), p.n.piece)+1 > endpointDepth {
		return nil, &fabric.BoundsError{Op: "write", Rank: rank, Len: uint64(len(s.src)),
			Size: uint64(p.n.piece) * (endpointDepth - 1)}
	}
	c := p.conns.to(rank)
	if p.out.full(c) {
		return nil, fabric.ErrQueueFull
	}
	if c == nil {
		c = p.conns.want(int32(rank))
		if p.sleeping {
			p.Wake() // the poller makes it
		}
	}
	return c, nil
}

// Kick posts requests that More held back, and probes connections with unconfirmed unsignaled
// messages.
func (p *endpoint) Kick() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usableLocked("kick"); err != nil {
		return err
	}
	p.out.probeUnconfirmed()
	return p.flushLocked()
}

// Note sends a datagram.
func (p *endpoint) Note(rank int, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usableLocked("note"); err != nil {
		return err
	}
	if err := p.n.reachable("note", rank); err != nil {
		return err
	}
	if len(data) > maxNote {
		return &fabric.BoundsError{Op: "note", Rank: rank, Len: uint64(len(data)), Size: maxNote}
	}
	p.count.Notes++
	p.prepareLocked(false) // slots go first: the note may be about them
	if !p.datagrams.send(datagram{kind: dgNote, to: uint32(rank), note: data}) {
		p.count.NotesDropped++
	}
	return p.flushLocked()
}

// Post gives slots back. They are on the device before any message or note that is sent after it,
// and at the next Poll at the latest.
func (p *endpoint) Post(slots ...int32) error {
	p.mu.Lock()
	err := p.usableLocked("post")
	if err == nil {
		err = p.slots.giveBack(slots)
	}
	if err == nil && p.sleeping {
		err = p.flushLocked()
	} else {
		p.look.Store(true)
	}
	p.mu.Unlock()
	return err
}

// flushLocked posts all that can be: first slots, then messages.
func (p *endpoint) flushLocked() error {
	p.prepareLocked(false)
	if p.out.tx.staged() {
		p.out.ring(0)
	}
	return p.out.lost
}

// prepareLocked stages all that can be posted; what does not fit into one ring is posted on the
// way. More says that a message follows.
func (p *endpoint) prepareLocked(more bool) {
	if p.sleeping && !p.armedAny && (more || len(p.out.ready)+len(p.out.tx.probes) > 0 || p.out.tx.staged()) {
		p.armedAny = true // before the post: the completion must find it
		if err := p.listener.cq.Arm(false); err != nil {
			p.Wake()
		}
	}
	if len(p.slots.bare) > 0 {
		p.out.stageReceives(&p.slots.receiveQueue)
	}
	if len(p.datagrams.in.bare) > 0 {
		p.out.stageReceives(&p.datagrams.in)
	}
	if len(p.out.tx.probes) > 0 {
		p.out.tx.postProbes()
	}
	if len(p.out.ready) > 0 {
		p.out.stageReady()
	}
}
