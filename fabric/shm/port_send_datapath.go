package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
)

// This is told often, hence not made anew.
var errNoBuffer = fmt.Errorf("shm: reserve: %w", fabric.ErrNoBuffer)

// Reserve takes a send buffer.
func (p *port) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if !p.alive.Load() {
		return fabric.SendBuf{}, p.usable("reserve")
	}
	urgent := f&fabric.Urgent != 0
	s := &p.sends
	s.mu.Lock()
	k := len(s.free) - 1
	if k < 0 || !urgent && s.common == len(s.bufs)-p.cfg.Reserved {
		s.mu.Unlock()
		return fabric.SendBuf{}, errNoBuffer
	}
	id := s.free[k]
	s.free = s.free[:k]
	b := &s.bufs[id]
	if b.urgent = urgent; !urgent {
		s.common++
	}
	s.mu.Unlock()
	b.state.Store(bufOurs)
	return fabric.SendBuf{Data: b.data, ID: id}, nil
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (p *port) Release(b fabric.SendBuf) {
	if uint(b.ID) >= uint(len(p.sends.bufs)) || !p.sends.bufs[b.ID].state.CompareAndSwap(bufOurs, bufWired) {
		panic(fmt.Sprintf("shm: release: send buffer %d is not the caller's", b.ID))
	}
	p.sends.give(b.ID)
}

// Send leaves the message with the peer, or queues it.
func (p *port) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if err := p.checkSend(peer, b, n, w, cookie); err != nil {
		return err
	}
	l := p.link(peer)
	l.mu.Lock()
	if err := l.sendableLocked(); err != nil {
		l.mu.Unlock()
		return err
	}
	if b.ID == fabric.Copied {
		err := l.passLocked(b.Data[:n], f)
		l.mu.Unlock()
		return err
	}
	m := &p.sends.bufs[b.ID]
	if !m.state.CompareAndSwap(bufOurs, bufWired) {
		l.mu.Unlock()
		return fmt.Errorf("shm: send: send buffer %d is not the caller's", b.ID)
	}
	m.n, m.cookie, m.flags, m.missed, m.behind = int32(n), cookie, f, false, w != nil
	l.sends++
	l.sendBytes += uint64(n)
	if w != nil {
		m.w = *w
		l.writes++
		l.writeBytes += uint64(len(w.Src))
	}
	if l.waiting > 0 || !l.postLocked(b.ID, m) {
		l.queueLocked(b.ID, m)
	}
	l.mu.Unlock()
	return nil
}

// passLocked leaves a message that is in no send buffer with the peer, or queues it in one.
func (l *link) passLocked(data []byte, f fabric.SendFlag) error {
	p := l.p
	if l.waiting == 0 && l.state == linkUp && l.far != nil && l.far.put(p.rank, l.epoch, l.sent, data) {
		l.passedLocked(f)
	} else {
		b, err := p.Reserve(f)
		if err != nil {
			return err
		}
		m := &p.sends.bufs[b.ID]
		m.state.Store(bufWired)
		m.n, m.cookie, m.flags, m.missed, m.behind = int32(copy(b.Data, data)), 0, f, false, false
		l.queueLocked(b.ID, m)
	}
	l.sends++
	l.sendBytes += uint64(len(data))
	return nil
}

func (p *port) checkSend(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64) error {
	if !p.alive.Load() {
		return p.usable("send")
	}
	if uint(peer) >= uint(len(p.links)) || p.n.targets[peer].state.Load() != up {
		return p.refuse("send", peer)
	}
	if b.ID == fabric.Copied {
		if err := fabric.CheckCopied(peer, b, n, w, cookie); err != nil {
			return err
		}
	} else if uint(b.ID) >= uint(len(p.sends.bufs)) {
		return fmt.Errorf("shm: send: send buffer %d is not the caller's", b.ID)
	}
	if n < 0 || n > p.cfg.SlotSize {
		return &fabric.BoundsError{Op: "send", Rank: peer, Len: uint64(n), Size: uint64(p.cfg.SlotSize)}
	}
	if w == nil {
		return nil
	}
	return fabric.CheckRange("write", peer, w.Off, uint64(len(w.Src)), p.n.targets[peer].size)
}

// postLocked leaves a message with the peer. It is false when it cannot now.
func (l *link) postLocked(id int32, m *sendBuf) bool {
	if l.state != linkUp || l.far == nil {
		return false
	}
	if m.behind { // before a slot is claimed: it may be long
		m.behind = false
		t := &l.p.n.targets[l.peer]
		orderStores()
		store(unsafe.Add(t.base, m.w.Off), m.w.Src)
	}
	if !l.far.put(l.p.rank, l.epoch, l.sent, m.data[:m.n]) {
		return false
	}
	l.passedLocked(m.flags)
	l.p.finish(l.peer, id, m, nil)
	return true
}

// passedLocked counts a message that is with the peer, and wakes it if it sleeps.
func (l *link) passedLocked(f fabric.SendFlag) {
	l.sent++
	if f&fabric.Solicited != 0 && atomic.LoadUint32(&l.far.head.armed) != 0 {
		l.wakePeer()
	}
}

// wakePeer wakes a peer that sleeps, once.
func (l *link) wakePeer() {
	if atomic.CompareAndSwapUint32(&l.far.head.armed, 1, 0) {
		l.p.posts.doorbells.Add(1)
		l.p.sendWake(l.peer)
	}
}

// finish ends a message.
func (p *port) finish(peer int, id int32, m *sendBuf, err error) {
	if m.cookie == 0 {
		p.sends.give(id)
		return
	}
	p.push(entry{Event: fabric.Event{Kind: fabric.Sent, Peer: peer, Cookie: m.cookie, Err: err}, buf: id})
}

// Kick has little to do: nothing is held back for want of it.
func (p *port) Kick() error {
	if !p.alive.Load() {
		return p.usable("kick")
	}
	if p.stuck.Load() > 0 {
		p.retry()
	}
	return nil
}
