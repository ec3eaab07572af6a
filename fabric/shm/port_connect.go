package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/fabric"
)

// link is one end of the connections with one peer, which follow one another. Both ends
// number them alike. They are made and closed by packets over the socket of the pair,
// which keeps them in order and loses none:
//
//	idle     Send: ASK -> asking. ASK: ANSWER -> up
//	asking   ANSWER -> up. ASK, because both ask at once: both take it for an answer -> up
//	up       Disconnect: CLOSE -> closing. CLOSE: YES -> idle, or NO
//	closing  YES -> idle. NO -> up. CLOSE, because both close at once: as in up
//
// A message of a connection for which this end still asks is an answer as well: it may
// overtake the packet. Who asks or answers for the first time hands over the port's memory.
type link struct {
	p    *port
	peer int

	mu      sync.Mutex
	state   linkState
	gave    bool     // the peer has this port's memory
	stalled bool     // in p.queued
	epoch   uint32   // of the last connection, or the one that is asked for
	sent    uint32   // messages of this connection that are with the peer
	far     *mailbox // the peer's; nil until it is handed over
	first   int32    // of the messages that wait
	last    int32
	waiting int

	sends, sendBytes, writes, writeBytes uint64

	cause    atomic.Pointer[error] // of the end
	received atomic.Uint64         // told<<32 | next, for who closes

	// What the program knows; only Poll looks here.
	open bool   // Up was told, and no end
	gone bool   // Down was told
	told uint32 // epoch of the last Up
	next uint32 // number of the next message
}

type linkState uint8

const (
	linkIdle linkState = iota
	linkAsking
	linkUp
	linkClosing
	linkDown
)

var (
	errPortClosed = fmt.Errorf("shm: it has closed its port: %w", os.ErrClosed)
	errLeft       = fmt.Errorf("shm: it has left the job: %w", os.ErrClosed)
)

// link is the one with a peer, made when it is first needed.
func (p *port) link(peer int) *link {
	if l := p.links[peer].Load(); l != nil {
		return l
	}
	p.links[peer].CompareAndSwap(nil, &link{p: p, peer: peer, first: -1, last: -1})
	return p.links[peer].Load()
}

func (l *link) self() bool { return l.peer == l.p.n.cfg.Rank }

// sendableLocked is nil if a message may be sent or queued.
func (l *link) sendableLocked() error {
	if !l.p.alive.Load() {
		return l.p.usable("send")
	}
	if l.state == linkDown {
		return &fabric.PeerDownError{Rank: l.peer, Op: "send", Cause: *l.cause.Load()}
	}
	if l.far != nil && atomic.LoadUint32(&l.far.head.closed) != 0 {
		l.endLocked(errPortClosed)
		return &fabric.PeerDownError{Rank: l.peer, Op: "send", Cause: errPortClosed}
	}
	return nil
}

// queueLocked has a message wait: for a connection, or for a slot.
func (l *link) queueLocked(id int32, m *sendBuf) {
	m.next = -1
	if l.waiting == 0 {
		l.first = id
	} else {
		l.p.sends.bufs[l.last].next = id
	}
	l.last = id
	l.waiting++
	switch {
	case l.state == linkIdle:
		l.askLocked()
	case l.state == linkUp && l.far != nil:
		l.stallLocked()
	}
}

// stallLocked counts the first message that waits as one without a slot, and has Poll try again.
func (l *link) stallLocked() {
	if m := &l.p.sends.bufs[l.first]; !m.missed {
		m.missed = true
		l.p.posts.rnr.Add(1)
	}
	if !l.stalled {
		l.stalled = true
		l.p.mu.Lock()
		l.p.queued = append(l.p.queued, l)
		l.p.mu.Unlock()
		l.p.stuck.Add(1)
		l.p.nudge() // Wait must not sleep long
	}
}

// flushLocked posts what waits.
func (l *link) flushLocked() {
	for l.waiting > 0 && l.state == linkUp && l.far != nil {
		if atomic.LoadUint32(&l.far.head.closed) != 0 {
			l.endLocked(errPortClosed)
			return
		}
		id := l.first
		m := &l.p.sends.bufs[id]
		next := m.next // the buffer is another's as soon as it is posted
		if !l.postLocked(id, m) {
			l.stallLocked()
			return
		}
		l.first = next
		l.waiting--
	}
}

// retry tries the links whose messages met no slot.
func (p *port) retry() {
	p.mu.Lock()
	links := p.queued
	p.queued = nil
	p.mu.Unlock()
	p.stuck.Add(-int32(len(links)))
	for _, l := range links {
		l.mu.Lock()
		l.stalled = false
		l.flushLocked()
		l.mu.Unlock()
	}
}

// askLocked asks for the next connection.
func (l *link) askLocked() {
	p := l.p
	l.epoch++
	if l.self() {
		l.far = p.box
		p.posts.connects.Add(1)
		l.upLocked()
		l.flushLocked()
		return
	}
	l.state = linkAsking
	if p.n.peers[l.peer].gone.Load() {
		l.endLocked(errLeft)
		return
	}
	l.speakLocked(kindAsk)
}

// speakLocked asks or answers.
func (l *link) speakLocked(kind byte) {
	fd := -1
	if !l.gave {
		l.gave, fd = true, l.p.box.mem.FD()
	}
	l.p.posts.handshakes.Add(1)
	l.tellLocked(packet{kind: kind, a: uint32(l.p.cfg.Slots), b: uint32(l.p.cfg.SlotSize)}, fd)
}

// tellLocked sends a packet about this connection. A peer that takes none is no peer any more.
func (l *link) tellLocked(k packet, fd int) {
	k.port, k.epoch = uint32(l.p.num), l.epoch
	if err := l.p.n.peers[l.peer].send(k, fd); err != nil {
		l.endLocked(fmt.Errorf("shm: telling it about a connection: %w", err))
	}
}

// upLocked is when this end knows that the other is ready.
func (l *link) upLocked() {
	if l.state == linkDown {
		return
	}
	l.state, l.sent = linkUp, 0
	l.p.up.Add(1)
	l.p.push(entry{Event: fabric.Event{Kind: fabric.Up, Peer: l.peer, Epoch: l.epoch}, buf: -1})
}

// idleLocked is when both ends know that nothing is in flight. What waits needs another connection.
func (l *link) idleLocked() {
	l.state = linkIdle
	l.p.up.Add(-1)
	l.p.posts.closes.Add(1)
	l.p.push(entry{Event: fabric.Event{Kind: fabric.Idle, Peer: l.peer, Epoch: l.epoch}, buf: -1})
}

// endLocked is the end of the peer, at this port.
func (l *link) endLocked(cause error) {
	if l.state == linkDown || !l.p.alive.Load() {
		return
	}
	if l.state == linkUp || l.state == linkClosing {
		l.p.up.Add(-1)
	}
	l.state = linkDown
	l.cause.Store(&cause)
	err := &fabric.PeerDownError{Rank: l.peer, Op: "send", Cause: cause}
	for id := l.first; l.waiting > 0; l.waiting-- {
		m := &l.p.sends.bufs[id]
		next := m.next
		l.p.finish(l.peer, id, m, err)
		id = next
	}
	_ = l.dropLocked()
	l.p.push(entry{Event: fabric.Event{Kind: fabric.Down, Peer: l.peer, Err: cause}, buf: -1})
}

// dropLocked unmaps the peer's port.
func (l *link) dropLocked() error {
	far := l.far
	l.far = nil
	if far == nil || l.self() {
		return nil
	}
	return far.close()
}

// close is the port's.
func (l *link) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dropLocked()
}

// ask is a packet that may hand over a port.
type ask struct {
	from int
	packet
	far *mailbox
}

// asked takes a peer's ASK or ANSWER.
func (p *port) asked(a ask) {
	l := p.link(a.from)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkDown || !p.alive.Load() {
		a.drop()
		if a.kind == kindAsk {
			_ = p.n.peers[a.from].send(packet{kind: kindGone, port: a.port, epoch: a.epoch}, -1)
		}
		return
	}
	if err := l.handOverLocked(a); err != nil {
		p.violated(a.from, err)
		return
	}
	if !l.answersLocked(a) {
		p.violated(a.from, fmt.Errorf("shm: packet %d about connection %d, while %d is in state %d", a.kind, a.epoch, l.epoch, l.state))
		return
	}
	if int(a.b) != p.cfg.SlotSize {
		l.endLocked(fmt.Errorf("shm: its port %d has slots of %d bytes, this rank's has %d: both ends must agree", p.num, a.b, p.cfg.SlotSize))
		return
	}
	l.flushLocked()
}

// handOverLocked takes the peer's port, if it was handed over.
func (l *link) handOverLocked(a ask) error {
	switch {
	case a.far == nil && l.far == nil:
		return errors.New("shm: it asks for a connection and hands over no port")
	case a.far != nil && l.far != nil:
		a.drop()
		return errors.New("shm: it hands over its port twice")
	case a.far != nil:
		l.far = a.far
	}
	return nil
}

// answersLocked moves on by an ASK or ANSWER. It is false if there is no place for that.
func (l *link) answersLocked(a ask) bool {
	p := l.p
	switch {
	case l.state == linkIdle && a.kind == kindAsk && a.epoch == l.epoch+1:
		l.epoch = a.epoch
		p.posts.accepts.Add(1)
		l.state = linkAsking // by the other
		l.speakLocked(kindAnswer)
		l.upLocked()
		return true
	case a.epoch != l.epoch || l.state == linkIdle:
		return false
	}
	if a.kind == kindAnswer || l.peer > p.n.cfg.Rank { // both ask: it counts as the lower rank's
		p.posts.connects.Add(1)
	} else {
		p.posts.accepts.Add(1)
	}
	if l.state == linkAsking { // else a message was here first
		l.upLocked()
	}
	return true
}

func (a *ask) drop() {
	if a.far != nil {
		_ = a.far.close()
	}
}

// strange is what take says about a message that fits nothing that the program was told.
func (p *port) strange(from int, epoch uint32) int {
	l := p.links[from].Load()
	if l == nil {
		p.violated(from, errors.New("shm: a message without a connection"))
		return msgBad
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == linkDown:
		return msgBad
	case l.state == linkAsking && epoch == l.epoch: // it overtook the answer
		l.upLocked()
		l.flushLocked()
		return msgEarly
	case (l.state == linkUp || l.state == linkClosing) && epoch == l.epoch && epoch != l.told:
		return msgEarly
	}
	p.violated(from, fmt.Errorf("shm: a message of connection %d, while %d is in state %d", epoch, l.epoch, l.state))
	return msgBad
}

// violated ends a peer that breaks the rules. It may be called with any lock but the Network's.
func (p *port) violated(from int, err error) {
	if from == p.n.cfg.Rank || p.n.closing.Load() {
		return
	}
	if p.n.peers[from].accused.CompareAndSwap(false, true) {
		p.n.watchers.Go(func() { p.n.foundDown(from, err) })
	}
}

// peerDown is the end of a rank.
func (p *port) peerDown(rank int, cause error) {
	l := p.link(rank)
	l.mu.Lock()
	l.endLocked(cause)
	l.mu.Unlock()
}

// peerLeft is the end of a rank in good order: nobody answers any more.
func (p *port) peerLeft(rank int) {
	if l := p.links[rank].Load(); l != nil {
		l.mu.Lock()
		if l.state == linkClosing {
			l.idleLocked()
		}
		if l.state == linkAsking || l.waiting > 0 {
			l.endLocked(errLeft)
		}
		l.mu.Unlock()
	}
	p.nudge() // there may be cells that it claimed
}

// Disconnect starts to close an idle connection. One that is not idle, or not made, stays.
func (p *port) Disconnect(peer int) error {
	if err := p.usable("disconnect"); err != nil {
		return err
	}
	if err := p.refuse("disconnect", peer); err != nil {
		return err
	}
	l := p.links[peer].Load()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	got := l.received.Load()
	if l.state != linkUp || l.far == nil || l.waiting > 0 || uint32(got>>32) != l.epoch {
		return nil
	}
	if l.self() {
		if uint32(got) == l.sent {
			l.idleLocked()
		}
		return nil
	}
	l.state = linkClosing
	l.tellLocked(packet{kind: kindClose, a: l.sent, b: uint32(got)}, -1)
	return nil
}

// closing takes a peer's CLOSE, YES or NO.
func (p *port) closing(from int, k packet) {
	if !p.alive.Load() && k.kind == kindClose { // nothing can get lost here any more
		_ = p.n.peers[from].send(packet{kind: kindYes, port: k.port, epoch: k.epoch}, -1)
		return
	}
	l := p.links[from].Load()
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.epoch != l.epoch || l.state != linkClosing && !(l.state == linkUp && k.kind == kindClose) {
		return // both closed at once: it is settled
	}
	switch k.kind {
	case kindClose:
		idle := l.received.Load() == uint64(k.epoch)<<32|uint64(k.a) && l.sent == k.b && (l.state == linkClosing || l.waiting == 0)
		if !idle {
			l.tellLocked(packet{kind: kindNo}, -1)
			return
		}
		l.tellLocked(packet{kind: kindYes}, -1)
	case kindNo:
		l.state = linkUp
		l.flushLocked()
		return
	}
	if l.state == linkDown { // the answer did not get through
		return
	}
	l.idleLocked()
	if l.waiting > 0 {
		l.askLocked()
	}
}

// goneAway takes the word that the peer's port was closed.
func (p *port) goneAway(from int, k packet) {
	l := p.links[from].Load()
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkAsking && k.epoch == l.epoch {
		l.endLocked(errPortClosed)
	}
}
