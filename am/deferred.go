package am

import (
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Defer puts the reply off until after the handler. d bounds that; 0 is Config.DeferFor. Then the
// caller learns that there is none, and at once if the handler panics. It is nil where the call
// was replied to, or deferred, before.
func (c *Call) Defer(d time.Duration) *DeferredReply {
	if c.state != fresh {
		return nil
	}
	c.state = deferred
	r := c.x.replier
	if d <= 0 {
		d = r.cfg.DeferFor
	}
	t := &DeferredReply{r: r, h: c.h, rank: c.rank, token: c.head.token, at: max(1, r.net.Now()+min(d, longest))}
	c.token = t
	if t.token == 0 {
		return t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		t.state.Store(replyEnded)
		r.stats.nowhere.Add(1)
		return t
	}
	if _, open := r.pool.Epoch(t.rank); !open && t.rank != r.cfg.Rank {
		t.state.Store(replyDead)
		r.stats.nowhere.Add(1)
		return t
	}
	t.index = len(r.owed)
	r.owed = append(r.owed, t)
	if r.owedDue == 0 || t.at < r.owedDue {
		r.owedDue = t.at
		r.arm(t.at)
	}
	return t
}

// Reply answers with arguments only. A second reply is ErrAnswered, a late one ErrExpired, one to a
// dead rank a *fabric.PeerDownError, one after the endpoint's end ErrClosed. After a *SizeError, or
// an error of a Long's range, another reply may be tried.
func (t *DeferredReply) Reply(args ...uint64) error { return t.answer(&Payload{}, args) }

// ReplyWith answers with a payload, which may be reused at once.
func (t *DeferredReply) ReplyWith(p Payload, args ...uint64) error { return t.answer(&p, args) }

func (t *DeferredReply) answer(p *Payload, args []uint64) error {
	if err := t.r.checkParts(t.rank, p, args); err != nil {
		return err
	}
	if err := t.take(replyAnswered); err != nil {
		return err
	}
	if t.token == 0 {
		t.r.stats.unwanted.Add(1)
		return nil
	}
	return t.r.reply(t.rank, &outgoing{kind: reply, cat: p.cat, token: t.token, payload: p.bytes, off: p.off}, args)
}

// take ends the token in a way, or says how it ended.
func (t *DeferredReply) take(as int32) error {
	if !t.state.CompareAndSwap(replyOpen, as) {
		switch t.state.Load() {
		case replyExpired:
			return ErrExpired
		case replyDead:
			return &fabric.PeerDownError{Rank: t.rank, Op: "deferred reply", Cause: fabric.ErrPeerDown}
		case replyEnded:
			return ErrClosed
		}
		return ErrAnswered
	}
	if t.token == 0 {
		return nil
	}
	t.r.mu.Lock()
	t.r.disownLocked(t)
	t.r.mu.Unlock()
	return nil
}

// expire ends the calls with deferred replies that did not come in time.
func (r *replier) expire(now time.Duration) {
	for {
		r.mu.Lock()
		t := r.overdueLocked(now)
		r.mu.Unlock()
		if t == nil {
			return
		}
		r.stats.expired.Add(1)
		_ = r.refuse(t.rank, t.token, NoAnswer, "its time is over") // what went wrong is counted
	}
}

// overdueLocked takes one.
func (r *replier) overdueLocked(now time.Duration) *DeferredReply {
	if r.owedDue == 0 || now < r.owedDue {
		return nil
	}
	r.owedDue = 0
	for _, t := range r.owed {
		if t.at <= now && t.state.CompareAndSwap(replyOpen, replyExpired) {
			r.disownLocked(t)
			r.owedDue = now // look for others
			return t
		}
	}
	for _, t := range r.owed {
		r.owedDue = sooner(r.owedDue, t.at)
	}
	return nil
}
