package shm

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Send writes the message into the peer's region, or queues it.
func (ep *endpoint) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if err := ep.checkSend(peer, b, n, w, cookie); err != nil {
		return err
	}
	l := ep.link(peer)
	l.mu.Lock()
	if err := l.sendableLocked(); err != nil {
		l.mu.Unlock()
		return err
	}
	if b.ID == fabric.Copied {
		err := l.copyLocked(b.Data[:n], f)
		l.mu.Unlock()
		return err
	}
	if err := ep.sends.Take("send", b.ID); err != nil {
		l.mu.Unlock()
		return fmt.Errorf("shm: %w", err)
	}
	m := &ep.sends.bufs[b.ID]
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

// Reserve takes a send buffer.
func (ep *endpoint) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if !ep.alive.Load() {
		return fabric.SendBuf{}, ep.usable("reserve")
	}
	return ep.sends.reserve(f)
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (ep *endpoint) Release(b fabric.SendBuf) {
	if err := ep.sends.Take("release", b.ID); err != nil {
		panic(fmt.Errorf("shm: %w", err))
	}
	ep.sends.free(b.ID)
}

// copyLocked sends a message that is in no send buffer, or queues it in one.
func (l *link) copyLocked(data []byte, f fabric.SendFlag) error {
	ep := l.ep
	if l.waiting == 0 && l.state == linkUp && l.remote != nil && l.remote.put(ep.rank, l.epoch, l.sent, data) {
		l.sentLocked(f)
	} else {
		b, err := ep.Reserve(f)
		if err != nil {
			return err
		}
		_ = ep.sends.Take("send", b.ID) // it was just reserved
		m := &ep.sends.bufs[b.ID]
		m.n, m.cookie, m.flags, m.missed, m.behind = int32(copy(b.Data, data)), 0, f, false, false
		l.queueLocked(b.ID, m)
	}
	l.sends++
	l.sendBytes += uint64(len(data))
	return nil
}

func (ep *endpoint) checkSend(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64) error {
	if !ep.alive.Load() || uint(peer) >= uint(len(ep.links)) || ep.n.targets[peer].state.Load() != up {
		return ep.sendable("send", peer)
	}
	if b.ID == fabric.Copied {
		if err := fabric.CheckCopied(peer, b, n, w, cookie); err != nil {
			return err
		}
	}
	if n < 0 || n > ep.cfg.SlotSize {
		return &fabric.BoundsError{Op: "send", Rank: peer, Len: uint64(n), Size: uint64(ep.cfg.SlotSize)}
	}
	if w == nil {
		return nil
	}
	return fabric.CheckRange("write", peer, w.Off, uint64(len(w.Src)), ep.n.targets[peer].size)
}

// Kick has little to do: no message waits for it.
func (ep *endpoint) Kick() error {
	if !ep.alive.Load() {
		return ep.usable("kick")
	}
	if ep.stuck.Load() > 0 {
		ep.retry()
	}
	return nil
}
