package am

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// exhausted has no send buffer, for what is copied neither, until its user has slept a few times.
type exhausted struct {
	*ticking
	sleeps int
}

const exhaustedFor = 3

func (p *exhausted) lacks() error {
	if p.sleeps < exhaustedFor {
		return fmt.Errorf("exhausted: %w", fabric.ErrNoBuffer)
	}
	return nil
}

func (p *exhausted) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if err := p.lacks(); err != nil {
		return fabric.SendBuf{}, err
	}
	return p.ticking.Reserve(f)
}

func (p *exhausted) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if err := p.lacks(); b.ID == fabric.Copied && err != nil {
		return err
	}
	return p.ticking.Send(peer, b, n, w, cookie, f)
}

func (p *exhausted) Wait(context.Context) error { p.sleeps++; return nil }

func TestWhoWaitsForASendBufferSleeps(t *testing.T) {
	for name, payload := range map[string]Payload{"Short": {}, "Medium": Medium([]byte("bytes"))} {
		t.Run(name, func(t *testing.T) {
			var cut []error
			l, s, _ := target(t, &cut)
			p := &exhausted{ticking: &ticking{scripted: s, now: time.Hour}}
			l.port = p
			l.cfg.StallAfter = time.Minute
			hello(t, l, s, 1)
			if err := l.table.find(0).PostWith(t.Context(), l, 1, payload); err != nil {
				t.Fatal(err)
			}
			if n := l.Stats().NoBuffer; p.sleeps < exhaustedFor || n == 0 || len(s.sent) != 1 {
				t.Errorf("it slept %d times, met no buffer %d times, and sent %d messages", p.sleeps, n, len(s.sent))
			}
		})
	}
}

// single has one send buffer for all.
type single struct {
	*scripted
	out int
}

func (p *single) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if p.out > 0 {
		return fabric.SendBuf{}, fmt.Errorf("single: %w", fabric.ErrNoBuffer)
	}
	p.out++
	return p.scripted.Reserve(f)
}
func (p *single) Release(fabric.SendBuf) { p.out-- }

// A rank that answers all the time would send nothing else.
func TestAReplyLeavesABufferToARequestThatWaits(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	p := &single{scripted: s}
	l.port = p
	hello(t, l, s, 1)
	w := l.waiter()
	l.join(&l.waiting, w, atLane)
	answer := &outgoing{kind: reply, cat: medium, token: 1, payload: []byte("bytes")}
	if err := l.tryReply(l.known(1), answer, nil); err != ErrNoBuffer || p.out != 0 {
		t.Errorf("a reply behind a request that waits: %v, with %d buffers out", err, p.out)
	}
	l.quit(w, atLane)
	if err := l.tryReply(l.known(1), answer, nil); err != nil || p.out != 1 {
		t.Errorf("a reply when nobody waits: %v, with %d buffers out", err, p.out)
	}
}

// The first in the queue may wait for long: what it waits for may be with messages to ranks that live.
func TestWhoWaitsForABufferIsToldOfTheDeathBehindOthers(t *testing.T) {
	for kind, q := range map[int]func(l *Endpoint) *list{
		atReplies: func(l *Endpoint) *list { return &l.replyless },
		atLane:    func(l *Endpoint) *list { return &l.waiting },
	} {
		var cut []error
		l, _, _ := target(t, &cut)
		first, second := l.waiter(), l.waiter()
		l.begin(first, "call", l.table.find(0), 2)
		l.begin(second, "call", l.table.find(0), 1)
		l.join(q(l), first, kind)
		l.join(q(l), second, kind)
		l.down(l.known(1), nil, true)
		if !second.told() {
			t.Errorf("who waits in queue %d to call a rank that died is not told", kind)
		}
	}
}

// hooked tells when receive buffers are about to be posted again, with the lane's lock held.
type hooked struct {
	*scripted
	before func()
}

func (p *hooked) Post(slots ...int32) error {
	p.before()
	return p.scripted.Post(slots...)
}

// The death tells it before the buffer of the broken reply is posted again: it may look in between, in vain.
func TestTheBufferOfABrokenReplyIsTold(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	hello(t, l, s, 1)
	call := l.newWaiter()
	if err := l.attempt(l.known(1), &outgoing{kind: request, wants: true, w: call}, nil, call); err != nil {
		t.Fatal(err)
	}
	next := l.newWaiter()
	l.join(&l.replyless, next, atReplies)
	l.port = &hooked{s, func() {
		if next.hear(); l.freeReplies(2) != 0 {
			t.Fatal("test: it finds a buffer")
		}
	}}
	if err := l.pool.Open(2, connection, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the others
		if _, err := l.pool.ReserveReply(2); err != nil {
			t.Fatal(err)
		}
	}
	s.arrive(t, 1, message(l, head{kind: reply, token: call.token + 1}, nil))
	l.pollAll(t, s)
	if n := l.freeReplies(2); len(cut) != 1 || n != 1 || !next.told() {
		t.Errorf("%d peers were cut off, %d reply buffers are free, who waits for one was told: %v", len(cut), n, next.told())
	}
}
