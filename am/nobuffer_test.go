package am

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
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
	for name, payload := range map[string]Payload{"Short": {}, "small Medium": Medium([]byte("bytes")), "Medium": Medium(make([]byte, argsSize+1))} {
		t.Run(name, func(t *testing.T) {
			var cut []error
			l, s, _ := target(t, &cut)
			p := &exhausted{ticking: &ticking{scripted: s, now: time.Hour}}
			l.core.net = p
			l.core.cfg.StallAfter = time.Minute
			hello(t, l, s, 1)
			if err := l.core.table.find(0).PostWith(t.Context(), l, 1, payload); err != nil {
				t.Fatal(err)
			}
			if n := l.Stats().NoBuffer; p.sleeps < exhaustedFor || n == 0 || len(s.sent) != 1 {
				t.Errorf("it slept %d times, met no buffer %d times, and sent %d messages", p.sleeps, n, len(s.sent))
			}
		})
	}
}

// unbuffered has no send buffer at all.
type unbuffered struct{ *scripted }

func (p unbuffered) Reserve(fabric.SendFlag) (fabric.SendBuf, error) {
	return fabric.SendBuf{}, fmt.Errorf("unbuffered: %w", fabric.ErrNoBuffer)
}

func TestASmallMediumTakesNoSendBuffer(t *testing.T) {
	for _, c := range []struct {
		bytes, args int
		small       bool
	}{{0, MaxArgs, true}, {1, MaxArgs, false}, {8, 2, true}, {112, 2, true}, {113, 2, false}, {argsSize, 0, true}, {argsSize + 1, 0, false}} {
		var cut []error
		l, s, _ := target(t, &cut)
		l.core.net = unbuffered{s}
		hello(t, l, s, 1)
		credits := l.core.known(1).credits.Balance()
		post := l.core.table.find(0).PostWith(NoWait, l, 1, Medium(make([]byte, c.bytes)), make([]uint64, c.args)...)
		answer := l.replier.tryReply(l.core.known(1), &outgoing{kind: reply, cat: medium, token: 1, payload: make([]byte, c.bytes)}, make([]uint64, c.args))
		if (post == nil) != c.small || (answer == nil) != c.small || !c.small && (post != ErrNoBuffer || answer != ErrNoBuffer) {
			t.Errorf("%d bytes, %d arguments: %v, %v", c.bytes, c.args, post, answer)
		}
		if left := l.core.known(1).credits.Balance(); !c.small && (left != credits || len(s.sent) != 0) {
			t.Errorf("%d bytes, %d arguments: %d credits of %d are left and %d messages were sent without a buffer", c.bytes, c.args, left, credits, len(s.sent))
		}
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

// A rank that replies all the time would send nothing else.
func TestAReplyLeavesABufferToRequests(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	p := &single{scripted: s}
	l.core.net = p
	hello(t, l, s, 1)
	w := l.progress.waiter()
	w.claim.p = l.core.known(1)
	l.core.acquirer.buffers.Add(&w.claim.waiting, &w.claim)
	answer := &outgoing{kind: reply, cat: medium, token: 1, payload: make([]byte, argsSize+1)}
	if err := l.replier.tryReply(l.core.known(1), answer, nil); err != ErrNoBuffer || p.out != 0 {
		t.Errorf("a reply behind a request that waits: %v, with %d buffers out", err, p.out)
	}
	w.claim.waiting.Leave()
	if err := l.replier.tryReply(l.core.known(1), answer, nil); err != nil || p.out != 1 {
		t.Errorf("a reply while no request waits: %v, with %d buffers out", err, p.out)
	}
}

// A broken reply takes its call's buffer; posted again, it goes to the next call that waits for
// one.
func TestTheBufferOfABrokenReplyIsServed(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	hello(t, l, s, 1)
	call := l.core.newWaiter()
	if err := l.emitter.trySend(l.core.known(1), &outgoing{kind: request, wants: true, w: call}, nil, call); err != nil {
		t.Fatal(err)
	}
	hello(t, l, s, 2)
	for range l.core.cfg.Replies - 1 { // the others
		if _, err := l.core.pool.ReserveReply(2); err != nil {
			t.Fatal(err)
		}
	}
	next := l.core.newWaiter()
	l.core.mu.Lock()
	next.claim = claim{p: l.core.known(2), needs: needsCall, w: next}
	if l.core.acquirer.acquire(&next.claim) {
		t.Error("a reply buffer is free")
	}
	l.core.mu.Unlock()
	s.arrive(t, 1, message(l, head{kind: reply, token: call.token + 1}, nil))
	l.pollAll(t, s)
	if len(cut) != 1 || next.claim.next != acquired || !next.pending() {
		t.Errorf("%d peers were cut off; the call that waits has a reply buffer: %v, was woken: %v", len(cut), next.claim.next == acquired, next.pending())
	}
}

// The first in the queue may wait for long: what it waits for may be with messages to ranks that
// live.
func TestARequestBehindOthersLearnsOfTheDeath(t *testing.T) {
	for name, q := range map[string]func(l *Endpoint) *fifo{
		"reply buffers": func(l *Endpoint) *fifo { return &l.core.acquirer.replies },
		"send buffers":  func(l *Endpoint) *fifo { return &l.core.acquirer.buffers },
	} {
		var cut []error
		l, _, _ := target(t, &cut)
		var w [2]*waiter
		for i, rank := range []int{2, 1} {
			w[i] = l.progress.waiter()
			w[i].claim.p, w[i].claim.next = l.core.known(rank), stageReply
			q(l).Add(&w[i].claim.waiting, &w[i].claim)
		}
		l.core.down(l.core.known(1), nil, true)
		if !w[1].pending() {
			t.Errorf("a request that waits for %s is not woken by the death of its peer", name)
		}
	}
}
