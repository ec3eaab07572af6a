//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// conn is this end of a connection. The poller makes and ends it; what else may look at it does so under the port's mu.
// A rank without one costs a peer, 16 bytes.
type conn struct {
	rank   int32
	state  connState
	active bool // this end asked
	epoch  uint32
	qp     *verbs.QP
	base   uint64 // the peer's segment
	rkey   uint32

	// Messages, oldest first, through message.next: first those on their way, then those queued.
	head, tail int32
	first      int32 // of those queued
	count      int32 // of all
	queued     int32
	wrs        int32 // work requests on their way
	silent     int32 // of the messages on their way, those at the end that asked for no completion
	holding    bool  // and some of those keep their buffers
	touched    bool  // a touch is among them
	ready      bool  // in port.ready
	busy       bool  // something happened since the last look of keepalive
	parting    bool  // to be closed as soon as nothing is in flight
	proven     bool  // and the peer's device has answered since that was decided
	used       uint64
	refused    error // why the queue pair is of no more use
	trouble    error // why it could not be made yet

	sent, arrived uint32 // messages of this connection

	// Handshake.
	waits      bool // in port.asking
	tries      uint8
	psn        uint32
	far        uint32 // the peer's queue pair
	attempt    uint32 // closing: of this end
	declined   uint32 // the last attempt of the peer that this end did not agree to
	since      time.Duration
	next       time.Duration // when to say it again
	restsUntil time.Duration // not to be closed for lack of use before
}

type connState uint8

const (
	connWanted    connState = iota // somebody has something to send; the poller will ask
	connAsking                     // asked, and asks again
	connAnswering                  // answered, and does not know yet whether that came
	connUp
	connClosing // asked whether it may be closed
	connGone
)

const never = time.Duration(math.MaxInt64)

var (
	errNoAnswer = errors.New("ibv: no answer to the attempts to make a connection, or to close one; is its port open, and does somebody poll it?")
	errMisfit   = errors.New("ibv: the two ends of a port differ in the size of their slots")
)

// newConn adds a connection. mu is held.
func (p *port) newConn(rank int32, state connState) *conn {
	a := &p.n.peers[rank]
	c := &conn{rank: rank, state: state, base: a.base, rkey: a.rkey, head: none, tail: none, first: none}
	p.peers[rank].conn = c
	if state == connWanted {
		p.wanted = append(p.wanted, c)
	}
	return c
}

// makeAndPart does what reaping and other goroutines left to the poller: it makes connections and ends them.
func (p *port) makeAndPart() {
	p.mu.Lock()
	for p.unsettled() {
		control, wanted, parting, broken := p.control, p.wanted, p.parting, p.broken
		p.control, p.wanted, p.parting, p.broken = nil, nil, nil, nil
		p.mu.Unlock()
		for _, c := range broken {
			p.n.found(int(c.rank), c.refused)
		}
		if len(broken) > 0 {
			p.noticeDowns()
		}
		for i := range control {
			p.answer(&control[i])
		}
		for _, c := range wanted {
			p.ask(c)
		}
		p.mu.Lock()
		for _, c := range parting {
			p.part(c)
		}
	}
	if len(p.staged)+len(p.ready) > 0 {
		_ = p.flush() // the next turn tells
	}
	p.mu.Unlock()
}

// unsettled reports whether there are connections to be made or ended. mu is held.
func (p *port) unsettled() bool {
	return len(p.control)+len(p.wanted)+len(p.parting)+len(p.broken) > 0
}

// owes reports whether makeAndPart has something to do. mu is held.
func (p *port) owes() bool { return p.unsettled() || len(p.staged)+len(p.ready) > 0 }

// tell sends a datagram of the handshake. mu is held.
func (p *port) tell(c *conn, d datagram) {
	p.count.handshakes.Add(1)
	d.to = uint32(c.rank)
	if d.epoch == 0 {
		d.epoch = c.epoch
	}
	if p.n.cfg.mangle == nil {
		p.say(d) // without room it is as good as lost
		return
	}
	for _, d := range p.n.cfg.mangle(d) {
		p.say(d)
	}
}

// repeat says what the state of a connection has to say. mu is held.
func (p *port) repeat(c *conn) {
	d := datagram{qpn: 0, psn: c.psn, slotSize: uint32(p.cfg.SlotSize)}
	if c.qp != nil {
		d.qpn = c.qp.Num()
	}
	switch c.state {
	case connAsking:
		d.kind = sayRequest
	case connAnswering:
		d.kind = sayReply
	case connClosing:
		d = datagram{kind: sayClose, attempt: c.attempt, sent: c.sent, arrived: c.arrived}
	default:
		return
	}
	p.tell(c, d)
}

// begin says it for the first time, and has it repeated. mu is held.
func (p *port) begin(c *conn) {
	c.tries, c.since = 0, p.Now()
	p.repeatLater(c, askFirst)
	p.repeat(c)
}

func (p *port) repeatLater(c *conn, after time.Duration) {
	c.next = p.Now() + after
	if !c.waits {
		c.waits = true
		p.asking = append(p.asking, c)
	}
}

// tryLater has a connection that cannot be made for the moment asked for again. mu is held.
func (p *port) tryLater(c *conn) {
	if !c.waits {
		c.since = p.Now()
	}
	p.repeatLater(c, askMost)
}

// ask makes the queue pair of a connection that somebody wants, and asks the peer.
func (p *port) ask(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.state != connWanted {
		return // the peer asked first, or is dead
	}
	c.epoch = p.peers[c.rank].epoch + 1
	c.active = true
	p.mu.Unlock()
	c.trouble = p.makeQP(c)
	if c.trouble == nil && int(c.rank) == p.n.cfg.Rank {
		c.trouble = p.connectQP(c, c.qp.Num(), c.psn)
	}
	p.mu.Lock()
	switch {
	case c.trouble != nil:
		p.dropQP(c)
		p.tryLater(c)
	case int(c.rank) == p.n.cfg.Rank:
		p.peers[c.rank].epoch = c.epoch
		p.made(c)
	default:
		c.state = connAsking
		p.begin(c)
	}
}

// makeQP makes the queue pair of a connection.
func (p *port) makeQP(c *conn) error {
	n := p.n
	path, err := verbs.ComputePath(n.path, n.peers[c.rank].end)
	if err != nil {
		return err
	}
	cq := p.listener.cq
	qp, err := n.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, SRQ: p.srq, MaxSendWR: portDepth, MaxInline: p.inline})
	if err != nil {
		return err
	}
	if err := qp.Init(verbs.InitAttr{Port: n.port.Port, PKeyIndex: path.PKeyIndex, Access: verbs.AccessRemoteWrite}); err != nil {
		return errors.Join(err, qp.Close())
	}
	c.psn = rand.Uint32() & psnMask
	p.mu.Lock()
	c.qp = qp
	p.byQPN[qp.Num()] = c
	p.mu.Unlock()
	return nil
}

// dropQP closes what makeQP made. mu is held.
func (p *port) dropQP(c *conn) {
	if c.qp == nil {
		return
	}
	delete(p.byQPN, c.qp.Num())
	if err := c.qp.Close(); err != nil {
		p.n.log.Warn("ibv: queue pair of a connection", "rank", c.rank, "err", err)
	}
	c.qp = nil
}

// connectQP brings it into the state in which it sends.
func (p *port) connectQP(c *conn, qpn, psn uint32) error {
	n := p.n
	path, err := verbs.ComputePath(n.path, n.peers[c.rank].end)
	if err != nil {
		return err
	}
	err = c.qp.ReadyToReceive(verbs.RTRAttr{
		AV: path.AV, PathMTU: path.MTU, DestQPN: qpn, RQPSN: psn, MaxDestRdAtomic: 1, MinRNRTimer: portRNRTimer,
	})
	if err != nil {
		return err
	}
	c.far = qpn
	return c.qp.ReadyToSend(verbs.RTSAttr{
		SQPSN: c.psn, MaxReadAtomic: 1, Timeout: n.cfg.timeout, RetryCount: n.cfg.retries, RNRRetry: verbs.RNRRetryForever,
	})
}

// answer deals with a datagram of the handshake.
func (p *port) answer(d *datagram) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &p.peers[d.from]
	if at.down || int(d.from) == p.n.cfg.Rank {
		return
	}
	c := at.conn
	switch d.kind {
	case sayRequest:
		p.requested(at, d)
	case sayReply:
		p.replied(at, d)
	case sayReady:
		if c != nil && c.state == connAnswering && c.epoch == d.epoch {
			p.made(c)
		}
	case sayRefusal:
		if c != nil && (c.state == connAsking || c.state == connAnswering) && c.epoch == d.epoch {
			p.lose(c, fmt.Errorf("%w: %d bytes here, %d there", errMisfit, p.cfg.SlotSize, d.slotSize))
		}
	case sayClose:
		p.askedToClose(at, d)
	case sayClosed:
		if c != nil && c.state == connClosing && c.epoch == d.epoch {
			p.shut(c)
		}
	case sayStay:
		if c != nil && c.state == connClosing && c.epoch == d.epoch && c.attempt == d.attempt {
			c.state, c.parting = connUp, false
			c.restsUntil = p.Now() + restAfterStay
			p.trimAt = min(p.trimAt, c.restsUntil) // it was not counted while it was closing
			p.open.Add(1)
			p.markReady(c)
		}
	}
}

// requested is the arrival of a peer's request: a new one, the repetition of one that was answered, or a late copy.
func (p *port) requested(at *peer, d *datagram) {
	c := at.conn
	if c != nil && c.state == connClosing && d.epoch == c.epoch+1 {
		p.shut(c) // the peer would not ask if it had not agreed
		c = at.conn
	}
	switch {
	case c != nil && c.state == connAnswering && c.epoch == d.epoch && c.far == d.qpn:
		p.repeat(c) // the reply was lost, perhaps
		return
	case d.epoch != at.epoch+1:
		return
	case c == nil:
		c = p.newConn(int32(d.from), connGone) // until it is accepted
	case c.state == connAsking && uint32(p.n.cfg.Rank) > d.from: // both ask at once: the lower rank does, the other answers
	case c.state != connWanted:
		return
	}
	if int(d.slotSize) != p.cfg.SlotSize {
		p.tell(c, datagram{kind: sayRefusal, epoch: d.epoch, slotSize: uint32(p.cfg.SlotSize)})
		p.lose(c, fmt.Errorf("%w: %d bytes here, %d there", errMisfit, p.cfg.SlotSize, d.slotSize))
		return
	}
	c.state, c.active, c.epoch = connAnswering, false, d.epoch
	p.mu.Unlock()
	c.trouble = nil
	if c.qp == nil {
		c.trouble = p.makeQP(c)
	}
	if c.trouble == nil {
		c.trouble = p.connectQP(c, d.qpn, d.psn)
	}
	p.mu.Lock()
	if c.trouble != nil { // the peer will ask again
		p.n.log.Warn("ibv: a connection could not be accepted", "rank", c.rank, "err", c.trouble)
		p.dropQP(c)
		if c.state = connGone; c.count > 0 {
			c.state = connWanted
			p.tryLater(c)
		} else {
			at.conn = nil
		}
		return
	}
	at.epoch = d.epoch
	p.begin(c)
}

// replied is the arrival of the answer to a request.
func (p *port) replied(at *peer, d *datagram) {
	c := at.conn
	switch {
	case c == nil || !c.active || c.epoch != d.epoch:
	case c.state == connAsking && int(d.slotSize) != p.cfg.SlotSize:
		p.lose(c, fmt.Errorf("%w: %d bytes here, %d there", errMisfit, p.cfg.SlotSize, d.slotSize))
	case c.state == connAsking:
		p.mu.Unlock()
		c.trouble = p.connectQP(c, d.qpn, d.psn)
		p.mu.Lock()
		if c.trouble != nil {
			return // the peer will answer again
		}
		at.epoch = c.epoch
		p.tell(c, datagram{kind: sayReady})
		p.made(c)
	case c.state == connUp || c.state == connClosing:
		p.tell(c, datagram{kind: sayReady}) // the first was lost, perhaps
	}
}

// made is when this end knows that both are ready. mu is held.
func (p *port) made(c *conn) {
	c.state, c.busy = connUp, true
	p.clock++
	c.used = p.clock
	p.open.Add(1)
	if c.active {
		p.count.connects.Add(1)
	} else {
		p.count.accepts.Add(1)
	}
	p.events.push(fabric.Event{Kind: fabric.Up, Peer: int(c.rank), Epoch: c.epoch})
	p.markReady(c)
	p.trimAt = 0
}
