package am

import (
	"time"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// peer is what an endpoint knows of one rank that it has sent to, or heard from.
type peer struct {
	rank int

	sending lockrank.Mutex            // Endpoint[rank]: messages go to the network in the order of their credit headers
	claim   claim                     // of a request that does not wait; under sending
	head    head                      // of the message that is being sent; under sending
	owed    bool                      // its header says what a control message would say otherwise; likewise
	text    [headSize + argsSize]byte // of a message without a payload; likewise
	copied  fabric.SendBuf            // text, for the network

	// Under the endpoint's lock.
	peerClaims
	credits  *credit.Sender // for messages to it
	granted  bool           // it has ever granted a credit
	asking   bool           // is in core.asking
	down     error          // why it is dead or cut off; nil: it is not
	silentAt time.Duration  // since when its questions have no answer; 0: there are none
	askedAt  time.Duration  // the last of them
	fullAt   time.Duration  // when the network's queue was found full last
	late     int            // replies of core.late to it
	large    *transfers     // large payloads to it and from it; nil: there were none
}

// known returns the record of a rank, a new one if need be. It panics if there is no such rank:
// ranks that the program names were checked, and the network names no other.
func (c *core) known(rank int) *peer {
	if at := c.peers.Find(rank); at != nil {
		if p := at.Load(); p != nil {
			return p
		}
	}
	at, p := c.peers.At(rank), &peer{rank: rank, credits: credit.NewSender(rank, c.flow)}
	p.sending.Init(lockrank.Endpoint, rank)
	p.copied = fabric.SendBuf{Data: p.text[:], ID: fabric.Copied}
	if !at.CompareAndSwap(nil, p) {
		p = at.Load()
	}
	return p
}

// openLocked begins the connection of credits with a peer, if it has not begun.
func (c *core) openLocked(p *peer, now time.Duration) error {
	if p.credits.Epoch() != 0 {
		return nil
	}
	if err := p.credits.Open(connection); err != nil {
		return err
	}
	return c.pool.Open(p.rank, connection, now)
}

// stock is what an acquirer takes from.
type stock struct{ c *core }

// takeBoth implements resources.
func (s stock) takeBoth(p *peer, call bool) bool {
	if p.credits.Balance() == 0 {
		return false
	}
	if call {
		if _, err := s.c.pool.ReserveReply(p.rank); err != nil {
			return false
		}
	}
	_, err := p.credits.Take(0)
	return err == nil
}

// takeReply implements resources.
func (s stock) takeReply(p *peer) bool {
	_, err := s.c.pool.ReserveReply(p.rank)
	return err == nil
}

// giveReply implements resources. The reservation of a dead peer has ended with it.
func (s stock) giveReply(p *peer) { s.c.pool.CancelReply(p.rank, connection) }

// takeCredit implements resources. The sender's account notes that a credit is wanted.
func (s stock) takeCredit(p *peer) bool {
	now := time.Duration(0)
	if p.credits.Balance() == 0 {
		now = s.c.net.Now()
	}
	if _, err := p.credits.Take(now); err == nil {
		return true
	}
	s.c.enlistLocked(p)
	if at, ok := p.credits.Due(); ok { // the leader, which asks for credits, may sleep
		s.c.armFrom(now, at)
	}
	return false
}

// giveCredit implements resources.
func (s stock) giveCredit(p *peer) { p.credits.Cancel(connection) }

// takeBuffer implements resources.
func (s stock) takeBuffer() (fabric.SendBuf, bool) {
	b, err := s.c.net.Reserve(0)
	if err != nil {
		s.c.arm(s.c.net.Now() + retryAfter) // no event tells that a buffer has come free
	}
	return b, err == nil
}

// giveBuffer implements resources.
func (s stock) giveBuffer(b fabric.SendBuf) { s.c.net.Release(b) }

// enlistLocked has the service look after a peer, if there is reason: questions to repeat, or a
// full queue.
func (c *core) enlistLocked(p *peer) {
	if !p.asking && (p.full || p.credits.ControlPending()) {
		p.asking = true
		c.asking = append(c.asking, p)
	}
}

// eachPeer calls f with each peer, while no message is being sent to it. A message that is sent
// later sees the settings of before.
func (c *core) eachPeer(f func(*peer)) {
	for _, at := range c.peers.All() {
		if p := at.Load(); p != nil {
			p.sending.Lock()
			f(p)
			p.sending.Unlock()
		}
	}
}

// death is one that the network of this endpoint has not found.
type death struct {
	rank  int
	cause error
	next  *death
}

// peerDown reports a death. It may be called with any lock held, and by the network.
func (c *core) peerDown(rank int, cause error) {
	if rank < 0 || rank >= c.peers.Len() || rank == c.cfg.Rank {
		return
	}
	d := &death{rank: rank, cause: cause}
	for d.next = c.deaths.Load(); !c.deaths.CompareAndSwap(d.next, d); d.next = c.deaths.Load() {
	}
	c.net.Wake()
}
