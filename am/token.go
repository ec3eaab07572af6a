package am

import (
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// DeferredReply is the right and the duty to reply to a call whose handler deferred it. Any goroutine may
// use it, once.
type DeferredReply struct {
	l     *Endpoint
	h     *Handler
	rank  int
	token uint64 // 0: nobody wants it
	at    time.Duration
	index int // in Endpoint.owed
	state atomic.Int32
}

const (
	tokenOpen int32 = iota
	tokenAnswered
	tokenExpired
	tokenDead
	tokenEnded
)

// Defer puts the reply off until after the handler. d bounds that; 0 is Config.DeferFor.
// After it the caller is told that there is none, and at once if the handler panics. It is nil where the call was replied to, or deferred, before.
func (c *Call) Defer(d time.Duration) *DeferredReply {
	if c.state != fresh {
		return nil
	}
	c.state = deferred
	l := c.l
	if d <= 0 {
		d = l.cfg.DeferFor
	}
	t := &DeferredReply{l: l, h: c.h, rank: c.rank, token: c.head.token, at: max(1, l.port.Now()+min(d, longest))}
	c.token = t
	if t.token == 0 {
		return t
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		t.state.Store(tokenEnded)
		l.stats.nowhere.Add(1)
		return t
	}
	if _, open := l.pool.Epoch(t.rank); !open && t.rank != l.cfg.Rank {
		t.state.Store(tokenDead)
		l.stats.nowhere.Add(1)
		return t
	}
	t.index = len(l.owed)
	l.owed = append(l.owed, t)
	if l.owedDue == 0 || t.at < l.owedDue {
		l.owedDue = t.at
		l.arm(t.at)
	}
	return t
}

// From is the rank that waits.
func (t *DeferredReply) From() int { return t.rank }

// Reply answers with arguments only. A second reply is ErrAnswered, a late one ErrExpired, one
// to a dead rank a *fabric.PeerDownError, one after the lane's end ErrClosed. After a *SizeError, or an error of a Long's range,
// another reply may be tried.
func (t *DeferredReply) Reply(args ...uint64) error { return t.answer(Payload{}, args) }

// ReplyWith answers with a payload, which may be reused at once.
func (t *DeferredReply) ReplyWith(p Payload, args ...uint64) error { return t.answer(p, args) }

func (t *DeferredReply) answer(p Payload, args []uint64) error {
	if err := t.l.checkParts(t.rank, p, args); err != nil {
		return err
	}
	if err := t.take(tokenAnswered); err != nil {
		return err
	}
	if t.token == 0 {
		t.l.stats.unwanted.Add(1)
		return nil
	}
	return t.l.reply(t.rank, &outgoing{kind: reply, cat: p.cat, token: t.token, payload: p.bytes, off: p.off}, args)
}

// take ends the token in a way, or says how it ended.
func (t *DeferredReply) take(as int32) error {
	if !t.state.CompareAndSwap(tokenOpen, as) {
		switch t.state.Load() {
		case tokenExpired:
			return ErrExpired
		case tokenDead:
			return &fabric.PeerDownError{Rank: t.rank, Op: "deferred reply", Cause: fabric.ErrPeerDown}
		case tokenEnded:
			return ErrClosed
		}
		return ErrAnswered
	}
	if t.token == 0 {
		return nil
	}
	t.l.mu.Lock()
	t.l.disown(t)
	t.l.mu.Unlock()
	return nil
}

// disown takes a token out of those that are owed, with the lane's lock.
func (l *Endpoint) disown(t *DeferredReply) {
	last := len(l.owed) - 1
	if last < 0 || t.index > last || l.owed[t.index] != t {
		return
	}
	l.owed[t.index] = l.owed[last]
	l.owed[t.index].index = t.index
	l.owed[last] = nil
	l.owed = l.owed[:last]
}

// dropOwed ends the tokens of a rank, or all of them, with the lane's lock.
func (l *Endpoint) dropOwed(rank int) {
	as := tokenDead
	if rank < 0 {
		as = tokenEnded
	}
	for i := len(l.owed) - 1; i >= 0; i-- {
		t := l.owed[i]
		if (rank < 0 || t.rank == rank) && t.state.CompareAndSwap(tokenOpen, as) {
			l.stats.nowhere.Add(1)
			l.disown(t)
		}
	}
}

// expire tells those whose deferred reply did not come in time.
func (l *Endpoint) expire(now time.Duration) {
	for {
		l.mu.Lock()
		t := l.overdueToken(now)
		l.mu.Unlock()
		if t == nil {
			return
		}
		l.stats.expired.Add(1)
		_ = l.refuse(t.rank, t.token, NoAnswer, "its time is over") // what went wrong is counted
	}
}

// overdueToken takes one, with the lane's lock.
func (l *Endpoint) overdueToken(now time.Duration) *DeferredReply {
	if l.owedDue == 0 || now < l.owedDue {
		return nil
	}
	l.owedDue = 0
	for _, t := range l.owed {
		if t.at <= now && t.state.CompareAndSwap(tokenOpen, tokenExpired) {
			l.disown(t)
			l.owedDue = now // look for others
			return t
		}
	}
	for _, t := range l.owed {
		l.owedDue = sooner(l.owedDue, t.at)
	}
	return nil
}
