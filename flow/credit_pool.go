package flow

import (
	"fmt"
	"time"

	"github.com/ibconduit/conduit/internal/sparse"
)

// Pool is a receiver's books of its posted buffers: which peer may use how many. See
// the package comment. Its owner serialises all calls.
type Pool struct {
	cfg   PoolConfig
	peers sparse.Array[entry]

	// Credits: Credits = free + held + bare.
	free int // nobody has them
	held int // with peers or on the way
	bare int // messages took their buffers, which are not posted again yet

	replies struct{ free, reserved, bare int } // likewise for replies
	extra   int                                // buffers taken by messages that had no right to one, not posted again yet

	holders   list // accounts with credits, the longest unused first
	recalled  list // accounts that were asked to give back, the longest unasked first
	recalling int  // credits asked back that may still come soon
	hungry    list // want credits and hold none
	topping   list // want more than they hold
	out       list // to be told something by a control message

	stats PoolStats
}

// entry is what a pool knows of a peer.
type entry struct {
	account *account // nil without a connection
	last    uint32   // the number of its last connection
}

// PoolStats count from NewPool on.
type PoolStats struct {
	Arrivals   uint64 // requests with a credit
	Replies    uint64 // replies with a reserved buffer
	Granted    uint64 // credits granted
	Returned   uint64 // credits given back unused
	Reclaimed  uint64 // credits that came back because their connection ended
	Recalls    uint64 // times a peer was asked to give back, without repetitions
	Retries    uint64 // repetitions
	Controls   uint64 // control messages that NextControl named
	Stale      uint64 // headers and messages of other connections
	Violations uint64 // headers and messages that broke the protocol
}

// NewPool returns the books of a pool whose buffers are all posted.
func NewPool(cfg PoolConfig) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, peers: sparse.Make[entry](cfg.Peers), free: cfg.Credits}
	p.replies.free = cfg.Replies
	p.holders.kind, p.recalled.kind = holding, holding
	p.hungry.kind, p.topping.kind = queueing, queueing
	p.out.kind = sending
	return p, nil
}

// Open begins a peer's connection with the given number, greater than all before;
// the first is 1. It grants the initial credits, if there are any to spare.
func (p *Pool) Open(peer int, epoch uint32, now time.Duration) error {
	return p.openAt(peer, epoch, 0, now)
}

// openAt starts the totals somewhere else than at 0, which tests of their wrap-around use.
func (p *Pool) openAt(peer int, epoch, origin uint32, now time.Duration) error {
	if peer < 0 || peer >= p.peers.Len() {
		return fmt.Errorf("flow: open peer %d of %d: no such peer", peer, p.peers.Len())
	}
	e := p.peers.At(peer)
	if epoch == 0 || ahead(epoch, e.last) <= 0 {
		return fmt.Errorf("flow: open connection %d of peer %d after connection %d: numbers grow from 1", epoch, peer, e.last)
	}
	p.Close(peer, now)
	e.last = epoch
	a := &account{epoch: epoch, peer: int32(peer), granted: origin, returned: origin, recall: origin, acked: origin, lastUse: now}
	e.account = a
	a.target = uint16(p.cfg.Initial)
	if n := min(p.cfg.Initial, p.spare()-p.cfg.Credits/reserveShare); n > 0 && p.hungry.Len() == 0 {
		p.grant(a, n, now)
	}
	return nil
}

// Close ends a peer's connection, also at its death, and returns how many credits and
// reserved reply buffers came back. A second Close returns none. Call it when the
// network will deliver no more messages of the connection, of those that it has
// delivered already Reposted is still owed.
func (p *Pool) Close(peer int, now time.Duration) (credits, replies int) {
	a := p.account(peer)
	if a == nil {
		return 0, 0
	}
	credits, replies = a.held(), int(a.replies)
	for kind := range numLinks {
		a.leave(kind)
	}
	p.recalling -= int(a.counted)
	p.held -= credits
	p.free += credits
	p.replies.reserved -= replies
	p.replies.free += replies
	p.stats.Reclaimed += uint64(credits)
	p.peers.At(peer).account = nil
	p.pump(now)
	return credits, replies
}

// account returns nil for a peer without a connection.
func (p *Pool) account(peer int) *account {
	if e := p.peers.Find(peer); e != nil {
		return e.account
	}
	return nil
}

// Epoch is the number of a peer's connection or, without one, of its last; 0: never.
func (p *Pool) Epoch(peer int) (epoch uint32, open bool) {
	e := p.peers.Find(peer)
	if e == nil {
		return 0, false
	}
	return e.last, e.account != nil
}

// Opens tells which connection a peer begins with the header of a control message
// that reached a peer without a connection, or false if it is a late one of an
// earlier connection. Numbers may skip up to 2^15.
func (p *Pool) Opens(peer int, h *Header) (epoch uint32, ok bool) {
	last, open := p.Epoch(peer)
	if open || peer < 0 || peer >= p.peers.Len() {
		return 0, false
	}
	d := int16(h.Epoch - uint16(last))
	return last + uint32(d), d > 0
}

// Apply takes what a peer said in a header, of a message (after Arrived) or a control
// message. A *ViolationError changes nothing. Headers of other connections are
// counted and ignored.
func (p *Pool) Apply(peer int, h *Header, now time.Duration) error {
	a := p.account(peer)
	if a == nil || h.Epoch != uint16(a.epoch) {
		p.stats.Stale++
		return nil
	}
	if h.Extended {
		if err := p.applyReturn(a, h, now); err != nil {
			p.stats.Violations++
			return err
		}
	}
	if h.Want != 0 {
		a.target = uint16(min(int(h.Want), p.cfg.Window))
		p.queue(a, now)
	}
	if h.Want != 0 || h.Extended {
		a.urgent = a.urgent || h.Answer
		p.pump(now)
	}
	// Whoever is still hungry hears with the grant; another one may not have heard the last.
	if h.Answer && !a.isIn(&p.hungry) {
		p.out.add(a)
	}
	return nil
}

// applyReturn takes credits back, and what was done about a recall.
func (p *Pool) applyReturn(a *account, h *Header, now time.Duration) error {
	back, acked := ahead(h.Returned, a.returned), ahead(h.Seen, a.acked)
	if back > a.held() {
		return &ViolationError{int(a.peer), "returned credits it never had", uint32(back), uint32(a.held())}
	}
	if open := ahead(a.recall, a.acked); acked > open {
		return &ViolationError{int(a.peer), "answered a recall that was never made", uint32(acked), uint32(open)}
	}
	if back > 0 {
		a.returned = h.Returned
		p.held -= back
		p.free += back
		p.stats.Returned += uint64(back)
	}
	if acked > 0 {
		a.acked = h.Seen
		if h.Want == 0 { // it gave back what it does not need: an old wish would have it granted again, and so on
			a.target = uint16(a.held())
			a.leave(queueing)
		}
	}
	if !a.recalling() {
		p.settle(a)
		a.answer = false
		if a.isIn(&p.recalled) {
			a.leave(holding)
			if a.held() > 0 { // all in use, or granted since: it has time to use it
				a.lastUse = now
				p.holders.add(a)
			}
		}
	}
	p.emptied(a, now)
	return nil
}

// Bar has a peer granted nothing, whatever it wishes, until it is let in again. What it holds it may use, and its questions are
// answered.
func (p *Pool) Bar(peer int, bar bool, now time.Duration) {
	a := p.account(peer)
	if a == nil || a.barred == bar {
		return
	}
	a.barred = bar
	p.queue(a, now)
	p.pump(now)
}

// settle ends the hope for credits asked back of a.
func (p *Pool) settle(a *account) {
	p.recalling -= int(a.counted)
	a.counted = 0
}

// Fill writes what this end has to tell as a receiver into a header for the peer. It reports whether NextControl would
// have named the peer: a message that is not sent after all is Unsaid then.
func (p *Pool) Fill(peer int, h *Header, now time.Duration) (due bool) {
	a := p.account(peer)
	if a == nil {
		return false
	}
	h.Epoch, h.Granted, h.Recall = uint16(a.epoch), a.granted, a.recall
	if due = a.isIn(&p.out); due {
		a.leave(sending)
		if a.answer {
			h.Extended, h.Answer = true, true
			a.answer = false
		}
	}
	return due
}

// Unsaid has NextControl name a peer again: the header for which Fill reported so was not sent.
func (p *Pool) Unsaid(peer int, h *Header) {
	if a := p.account(peer); a != nil && h.Epoch == uint16(a.epoch) {
		a.answer = a.answer || h.Answer && a.recalling()
		p.out.add(a)
	}
}

// NextControl names a peer to which a control message is due: make its header with
// Fill and Sender.FillControl. It names the same peer until Fill was called, for
// this or for a message that goes to the peer anyway.
func (p *Pool) NextControl() (peer int, ok bool) {
	if p.out.Len() == 0 {
		return 0, false
	}
	p.stats.Controls++
	return int(p.out.First().peer), true
}

// Tick does what is due by the passing of time.
func (p *Pool) Tick(now time.Duration) { p.starve(now) }

// Idle reports whether neither Tick nor NextControl has anything to do, at whatever time.
func (p *Pool) Idle() bool { return p.hungry.Len() == 0 && p.out.Len() == 0 }

// Due is when Tick has something to do, if ever.
func (p *Pool) Due() (at time.Duration, ok bool) {
	if p.hungry.Len() == 0 {
		return 0, false
	}
	if a := p.recalled.First(); a != nil {
		at, ok = a.recallAt+p.cfg.Retry, true
	}
	if a := p.holders.First(); a != nil && p.recalling < p.hungry.Len() {
		if t := a.lastUse + p.cfg.RecallAfter; !ok || t < at {
			at, ok = t, true
		}
	}
	return at, ok
}

// starve has peers give back what they do not use, when others have none.
func (p *Pool) starve(now time.Duration) {
	if p.hungry.Len() == 0 {
		return
	}
	for a := p.recalled.First(); a != nil && now-a.recallAt >= p.cfg.Retry; a = p.recalled.First() {
		p.stats.Retries++
		p.settle(a) // it may never answer: ask others too
		p.ask(a, now)
	}
	for p.recalling < p.hungry.Len() {
		a := p.holders.First()
		if a == nil || now-a.lastUse < p.cfg.RecallAfter {
			return
		}
		p.recallFrom(a, a.held(), now)
	}
}

func (p *Pool) recallFrom(a *account, n int, now time.Duration) {
	a.recall += uint32(n)
	a.counted = uint16(n)
	p.recalling += n
	p.stats.Recalls++
	p.ask(a, now)
}

func (p *Pool) ask(a *account, now time.Duration) {
	a.recallAt, a.answer = now, true
	p.recalled.add(a)
	p.out.add(a)
}

// Posted is how many buffers the device has.
func (p *Pool) Posted() int {
	return p.cfg.Credits + p.cfg.Replies - p.bare - p.replies.bare - p.extra
}

// Stats are the counters.
func (p *Pool) Stats() PoolStats { return p.stats }

// Config is the configuration with its defaults filled in.
func (p *Pool) Config() PoolConfig { return p.cfg }
