//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// connections are an endpoint's. The poller makes and ends them, with mu held, which is
// released while the device makes or connects a queue pair.
type connections struct {
	*core
	mu        *sync.Mutex // of the endpoint
	srq       *verbs.SRQ
	cq        *verbs.CQ
	out       *messages
	datagrams *datagrams

	peers   []*peer          // by rank; nil: no connection was ever begun, and it is not down
	byQPN   map[uint32]*conn // every connection that has a queue pair
	last    *conn            // that find found
	asking  []*conn          // with something to repeat
	wanted  []*conn          // to be made
	control []datagram       // to be answered
	trimAt  time.Duration    // when to look for idle connections again
	keepAt  time.Duration    // when to look for connections to probe
	open    atomic.Int32     // connections that are up
}

// peer is the state of a rank beside its connection.
type peer struct {
	conn  *conn
	epoch uint32 // of the last connection
	down  bool
}

// conn is this end of a connection.
type conn struct {
	q       sendQueue
	qpn     uint32
	state   connState
	active  bool  // this end requested it
	ready   bool  // in messages.ready
	holding bool  // some of the silent messages in flight keep their buffers
	busy    bool  // something happened since the last look of keepalive
	closing bool  // to be closed as soon as nothing is in flight
	proven  bool  // and the peer's device has answered since that was decided
	joined  uint8 // messages in flight beyond one for each request; fewer than endpointQueue
	waiting list  // messages that are not posted yet
	used    uint64
	trouble error // why it could not be made yet

	sent, arrived uint32 // messages of this connection

	// Handshake.
	listed     bool // in connections.asking
	tries      uint8
	psn        uint32
	peerQPN    uint32
	attempt    uint32 // closing: of this end
	declined   uint32 // the last attempt of the peer that this end did not agree to
	since      time.Duration
	next       time.Duration // when to repeat
	restsUntil time.Duration // not to be closed for lack of use before
}

type connState uint8

const (
	connWanted    connState = iota // there is something to send; the poller requests it
	connAsking                     // requested; the request is repeated
	connAnswering                  // answered, and does not know yet whether that came
	connUp
	connClosing // the peer may refuse to close it
	connGone
)

var (
	errNoAnswer = errors.New("ibv: no answer to the attempts to make a connection, or to close one; " +
		"is its endpoint open, and is it polled?")
	errMisfit = errors.New("ibv: the two endpoints differ in the size of their slots")
)

func (s *connections) now() time.Duration { return time.Since(s.origin) }

// find returns the connection of a queue pair. last is the one that it found last.
func (s *connections) find(qpn uint32) *conn {
	s.last = s.byQPN[qpn]
	return s.last
}

// to is the connection to a rank, or nil.
func (s *connections) to(rank int) *conn {
	if p := s.peers[rank]; p != nil {
		return p.conn
	}
	return nil
}

// peer returns the state of a rank, which it makes.
func (s *connections) peer(rank int) *peer {
	if s.peers[rank] == nil {
		s.peers[rank] = new(peer)
	}
	return s.peers[rank]
}

// isDown reports whether the end of a rank was dealt with.
func (s *connections) isDown(rank int) bool { return s.peers[rank] != nil && s.peers[rank].down }

// add adds a connection to a rank that has none.
func (s *connections) add(rank int32, state connState) *conn {
	a := &s.n.peers[rank]
	c := &conn{state: state, q: sendQueue{rank: rank, base: a.base, rkey: a.rkey}}
	c.q.conn = c
	s.peer(int(rank)).conn = c
	return c
}

// want adds one that the poller is to make.
func (s *connections) want(rank int32) *conn {
	c := s.add(rank, connWanted)
	s.wanted = append(s.wanted, c)
	return c
}

// sendTo sends a datagram of the handshake.
func (s *connections) sendTo(c *conn, d datagram) {
	s.count.Handshakes++
	d.to = uint32(c.q.rank)
	if d.epoch == 0 {
		d.epoch = c.q.epoch
	}
	if s.n.cfg.mangle == nil {
		s.datagrams.send(d) // without room it is as good as lost
		return
	}
	for _, d := range s.n.cfg.mangle(d) {
		s.datagrams.send(d)
	}
}

// repeat sends the datagram of a connection's state.
func (s *connections) repeat(c *conn) {
	d := datagram{qpn: c.qpn, psn: c.psn, slotSize: uint32(s.cfg.SlotSize)}
	switch c.state {
	case connAsking:
		d.kind = dgRequest
	case connAnswering:
		d.kind = dgReply
	case connClosing:
		d = datagram{kind: dgClose, attempt: c.attempt, sent: c.sent, arrived: c.arrived}
	default:
		return
	}
	s.sendTo(c, d)
}

// begin sends it for the first time, and has it repeated.
func (s *connections) begin(c *conn) {
	c.tries, c.since = 0, s.now()
	s.repeatLater(c, askFirst)
	s.repeat(c)
}

func (s *connections) repeatLater(c *conn, after time.Duration) {
	c.next = s.now() + after
	if !c.listed {
		c.listed = true
		s.asking = append(s.asking, c)
	}
}

// tryLater has a connection that cannot be made for the moment requested again.
func (s *connections) tryLater(c *conn) {
	if !c.listed {
		c.since = s.now()
	}
	s.repeatLater(c, askMost)
}

// ask makes the queue pair of a wanted connection, and sends the request.
func (s *connections) ask(c *conn) {
	if c.state != connWanted {
		return // the peer was first, or is dead
	}
	c.q.epoch = s.peers[c.q.rank].epoch + 1
	c.active = true
	s.mu.Unlock()
	c.trouble = s.makeQP(c)
	if c.trouble == nil && int(c.q.rank) == s.n.cfg.Rank {
		c.trouble = s.connectQP(c, c.qpn, c.psn)
	}
	s.mu.Lock()
	switch {
	case c.trouble != nil:
		s.dropQP(c)
		s.tryLater(c)
	case int(c.q.rank) == s.n.cfg.Rank:
		s.peers[c.q.rank].epoch = c.q.epoch
		s.made(c)
	default:
		c.state = connAsking
		s.begin(c)
	}
}

// makeQP makes the queue pair of a connection.
func (s *connections) makeQP(c *conn) error {
	n := s.n
	if _, err := verbs.ComputePath(n.path, n.peers[c.q.rank].end()); err != nil {
		return err
	}
	qp, err := n.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: s.cq, SRQ: s.srq, MaxSendWR: endpointDepth,
		MaxInline: n.inline})
	if err != nil {
		return err
	}
	if err := qp.Init(verbs.InitAttr{Port: n.port.Port, Access: verbs.AccessRemoteWrite}); err != nil {
		return errors.Join(err, qp.Close())
	}
	c.psn = rand.Uint32() & psnMask
	s.mu.Lock()
	c.q.qp, c.qpn = qp, qp.Num()
	s.byQPN[c.qpn] = c
	s.mu.Unlock()
	return nil
}

// dropQP closes what makeQP made.
func (s *connections) dropQP(c *conn) {
	if c.q.qp == nil {
		return
	}
	if s.out.tx.staged() { // perhaps to it
		s.out.ring(0)
	}
	delete(s.byQPN, c.qpn)
	s.last = nil
	if err := c.q.qp.Close(); err != nil {
		s.n.log.Warn("ibv: queue pair of a connection", "rank", c.q.rank, "err", err)
	}
	c.q.qp, c.qpn = nil, 0
}

// connectQP brings it into the state in which it sends.
func (s *connections) connectQP(c *conn, qpn, psn uint32) error {
	c.peerQPN = qpn
	return s.n.establish(c.q.qp, s.n.peers[c.q.rank].end(),
		verbs.RTRAttr{DestQPN: qpn, RQPSN: psn, MaxDestRdAtomic: 1, MinRNRTimer: endpointRNRTimer},
		verbs.RTSAttr{SQPSN: c.psn, MaxReadAtomic: 1, RNRRetry: verbs.RNRRetryForever})
}

// answer deals with a datagram of the handshake.
func (s *connections) answer(d *datagram) {
	at := s.peer(int(d.from))
	if at.down || int(d.from) == s.n.cfg.Rank {
		return
	}
	c := at.conn
	switch d.kind {
	case dgRequest:
		s.requested(at, d)
	case dgReply:
		s.replied(at, d)
	case dgReady:
		if c != nil && c.state == connAnswering && c.q.epoch == d.epoch {
			s.made(c)
		}
	case dgRefusal:
		if c != nil && (c.state == connAsking || c.state == connAnswering) && c.q.epoch == d.epoch {
			s.out.tx.fail(&c.q, fmt.Errorf("%w: %d bytes here, %d there", errMisfit, s.cfg.SlotSize, d.slotSize))
		}
	case dgClose:
		s.askedToClose(at, d)
	case dgClosed:
		if c != nil && c.state == connClosing && c.q.epoch == d.epoch {
			s.shut(c)
		}
	case dgStay:
		if c != nil && c.state == connClosing && c.q.epoch == d.epoch && c.attempt == d.attempt {
			c.state, c.closing = connUp, false
			c.restsUntil = s.now() + restAfterStay
			s.trimAt = min(s.trimAt, c.restsUntil) // it was not counted while it was closing
			s.open.Add(1)
			s.out.markReady(c)
		}
	}
}

// requested is the arrival of a peer's request: a new one, the repetition of one that was answered,
// or a late copy.
func (s *connections) requested(at *peer, d *datagram) {
	c := at.conn
	if c != nil && c.state == connClosing && d.epoch == c.q.epoch+1 {
		s.shut(c) // the peer would request no other if it had not agreed
		c = at.conn
	}
	switch {
	case c != nil && c.state == connAnswering && c.q.epoch == d.epoch && c.peerQPN == d.qpn:
		s.repeat(c) // the reply was lost, perhaps
		return
	case d.epoch != at.epoch+1:
		return
	case c == nil:
		c = s.add(int32(d.from), connGone) // until it is accepted
	case c.state == connAsking && uint32(s.n.cfg.Rank) > d.from:
		// both request at once: it counts as the lower rank's
	case c.state != connWanted:
		return
	}
	if int(d.slotSize) != s.cfg.SlotSize {
		s.sendTo(c, datagram{kind: dgRefusal, epoch: d.epoch, slotSize: uint32(s.cfg.SlotSize)})
		s.out.tx.fail(&c.q, fmt.Errorf("%w: %d bytes here, %d there", errMisfit, s.cfg.SlotSize, d.slotSize))
		return
	}
	c.state, c.active, c.q.epoch = connAnswering, false, d.epoch
	s.mu.Unlock()
	c.trouble = nil
	if c.q.qp == nil {
		c.trouble = s.makeQP(c)
	}
	if c.trouble == nil {
		c.trouble = s.connectQP(c, d.qpn, d.psn)
	}
	s.mu.Lock()
	if c.trouble != nil { // the peer repeats its request
		s.n.log.Warn("ibv: a connection could not be accepted", "rank", c.q.rank, "err", c.trouble)
		s.dropQP(c)
		if c.state = connGone; c.waiting.n > 0 {
			c.state = connWanted
			s.tryLater(c)
		} else {
			at.conn = nil
		}
		return
	}
	at.epoch = d.epoch
	s.begin(c)
}

// replied is the arrival of the answer to a request.
func (s *connections) replied(at *peer, d *datagram) {
	c := at.conn
	switch {
	case c == nil || !c.active || c.q.epoch != d.epoch:
	case c.state == connAsking && int(d.slotSize) != s.cfg.SlotSize:
		s.out.tx.fail(&c.q, fmt.Errorf("%w: %d bytes here, %d there", errMisfit, s.cfg.SlotSize, d.slotSize))
	case c.state == connAsking:
		s.mu.Unlock()
		c.trouble = s.connectQP(c, d.qpn, d.psn)
		s.mu.Lock()
		if c.trouble != nil {
			return // the peer will answer again
		}
		at.epoch = c.q.epoch
		s.sendTo(c, datagram{kind: dgReady})
		s.made(c)
	case c.state == connUp || c.state == connClosing:
		s.sendTo(c, datagram{kind: dgReady}) // the first was lost, perhaps
	}
}

// made is called when this end knows that both are ready.
func (s *connections) made(c *conn) {
	c.state, c.busy = connUp, true
	s.out.used(c)
	s.open.Add(1)
	if c.active {
		s.count.Connects++
	} else {
		s.count.Accepts++
	}
	s.events.push(fabric.Event{Kind: fabric.Up, Peer: int(c.q.rank), Epoch: c.q.epoch})
	s.out.markReady(c)
	s.trimAt = 0
}
