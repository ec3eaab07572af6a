package credit

import (
	"fmt"
	"time"

	"github.com/ibconduit/conduit/internal/queue"
	"github.com/ibconduit/conduit/internal/sparse"
)

// Pool is a receiver's account of its posted buffers: which peer may use how many. See
// the package comment. Its owner serialises all calls.
type Pool struct {
	cfg   PoolConfig
	peers sparse.Array[entry]

	recent *account // the one looked up last; may be nil

	// Credits: Credits = free + held + bare.
	free int // granted to no peer
	held int // with peers or on the way
	bare int // messages took their buffers, which are not posted again yet

	replies struct{ free, reserved, bare int } // likewise for replies
	extra   int                                // buffers taken by messages that had no right to one, not posted again yet

	lists

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
	Granted    uint64 `metric:"credits_granted_total Credits granted to other ranks."`
	Returned   uint64 `metric:"credits_returned_total{how=returned} Credits given back, or of connections that ended."`
	Reclaimed  uint64 `metric:"credits_returned_total{how=reclaimed}"`
	Recalls    uint64 `metric:"credit_recalls_total Recalls of credits from a rank, without repetitions."`
	Retries    uint64 `metric:"credit_recall_repeats_total Repetitions of recalls."`
	Controls   uint64 `metric:"credit_controls_total Control messages that grants and recalls needed."`
	Stale      uint64 `metric:"credit_stale_total Headers and messages of connections that are over."`
	Violations uint64 `metric:"credit_violations_total Headers and messages that broke the protocol of credits."`
}

// NewPool returns the account of a pool with all buffers posted.
func NewPool(cfg PoolConfig) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, peers: sparse.Make[entry](cfg.Peers), free: cfg.Credits}
	p.replies.free = cfg.Replies
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
		return fmt.Errorf("credit: open peer %d of %d: no such peer", peer, p.peers.Len())
	}
	e := p.peers.At(peer)
	if epoch == 0 || ahead(epoch, e.last) <= 0 {
		return fmt.Errorf("credit: open connection %d of peer %d after connection %d: numbers grow from 1",
			epoch, peer, e.last)
	}
	p.Close(peer, now)
	e.last = epoch
	a := &account{epoch: epoch, peer: int32(peer), granted: origin, returned: origin, recall: origin,
		acked: origin, lastUse: now}
	e.account = a
	a.target = uint16(p.cfg.Initial)
	if n := min(p.cfg.Initial, p.spare()-p.cfg.Credits/reserveShare); n > 0 && p.starved.Len() == 0 {
		p.grant(a, n, now)
	}
	return nil
}

// Close ends a peer's connection, also at its death, and returns how many credits and
// reserved reply buffers came back. A second Close returns none. Call it when the
// network delivers no more messages of the connection; Reposted is still owed for those
// that it has delivered.
func (p *Pool) Close(peer int, now time.Duration) (credits, replies int) {
	a := p.account(peer)
	if a == nil {
		return 0, 0
	}
	credits, replies = a.held(), int(a.replies)
	for _, link := range [...]*queue.Link[account]{&a.holding, &a.queued, &a.due} {
		link.Leave()
	}
	p.expectNone(a)
	p.held -= credits
	p.free += credits
	p.replies.reserved -= replies
	p.replies.free += replies
	p.stats.Reclaimed += uint64(credits)
	p.peers.At(peer).account, p.recent = nil, nil
	p.grantWaiting(now)
	return credits, replies
}

// Epoch is the number of a peer's connection or, without one, of its last; 0: never.
func (p *Pool) Epoch(peer int) (epoch uint32, open bool) {
	e := p.peers.Find(peer)
	if e == nil {
		return 0, false
	}
	return e.last, e.account != nil
}

// Bar stops or resumes grants to a peer, whatever it wants. The peer may use what it holds, and
// its questions are answered.
func (p *Pool) Bar(peer int, bar bool, now time.Duration) {
	a := p.account(peer)
	if a == nil || a.barred == bar {
		return
	}
	a.barred = bar
	p.enqueue(a, now)
	p.grantWaiting(now)
}

// Unsaid has NextControl name a peer again: the header for which Fill returned true was not sent.
func (p *Pool) Unsaid(peer int, h *Header) {
	if a := p.account(peer); a != nil && h.Epoch == uint16(a.epoch) {
		a.answer = a.answer || h.Answer && a.recalling()
		p.due.Add(&a.due, a)
	}
}

// NextControl names a peer to which a control message is due: make its header with
// Fill and Sender.FillControl. It names the same peer until Fill was called, for
// this or for a message that goes to the peer anyway.
func (p *Pool) NextControl() (peer int, ok bool) {
	if p.due.Len() == 0 {
		return 0, false
	}
	p.stats.Controls++
	return int(p.due.First().peer), true
}

// Idle reports whether neither Tick nor NextControl has anything to do, at whatever time.
func (p *Pool) Idle() bool { return p.starved.Len() == 0 && p.due.Len() == 0 }

// Due is when Tick has something to do, if ever.
func (p *Pool) Due() (at time.Duration, ok bool) {
	if p.starved.Len() == 0 {
		return 0, false
	}
	if a := p.recalled.First(); a != nil {
		at, ok = a.recallAt+p.cfg.Retry, true
	}
	if a := p.holders.First(); a != nil && p.recalling < p.starved.Len() {
		if t := a.lastUse + p.cfg.RecallAfter; !ok || t < at {
			at, ok = t, true
		}
	}
	return at, ok
}

// Posted is how many buffers the device has.
func (p *Pool) Posted() int {
	return p.cfg.Credits + p.cfg.Replies - p.missing()
}

// Stats are the counters.
func (p *Pool) Stats() PoolStats { return p.stats }
