package shm

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/fabric"
)

// link is one end of the connections with one peer, which follow one another. Both ends
// number them alike. They are made and closed by packets over the socket of the pair,
// which keeps them in order and loses none (link_packet.go):
//
//	idle        Send: REQUEST -> requesting. REQUEST: REPLY -> up
//	requesting  REPLY -> up. REQUEST, because both request at once: both take it for a reply -> up
//	up          Disconnect: CLOSE -> closing. CLOSE: CLOSED -> idle, or NOT IDLE
//	closing     CLOSED -> idle. NOT IDLE -> up. CLOSE, because both close at once: as in up
//
// A message of a connection that this end still requests is a reply as well: it may
// overtake the packet. The first REQUEST or REPLY of an endpoint hands over its region.
type link struct {
	ep   *endpoint
	peer int

	mu         sync.Mutex
	state      linkState
	sentRegion bool    // the peer has this endpoint's region
	stalled    bool    // in ep.queued
	epoch      uint32  // of the last connection, or the one that is requested
	sent       uint32  // messages of this connection that are with the peer
	remote     *region // the peer's; nil until it is handed over
	first      int32   // of the messages that wait
	last       int32
	waiting    int

	sends, sendBytes, writes, writeBytes uint64

	cause    atomic.Pointer[error] // of the end
	received atomic.Uint64         // polled.epoch<<32 | polled.next, for closing

	// The state that the program has been given; only Poll uses it.
	polled struct {
		open, down bool   // Up, and no end; Down
		epoch      uint32 // of the last Up
		next       uint32 // number of the next message
	}
}

type linkState uint8

const (
	linkIdle linkState = iota
	linkRequesting
	linkUp
	linkClosing
	linkDown
)

var (
	errEndpointClosed = fmt.Errorf("shm: it has closed its endpoint: %w", os.ErrClosed)
	errLeft           = fmt.Errorf("shm: it has left the job: %w", os.ErrClosed)
)

func (l *link) self() bool { return l.peer == l.ep.n.cfg.Rank }

// Disconnect starts to close an idle connection. One that is not idle, or not made, stays.
func (ep *endpoint) Disconnect(peer int) error {
	if err := ep.sendable("disconnect", peer); err != nil {
		return err
	}
	l := ep.links[peer].Load()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	got := l.received.Load()
	if l.state != linkUp || l.remote == nil || l.waiting > 0 || uint32(got>>32) != l.epoch {
		return nil
	}
	if l.self() {
		if uint32(got) == l.sent {
			l.idleLocked()
		}
		return nil
	}
	l.state = linkClosing
	l.packetLocked(packet{kind: kindClose, a: l.sent, b: uint32(got)}, -1)
	return nil
}

// retry tries links with messages that met no slot.
func (ep *endpoint) retry() {
	ep.mu.Lock()
	links := ep.queued
	ep.queued = nil
	ep.mu.Unlock()
	ep.stuck.Add(-int32(len(links)))
	for _, l := range links {
		l.mu.Lock()
		l.stalled = false
		l.flushLocked()
		l.mu.Unlock()
	}
}

// peerLeft is the end of a rank in good order: it sends no packet any more.
func (ep *endpoint) peerLeft(rank int) {
	if l := ep.links[rank].Load(); l != nil {
		l.mu.Lock()
		if l.state == linkClosing {
			l.idleLocked()
		}
		if l.state == linkRequesting || l.waiting > 0 {
			l.endLocked(errLeft)
		}
		l.mu.Unlock()
	}
	ep.wakeIfAsleep() // there may be cells that it claimed
}

// unannounced is acceptLocked's result for a message of a connection that the program has not been
// given.
func (l *link) unannounced(epoch uint32) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == linkDown:
		return msgBad
	case l.state == linkRequesting && epoch == l.epoch: // it overtook the reply
		l.upLocked()
		l.flushLocked()
		return msgEarly
	case (l.state == linkUp || l.state == linkClosing) && epoch == l.epoch && epoch != l.polled.epoch:
		return msgEarly
	}
	l.ep.n.protocolError(l.peer, fmt.Errorf("shm: a message of connection %d, while %d is in state %d",
		epoch, l.epoch, l.state))
	return msgBad
}

// end is the end of the peer.
func (l *link) end(cause error) {
	l.mu.Lock()
	l.endLocked(cause)
	l.mu.Unlock()
}

// sendableLocked is nil if a message may be sent or queued.
func (l *link) sendableLocked() error {
	if !l.ep.alive.Load() {
		return l.ep.usable("send")
	}
	if l.state == linkDown {
		return &fabric.PeerDownError{Rank: l.peer, Op: "send", Cause: *l.cause.Load()}
	}
	if l.remote != nil && atomic.LoadUint32(&l.remote.head.closed) != 0 {
		l.endLocked(errEndpointClosed)
		return &fabric.PeerDownError{Rank: l.peer, Op: "send", Cause: errEndpointClosed}
	}
	return nil
}

// queueLocked has a message wait: for a connection, or for a slot.
func (l *link) queueLocked(id int32, m *sendBuf) {
	m.next = -1
	if l.waiting == 0 {
		l.first = id
	} else {
		l.ep.sends.bufs[l.last].next = id
	}
	l.last = id
	l.waiting++
	switch {
	case l.state == linkIdle:
		l.requestLocked()
	case l.state == linkUp && l.remote != nil:
		l.stallLocked()
	}
}

// stallLocked counts the first message that waits as one without a slot, and has Poll try again.
func (l *link) stallLocked() {
	ep := l.ep
	if m := &ep.sends.bufs[l.first]; !m.missed {
		m.missed = true
		ep.posts.rnr.Add(1)
	}
	if !l.stalled {
		l.stalled = true
		ep.mu.Lock()
		ep.queued = append(ep.queued, l)
		ep.mu.Unlock()
		ep.stuck.Add(1)
		ep.wakeIfAsleep() // Wait must not sleep long
	}
}

// flushLocked posts what waits.
func (l *link) flushLocked() {
	for l.waiting > 0 && l.state == linkUp && l.remote != nil {
		if atomic.LoadUint32(&l.remote.head.closed) != 0 {
			l.endLocked(errEndpointClosed)
			return
		}
		id := l.first
		m := &l.ep.sends.bufs[id]
		next := m.next // the buffer is another's as soon as it is posted
		if !l.postLocked(id, m) {
			l.stallLocked()
			return
		}
		l.first = next
		l.waiting--
	}
}

// requestLocked begins the next connection.
func (l *link) requestLocked() {
	ep := l.ep
	l.epoch++
	if l.self() {
		l.remote = ep.region
		ep.posts.connects.Add(1)
		l.upLocked()
		l.flushLocked()
		return
	}
	l.state = linkRequesting
	if ep.n.peers[l.peer].gone.Load() {
		l.endLocked(errLeft)
		return
	}
	l.handshakeLocked(kindRequest)
}

// handshakeLocked sends a REQUEST or a REPLY.
func (l *link) handshakeLocked(kind byte) {
	ep, fd := l.ep, -1
	if !l.sentRegion {
		l.sentRegion, fd = true, ep.region.mem.FD()
	}
	ep.posts.handshakes.Add(1)
	l.packetLocked(packet{kind: kind, a: uint32(ep.cfg.Slots), b: uint32(ep.cfg.SlotSize)}, fd)
}

// packetLocked sends a packet about this connection. A peer that takes none is down.
func (l *link) packetLocked(k packet, fd int) {
	k.endpoint, k.epoch = uint32(l.ep.num), l.epoch
	if err := l.ep.n.peers[l.peer].send(k, fd); err != nil {
		l.endLocked(fmt.Errorf("shm: a packet about a connection: %w", err))
	}
}

// upLocked is when this end knows that the other is ready.
func (l *link) upLocked() {
	if l.state == linkDown {
		return
	}
	l.state, l.sent = linkUp, 0
	l.ep.up.Add(1)
	l.ep.push(entry{Event: fabric.Event{Kind: fabric.Up, Peer: l.peer, Epoch: l.epoch}, buf: -1})
}

// idleLocked is when both ends know that nothing is in flight. What waits needs another connection.
func (l *link) idleLocked() {
	l.state = linkIdle
	l.ep.up.Add(-1)
	l.ep.posts.closes.Add(1)
	l.ep.push(entry{Event: fabric.Event{Kind: fabric.Idle, Peer: l.peer, Epoch: l.epoch}, buf: -1})
}

// endLocked is the end of the peer, at this endpoint.
func (l *link) endLocked(cause error) {
	ep := l.ep
	if l.state == linkDown || !ep.alive.Load() {
		return
	}
	if l.state == linkUp || l.state == linkClosing {
		ep.up.Add(-1)
	}
	l.state = linkDown
	l.cause.Store(&cause)
	err := &fabric.PeerDownError{Rank: l.peer, Op: "send", Cause: cause}
	for id := l.first; l.waiting > 0; l.waiting-- {
		m := &ep.sends.bufs[id]
		next := m.next
		ep.finish(l.peer, id, m, err)
		id = next
	}
	_ = l.dropLocked()
	ep.push(entry{Event: fabric.Event{Kind: fabric.Down, Peer: l.peer, Err: cause}, buf: -1})
}

// dropLocked unmaps the peer's region.
func (l *link) dropLocked() error {
	remote := l.remote
	l.remote = nil
	if remote == nil || l.self() {
		return nil
	}
	return remote.close()
}
