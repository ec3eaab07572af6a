package credit

import (
	"fmt"
	"time"
)

// account returns nil for a peer without a connection. The calls for one message look at the
// account several times.
func (p *Pool) account(peer int) *account {
	if a := p.recent; a != nil && int(a.peer) == peer {
		return a
	}
	return p.find(peer)
}

func (p *Pool) find(peer int) *account {
	e := p.peers.Find(peer)
	if e == nil || e.account == nil {
		return nil
	}
	p.recent = e.account
	return e.account
}

// Arrived counts a request of a peer that took a buffer, on the connection with the given
// number. The buffer, or a spare in its place, must be posted again and Reposted called
// before a handler runs. With an error the same is true, but the message must not
// be handled: ErrStale, or a *ViolationError if the peer had no credit.
func (p *Pool) Arrived(peer int, epoch uint32, now time.Duration) error {
	a := p.account(peer)
	if a == nil || a.epoch != epoch || a.held() == 0 {
		return p.unexpected(peer, epoch, "sent a request without a credit")
	}
	a.arrived++
	p.held--
	p.bare++
	p.stats.Arrivals++
	a.lastUse = now
	if a.holding.In() == &p.holders {
		p.holders.Add(&a.holding, a) // behind those that are silent for longer
		if p.starved.Len() > p.recalling {
			p.recallExcess(a, now)
		}
	}
	if a.held() == 0 {
		p.emptied(a)
	}
	return nil
}

// ReplyArrived is Arrived for a reply with a buffer of ReserveReply.
func (p *Pool) ReplyArrived(peer int, epoch uint32) error {
	a := p.account(peer)
	if a == nil || a.epoch != epoch || a.replies == 0 {
		return p.unexpected(peer, epoch, "sent a reply to no request")
	}
	a.replies--
	p.replies.reserved--
	p.replies.bare++
	p.stats.Replies++
	return nil
}

// unexpected counts a message that had no right to the buffer that it took.
func (p *Pool) unexpected(peer int, epoch uint32, rule string) error {
	p.extra++
	if a := p.account(peer); a == nil || a.epoch != epoch {
		p.stats.Stale++
		return ErrStale
	}
	p.stats.Violations++
	return &ViolationError{Peer: peer, Rule: rule, Got: 1}
}

// Apply takes what a peer wrote in a header, of a message (after Arrived) or a control
// message. A *ViolationError changes nothing. Headers of other connections are
// counted and ignored.
func (p *Pool) Apply(peer int, h *Header, now time.Duration) error {
	a := p.account(peer)
	if a == nil || h.Epoch != uint16(a.epoch) {
		p.stats.Stale++
		return nil
	}
	if !h.Asks() {
		return nil // as most messages have it
	}
	return p.apply(a, h, now)
}

func (p *Pool) apply(a *account, h *Header, now time.Duration) error {
	if h.Extended {
		if err := p.applyReturn(a, h, now); err != nil {
			p.stats.Violations++
			return err
		}
	}
	if h.Want != 0 {
		a.target = uint16(min(int(h.Want), p.cfg.Window))
		p.enqueue(a, now)
	}
	if h.Want != 0 || h.Extended {
		a.urgent = a.urgent || h.Answer
		p.grantWaiting(now)
	}
	// A starved peer is answered by the grant; any other may have missed the last one.
	if h.Answer && a.queued.In() != &p.starved {
		p.due.Add(&a.due, a)
	}
	return nil
}

// applyReturn takes credits back, and the peer's answer to a recall.
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
		if h.Want == 0 { // it gave back what it does not need: an old want would have it granted again, and so on
			a.target = uint16(a.held())
			a.queued.Leave()
		}
	}
	if !a.recalling() {
		p.expectNone(a)
		a.answer = false
		if a.holding.In() == &p.recalled {
			a.lastUse = now // all in use, or granted since: it has time to use it
			p.holders.Add(&a.holding, a)
		}
	}
	if a.held() == 0 {
		p.emptied(a)
	}
	return nil
}

// Fill writes this end's part as a receiver into a header for the peer. It reports whether
// NextControl would have named the peer: Unsaid takes that back if the message is not sent.
func (p *Pool) Fill(peer int, h *Header, now time.Duration) (due bool) {
	a := p.account(peer)
	if a == nil {
		return false
	}
	h.Epoch, h.Granted, h.Recall = uint16(a.epoch), a.granted, a.recall
	if due = a.due.In() != nil; due {
		a.due.Leave()
		if a.answer {
			h.Extended, h.Answer = true, true
			a.answer = false
		}
	}
	return due
}

// missing is how many buffers messages took that are not posted again.
func (p *Pool) missing() int { return p.extra + p.replies.bare + p.bare }

// Reposted counts n buffers that are posted again for those that messages took. Only now
// their credits can be granted anew. More than Arrived and ReplyArrived took is an error.
func (p *Pool) Reposted(n int, now time.Duration) error {
	if n < 0 || n > p.missing() {
		return fmt.Errorf("credit: %d buffers posted again, of %d that messages took: count each once", n, p.missing())
	}
	k := min(n, p.extra)
	p.extra -= k
	n -= k
	k = min(n, p.replies.bare)
	p.replies.bare -= k
	p.replies.free += k
	n -= k
	p.bare -= n
	p.free += n
	if p.starved.Len()+p.wanting.Len() != 0 {
		p.grantWaiting(now)
	}
	return nil
}

// BeforeHandlers is called before the handlers of arrived messages run. It returns a
// *NotPostedError while buffers that messages took are not posted again.
func (p *Pool) BeforeHandlers() error {
	if n := p.missing(); n > 0 {
		return &NotPostedError{n}
	}
	return nil
}

// ReserveReply reserves a buffer for a peer's reply, before the request is sent, and
// returns the connection's number, which CancelReply wants. It fails with ErrNoReply
// or ErrNotOpen.
func (p *Pool) ReserveReply(peer int) (epoch uint32, err error) {
	a := p.account(peer)
	if a == nil {
		return 0, ErrNotOpen
	}
	if p.replies.free == 0 {
		return 0, ErrNoReply
	}
	p.replies.free--
	p.replies.reserved++
	a.replies++
	return a.epoch, nil
}

// CancelReply gives up the reservation of a request that was not sent. It reports false, and
// does nothing, if the connection is over: the reservation ended with it. A request
// that was sent keeps its reservation until the reply arrives, wanted or not.
func (p *Pool) CancelReply(peer int, epoch uint32) bool {
	a := p.account(peer)
	if a == nil || a.epoch != epoch || a.replies == 0 {
		return false
	}
	a.replies--
	p.replies.reserved--
	p.replies.free++
	return true
}
