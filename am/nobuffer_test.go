package am

import (
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Buffers come when the endpoint has slept a few times, for copied messages too.
func TestWhoWaitsForASendBufferSleeps(t *testing.T) {
	for name, payload := range map[string]Payload{"Short": {}, "small Medium": Medium([]byte("bytes")), "Medium": Medium(make([]byte, argsSize+1))} {
		t.Run(name, func(t *testing.T) {
			l, s := target(t)
			const exhaustedFor = 3
			sleeps := 0
			lacks := func() error {
				if sleeps < exhaustedFor {
					return fmt.Errorf("exhausted: %w", fabric.ErrNoBuffer)
				}
				return nil
			}
			s.now, s.wait = s.ticks(), func() { sleeps++ }
			s.reserve = func(fabric.SendFlag) error { return lacks() }
			s.sending = func(b fabric.SendBuf, _ int) error {
				if b.ID == fabric.Copied {
					return lacks()
				}
				return nil
			}
			l.core.cfg.StallAfter = time.Minute
			hello(t, l, s, 1)
			if err := l.core.table.find(0).PostWith(t.Context(), l, 1, payload); err != nil {
				t.Fatal(err)
			}
			if n := l.Stats().NoBuffer; sleeps < exhaustedFor || n == 0 || len(s.sent) != 1 {
				t.Errorf("it slept %d times, met no buffer %d times, and sent %d messages", sleeps, n, len(s.sent))
			}
		})
	}
}

func TestASmallMediumTakesNoSendBuffer(t *testing.T) {
	for _, c := range []struct {
		bytes, args int
		small       bool
	}{{0, MaxArgs, true}, {1, MaxArgs, false}, {8, 2, true}, {112, 2, true}, {113, 2, false}, {argsSize, 0, true}, {argsSize + 1, 0, false}} {
		l, s := target(t)
		s.reserve = func(fabric.SendFlag) error { return fmt.Errorf("unbuffered: %w", fabric.ErrNoBuffer) }
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

// A rank that replies all the time would send nothing else.
func TestAReplyLeavesABufferToRequests(t *testing.T) {
	l, s := target(t)
	s.reserve = func(fabric.SendFlag) error { // there is one for all
		if s.out.Load() > 0 {
			return fmt.Errorf("single: %w", fabric.ErrNoBuffer)
		}
		return nil
	}
	hello(t, l, s, 1)
	w := l.progress.waiter()
	w.claim.p = l.core.known(1)
	l.core.acquirer.buffers.Add(&w.claim.waiting, &w.claim)
	answer := &outgoing{kind: reply, cat: medium, token: 1, payload: make([]byte, argsSize+1)}
	if err := l.replier.tryReply(l.core.known(1), answer, nil); err != ErrNoBuffer || s.out.Load() != 0 {
		t.Errorf("a reply behind a request that waits: %v, with %d buffers out", err, s.out.Load())
	}
	w.claim.waiting.Leave()
	if err := l.replier.tryReply(l.core.known(1), answer, nil); err != nil || s.out.Load() != 1 {
		t.Errorf("a reply while no request waits: %v, with %d buffers out", err, s.out.Load())
	}
}

// A broken reply takes its call's buffer; posted again, it goes to the next call that waits for
// one.
func TestTheBufferOfABrokenReplyIsServed(t *testing.T) {
	l, s := greeted(t)
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
	if len(s.cut) != 1 || next.claim.next != acquired || !next.pending() {
		t.Errorf("%d peers were cut off; the call that waits has a reply buffer: %v, was woken: %v", len(s.cut), next.claim.next == acquired, next.pending())
	}
}

// The first in the queue may wait for long: what it waits for may be with messages to ranks that
// live.
func TestARequestBehindOthersLearnsOfTheDeath(t *testing.T) {
	for name, q := range map[string]func(l *Endpoint) *fifo{
		"reply buffers": func(l *Endpoint) *fifo { return &l.core.acquirer.replies },
		"send buffers":  func(l *Endpoint) *fifo { return &l.core.acquirer.buffers },
	} {
		l, _ := target(t)
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
