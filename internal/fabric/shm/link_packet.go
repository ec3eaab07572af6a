package shm

import (
	"errors"
	"fmt"
)

// handshake is a REQUEST or REPLY, and the region that it may hand over.
type handshake struct {
	from int
	packet
	region *region
}

func (h *handshake) drop() {
	if h.region != nil {
		_ = h.region.close()
	}
}

// connected takes a peer's REQUEST or REPLY.
func (l *link) connected(h handshake) {
	ep := l.ep
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkDown || !ep.alive.Load() {
		h.drop()
		if h.kind == kindRequest {
			_ = ep.n.peers[h.from].send(packet{kind: kindNoEndpoint, endpoint: h.endpoint, epoch: h.epoch}, -1)
		}
		return
	}
	if err := l.takeRegionLocked(h); err != nil {
		ep.n.protocolError(h.from, err)
		return
	}
	if !l.advanceLocked(h) {
		ep.n.protocolError(h.from, fmt.Errorf("shm: packet %d about connection %d, while %d is in state %d",
			h.kind, h.epoch, l.epoch, l.state))
		return
	}
	if int(h.b) != ep.cfg.SlotSize {
		l.endLocked(fmt.Errorf("shm: its endpoint %d has slots of %d bytes, this rank's has %d: both ends must agree",
			ep.num, h.b, ep.cfg.SlotSize))
		return
	}
	l.flushLocked()
}

// takeRegionLocked takes the peer's region, if it was handed over.
func (l *link) takeRegionLocked(h handshake) error {
	switch {
	case h.region == nil && l.remote == nil:
		return errors.New("shm: it requests a connection and hands over no region")
	case h.region != nil && l.remote != nil:
		h.drop()
		return errors.New("shm: it hands over its region twice")
	case h.region != nil:
		l.remote = h.region
	}
	return nil
}

// advanceLocked moves on by a REQUEST or REPLY. It is false if there is no place for that.
func (l *link) advanceLocked(h handshake) bool {
	ep := l.ep
	switch {
	case l.state == linkIdle && h.kind == kindRequest && h.epoch == l.epoch+1:
		l.epoch = h.epoch
		ep.posts.accepts.Add(1)
		l.state = linkRequesting // by the other
		l.handshakeLocked(kindReply)
		l.upLocked()
		return true
	case h.epoch != l.epoch || l.state == linkIdle:
		return false
	}
	if h.kind == kindReply || l.peer > ep.n.cfg.Rank { // both request: it counts as the lower rank's
		ep.posts.connects.Add(1)
	} else {
		ep.posts.accepts.Add(1)
	}
	if l.state == linkRequesting { // else a message was here first
		l.upLocked()
	}
	return true
}

// closing takes a peer's CLOSE, CLOSED or NOT IDLE.
func (l *link) closing(k packet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.epoch != l.epoch || l.state != linkClosing && !(l.state == linkUp && k.kind == kindClose) {
		return // both closed at once: it is settled
	}
	switch k.kind {
	case kindClose:
		idle := l.received.Load() == uint64(k.epoch)<<32|uint64(k.a) && l.sent == k.b &&
			(l.state == linkClosing || l.waiting == 0)
		if !idle {
			l.packetLocked(packet{kind: kindNotIdle}, -1)
			return
		}
		l.packetLocked(packet{kind: kindClosed}, -1)
	case kindNotIdle:
		l.state = linkUp
		l.flushLocked()
		return
	}
	if l.state == linkDown { // the answer did not get through
		return
	}
	l.idleLocked()
	if l.waiting > 0 {
		l.requestLocked()
	}
}

// refused takes NO ENDPOINT: the one that a REQUEST was for is closed.
func (l *link) refused(k packet) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkRequesting && k.epoch == l.epoch {
		l.endLocked(errEndpointClosed)
	}
}
