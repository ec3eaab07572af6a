package am

import (
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// DeferredReply is the right and the duty to reply to a call whose handler deferred it. Any
// goroutine may use it, once.
type DeferredReply struct {
	r     *replier
	h     *Handler
	rank  int
	token uint64 // 0: no reply is wanted
	at    time.Duration
	index int // in core.owed
	state atomic.Int32
}

const (
	replyOpen int32 = iota
	replyAnswered
	replyExpired
	replyDead
	replyEnded
)

// Defer puts the reply off until after the handler. d bounds that; 0 is Config.DeferFor. Then the
// caller is told that there is none, and at once if the handler panics. It is nil where the call
// was replied to, or deferred, before.
func (c *Call) Defer(d time.Duration) *DeferredReply {
	if c.state != fresh {
		return nil
	}
	c.state = deferred
	r := &c.x.replier
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

// From is the rank that waits.
func (t *DeferredReply) From() int { return t.rank }

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

// disownLocked takes a deferred reply out of those that are owed.
func (c *core) disownLocked(t *DeferredReply) {
	last := len(c.owed) - 1
	if last < 0 || t.index > last || c.owed[t.index] != t {
		return
	}
	c.owed[t.index] = c.owed[last]
	c.owed[t.index].index = t.index
	c.owed[last] = nil
	c.owed = c.owed[:last]
}

// dropOwedLocked ends the deferred replies to a rank, or all of them.
func (c *core) dropOwedLocked(rank int) {
	as := replyDead
	if rank < 0 {
		as = replyEnded
	}
	for i := len(c.owed) - 1; i >= 0; i-- {
		t := c.owed[i]
		if (rank < 0 || t.rank == rank) && t.state.CompareAndSwap(replyOpen, as) {
			c.stats.nowhere.Add(1)
			c.disownLocked(t)
		}
	}
}

// expire tells the callers whose deferred replies did not come in time.
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
