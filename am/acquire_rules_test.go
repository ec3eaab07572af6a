package am

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Requests to a peer that is slow to connect keep none to others.
func TestARequestToAConnectedPeerNeedsNoShare(t *testing.T) {
	l, s := greeted(t)
	hello(t, l, s, 2)
	l.core.mu.Lock()
	l.core.acquirer.connect(l.core.known(1))
	l.core.acquirer.shares = 1
	l.core.mu.Unlock()
	post := func() *outgoing { return &outgoing{kind: request} }
	if err := l.emitter.trySend(l.core.known(2), post(), nil, nil); err != nil {
		t.Fatal("first to 2:", err)
	}
	w := l.core.newWaiter()
	if err := l.emitter.trySend(l.core.known(2), post(), nil, w); err != ErrNotConnected {
		t.Fatal("second to 2:", err)
	}
	if err := l.emitter.trySend(l.core.known(1), post(), nil, nil); err != nil {
		t.Error("to 1, which is connected and has credits:", err)
	}
	if err := l.emitter.trySend(l.core.known(1), &outgoing{kind: ping}, nil, nil); passing(err) {
		t.Error("ping to 1 would disconnect:", err)
	}
}

func TestAClaimReturnsItsOwnShareOnly(t *testing.T) {
	f := &pools{replies: 9, buffers: 9, credits: [2]int{9, 9}}
	a := acquirer{from: f, places: 9, shares: 2, prepares: 1}
	A, B := &peer{}, &peer{rank: 1}
	a.connect(A)
	a.disconnect(A)
	a.connect(B)
	w := &waiter{}
	w.claim = claim{p: A, needs: needsSend, w: w}
	if !a.acquire(&w.claim) {
		t.Fatal("something is missing")
	}
	a.connect(A) // sent; the waiter is recycled for a request to B
	c := &w.claim
	c.p, c.next, c.needs = B, 0, needsSend
	if !a.acquire(c) {
		t.Fatal("something is missing")
	}
	a.disconnect(B)
	o := &waiter{}
	o.claim = claim{p: B, needs: needsSend, w: o}
	if !a.acquire(&o.claim) {
		t.Fatal("something is missing")
	}
	a.abandon(c)
	if a.shared != 1 {
		t.Errorf("shared %d, want 1: one message without a connection", a.shared)
	}
}

// A claim that queues at once, behind others, may have a share of the request before it noted.
func TestAClaimThatQueuedForgetsItsOldShare(t *testing.T) {
	f := &pools{replies: 9, buffers: 9, credits: [2]int{9, 9}}
	a := acquirer{from: f, places: 9, shares: 1, prepares: 1}
	A, B, C := &peer{}, &peer{rank: 1}, &peer{}
	a.connect(A)
	a.disconnect(A)
	claimOf := func(p *peer) *claim {
		w := &waiter{}
		w.claim = claim{p: p, needs: needsSend, w: w}
		return &w.claim
	}
	c := claimOf(A)
	if !a.acquire(c) {
		t.Fatal("something is missing")
	}
	a.connect(A) // sent; the waiter is recycled for a request to B
	if !a.acquire(claimOf(C)) || a.acquire(claimOf(C)) {
		t.Fatal("not one request to C waits")
	}
	c.p, c.next, c.needs = B, 0, needsSend
	if a.acquire(c) {
		t.Fatal("it does not wait behind the other")
	}
	a.connect(B)
	if c.next != acquired {
		t.Fatal("something is missing")
	}
	a.disconnect(B)
	a.connect(C)
	if o := claimOf(B); !a.acquire(o) {
		t.Fatal("something is missing")
	}
	a.abandon(c)
	if a.shared != 1 {
		t.Errorf("shared %d, want 1: one message without a connection", a.shared)
	}
}

// woken counts what ends a sleep in the network.
type woken struct {
	*scripted
	calls int
}

func (p *woken) After(time.Duration) { p.calls++ }
func (p *woken) Wake()               { p.calls++ }

func TestAServedClaimWakesTheLeaderToAsk(t *testing.T) {
	l, s := target(t)
	r := &woken{scripted: s}
	l.core.net = r
	hello(t, l, s, 1)
	for range l.core.cfg.Replies {
		if _, err := l.core.pool.ReserveReply(1); err != nil {
			t.Fatal(err)
		}
	}
	x, c := l.core.newWaiter(), l.core.newWaiter()
	call := func(w *waiter) *outgoing { return &outgoing{kind: request, wants: true, w: w} }
	if err := l.emitter.trySend(l.core.known(1), call(x), nil, x); err != ErrNoReply {
		t.Fatal(err)
	}
	if err := l.emitter.trySend(l.core.known(3), call(c), nil, c); err != ErrNoReply { // rank 3 has granted nothing yet
		t.Fatal(err)
	}
	l.pollAll(t, s)
	if _, err := l.Test(); err != nil {
		t.Fatal(err)
	}
	r.calls, s.notes = 0, nil
	// The leader sleeps now; another goroutine gives up, and a reply buffer comes back.
	l.core.mu.Lock()
	l.core.pool.CancelReply(1, connection)
	l.core.acquirer.abandon(&x.claim)
	l.core.mu.Unlock()
	if c.claim.next != stageCredit || r.calls == 0 {
		t.Errorf("the claim lacks stage %d; the network was woken %d times to ask for its credit", c.claim.next, r.calls)
	}
}

// A prepared message that the network refuses keeps its right to be prepared: no other takes it
// meanwhile.
func TestARefusedCommitKeepsItsPrepareSlot(t *testing.T) {
	l, s := greeted(t)
	l.core.acquirer.prepares = 1
	h := l.core.table.find(0)
	p, err := h.Prepare(NoWait, l, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Cancel()
	var second error
	l.core.net = &refusingSend{scripted: s, during: func() { _, second = h.Prepare(NoWait, l, 1, 1) }}
	if err := p.Commit(NoWait); err != ErrQueueFull || second != ErrNoBuffer {
		t.Errorf("the commit: %v; another Prepare meanwhile: %v", err, second)
	}
}

// refusingSend has no room, and lets others act meanwhile.
type refusingSend struct {
	*scripted
	during func()
}

func (p *refusingSend) Send(int, fabric.SendBuf, int, *fabric.Write, uint64, fabric.SendFlag) error {
	p.during()
	return fabric.ErrAgain
}
