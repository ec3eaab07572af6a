package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// postLocked writes a message into the peer's region. It is false when it cannot now.
func (l *link) postLocked(id int32, m *sendBuf) bool {
	if l.state != linkUp || l.remote == nil {
		return false
	}
	if m.behind { // before a slot is claimed: it may be long
		m.behind = false
		t := &l.ep.n.targets[l.peer]
		orderStores()
		store(unsafe.Add(t.base, m.w.Off), m.w.Src)
	}
	if !l.remote.put(l.ep.rank, l.epoch, l.sent, m.data[:m.n]) {
		return false
	}
	l.sentLocked(m.flags)
	l.ep.finish(l.peer, id, m, nil)
	return true
}

// sentLocked counts a message that is in the peer's region, and wakes the peer if it sleeps.
func (l *link) sentLocked(f fabric.SendFlag) {
	l.sent++
	if f&fabric.Solicited != 0 && atomic.LoadUint32(&l.remote.head.armed) != 0 {
		l.wakePeer()
	}
}

// wakePeer wakes a peer that sleeps, once.
func (l *link) wakePeer() {
	if atomic.CompareAndSwapUint32(&l.remote.head.armed, 1, 0) {
		l.ep.posts.doorbells.Add(1)
		_ = l.ep.n.peers[l.peer].raw.Write(l.ep.sendWakeTo) // without room there is enough to wake by
	}
}
