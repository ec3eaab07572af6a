package flow

import (
	"fmt"
	"time"
)

// Arrived says that a request of a peer took a buffer, on the connection with the given
// number. The buffer, or a spare in its place, must be posted again and Reposted called
// before a handler runs. With an error the same is true, but the message must not
// be handled: ErrStale, or a *ViolationError if the peer had no credit.
func (p *Pool) Arrived(peer int, epoch uint32, now time.Duration) error {
	a := p.account(peer)
	if a == nil || a.epoch != epoch || a.held() == 0 {
		return p.intruded(a, epoch, peer, "sent a request without a credit")
	}
	a.arrived++
	p.held--
	p.bare++
	p.stats.Arrivals++
	a.lastUse = now
	if a.isIn(&p.holders) {
		p.holders.add(a) // behind those that are silent for longer
		if p.hungry.Len() > p.recalling {
			p.share(a, now)
		}
	}
	p.emptied(a, now)
	return nil
}

// ReplyArrived is Arrived for a reply, whose buffer ReserveReply has reserved.
func (p *Pool) ReplyArrived(peer int, epoch uint32) error {
	a := p.account(peer)
	if a == nil || a.epoch != epoch || a.replies == 0 {
		return p.intruded(a, epoch, peer, "sent a reply to no request")
	}
	a.replies--
	p.replies.reserved--
	p.replies.bare++
	p.stats.Replies++
	return nil
}

func (p *Pool) intruded(a *account, epoch uint32, peer int, rule string) error {
	p.extra++
	if a == nil || a.epoch != epoch {
		p.stats.Stale++
		return ErrStale
	}
	p.stats.Violations++
	return &ViolationError{Peer: peer, Rule: rule, Got: 1}
}

// Reposted says that n buffers are posted again for those that messages took. Only now
// their credits can be granted anew. More than Arrived and ReplyArrived took is an error.
func (p *Pool) Reposted(n int, now time.Duration) error {
	if taken := p.extra + p.replies.bare + p.bare; n < 0 || n > taken {
		return fmt.Errorf("flow: %d buffers posted again, of %d that messages took: count each once", n, taken)
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
	p.pump(now)
	return nil
}

// BeforeHandlers is called before the handlers of arrived messages run. It returns a
// *NotPostedError while buffers that messages took are not posted again.
func (p *Pool) BeforeHandlers() error {
	if n := p.extra + p.replies.bare + p.bare; n > 0 {
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

// CancelReply gives up a reservation whose request was not sent. It reports false, and
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

// spare is how many credits may be granted: none in the place of a buffer that an
// intruder took.
func (p *Pool) spare() int { return p.free - p.extra }

// pump grants what can be granted: to the hungry first, who came first, in equal parts.
func (p *Pool) pump(now time.Duration) {
	for p.hungry.Len() > 0 && p.spare() > 0 {
		p.grant(p.hungry.First(), max(1, p.spare()/p.hungry.Len()), now)
	}
	reserve := p.cfg.Credits / reserveShare
	for p.hungry.Len() == 0 && p.topping.Len() > 0 && p.spare() > reserve {
		p.grant(p.topping.First(), max(1, (p.spare()-reserve)/p.topping.Len()), now)
	}
	if p.hungry.Len() > 0 {
		p.starve(now)
	}
}

// grant gives a up to n credits, no more than it wants, and the last place in the queue
// if it wants more.
func (p *Pool) grant(a *account, n int, now time.Duration) {
	n = min(n, int(a.target)-a.held())
	a.granted += uint32(n)
	p.free -= n
	p.held += n
	p.stats.Granted += uint64(n)
	a.lastUse = now
	if !a.recalling() {
		p.holders.add(a)
	}
	a.leave(queueing)
	p.queue(a, now)
	if a.urgent {
		a.urgent = false
		p.out.add(a)
	}
}

// queue puts a where it belongs: hungry without credits, topping with fewer than it
// wants, or nowhere, as when it is barred.
func (p *Pool) queue(a *account, now time.Duration) {
	l := &p.topping
	switch held := a.held(); {
	case held >= int(a.target) || a.barred:
		a.leave(queueing)
		return
	case held == 0:
		l = &p.hungry
	}
	if !a.isIn(l) {
		if a.links[queueing].In() == nil {
			a.since = now
		}
		l.add(a)
	}
}

// emptied moves a to where an account without credits belongs.
func (p *Pool) emptied(a *account, now time.Duration) {
	if a.held() > 0 {
		return
	}
	if a.isIn(&p.holders) {
		a.leave(holding)
	}
	if a.isIn(&p.topping) {
		p.hungry.add(a)
	}
}

// share has a, which is busy, give back what it holds beyond its part.
func (p *Pool) share(a *account, now time.Duration) {
	part := max(1, p.cfg.Credits/(p.holders.Len()+p.recalled.Len()+p.hungry.Len()))
	if n := a.held() - part; n > 0 {
		p.recallFrom(a, n, now)
	}
}
