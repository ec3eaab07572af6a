package am

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// stuffed has no room for a message until it is told otherwise.
type stuffed struct {
	*scripted
	full bool
	now  time.Duration
}

func (p *stuffed) Now() time.Duration { return p.now }

func (p *stuffed) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if p.full {
		return fabric.ErrAgain
	}
	return p.scripted.Send(peer, b, n, w, cookie, f)
}

// callInFront introduces rank 1, and puts a call to it in front of those who wait for its credits and for reply buffers.
func callInFront(t *testing.T, l *Endpoint, s *scripted) (*peer, *waiter) {
	t.Helper()
	hello(t, l, s, 1)
	p, call := l.known(1), l.newWaiter()
	call.calls = true
	p.waiting.add(call, atPeer)
	l.replyless.add(call, atReplies)
	return p, call
}

// The call in front of it waits for a reply buffer, which may depend on the post.
func TestAPostThatPassesLooksAgainWhenThereIsRoomInTheQueue(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	port := &stuffed{scripted: s, full: true, now: time.Hour}
	l.port = port
	p, _ := callInFront(t, l, s)
	post := l.newWaiter()
	err := l.attempt(p, &outgoing{kind: request}, nil, post)
	if err != ErrQueueFull {
		t.Fatalf("a post that meets a full queue: %v", err)
	}
	l.queue(p, post, err)
	port.full, port.now = false, port.now+fullFor
	if _, err := l.Test(); err != nil {
		t.Fatal(err)
	}
	if !post.told() {
		t.Error("nobody told the post that there is room")
	}
}

// The call in front of it wants no credit as long as it has no reply buffer. The grant that the last credit's message asked for may
// be lost, or that credit have been asked back.
func TestAPostBehindACallThatWaitsForAReplyBufferAsksForCredits(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	port := &stuffed{scripted: s, now: time.Hour}
	l.port = port
	p, _ := callInFront(t, l, s)
	for p.purse.Balance() > 0 {
		if err := l.attempt(p, &outgoing{kind: request}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.attempt(p, &outgoing{kind: request}, nil, nil); err != ErrNoCredit {
		t.Fatalf("a post without a credit: %v", err)
	}
	before := len(s.notes)
	port.now += time.Second
	if _, err := l.Test(); err != nil {
		t.Fatal(err)
	}
	if len(s.notes) == before {
		t.Error("nobody asks for a credit")
	}
}

// The buffer is reserved before the call has a credit, and comes back if it never has one.
func TestWhoIsFirstForBothKeepsTheReplyBufferUntilThereIsACredit(t *testing.T) {
	for _, sent := range []bool{true, false} {
		var cut []error
		l, s, _ := target(t, &cut)
		p, call := callInFront(t, l, s)
		o := &outgoing{kind: request, wants: true, w: call}
		var epochs []uint32
		for p.purse.Balance() > 0 {
			e, err := p.purse.Take(0)
			if err != nil {
				t.Fatal(err)
			}
			epochs = append(epochs, e)
		}
		if err := l.attempt(p, o, nil, call); err != ErrNoCredit {
			t.Fatalf("a call without a credit: %v", err)
		}
		if l.queue(p, call, ErrNoCredit) || call.waits(atReplies) || p.bypassable() {
			t.Fatalf("with the buffer it waits for a credit and nothing else, and nobody passes it")
		}
		if n := l.freeReplies(1); n != 3 {
			t.Fatalf("%d reply buffers are free, want 3 of 4", n)
		}
		if sent {
			p.purse.Cancel(epochs[0])
			if err := l.attempt(p, o, nil, call); err != nil {
				t.Fatal(err)
			}
		}
		l.unqueue(p, call)
		if n, want := l.freeReplies(1), 4-l.calls.awaits; n != want {
			t.Errorf("sent: %v, %d reply buffers are free, want %d", sent, n, want)
		}
	}
}

// Who was in front of it gives up between its look and its return to the queues: it is first for both then, and nobody would tell it.
func TestWhoBecomesFirstForBothMeanwhileTakesTheReplyBuffer(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	hello(t, l, s, 1)
	p := l.known(1)
	front, call, next := l.newWaiter(), l.newWaiter(), l.newWaiter()
	call.calls = true
	p.waiting.add(front, atPeer)
	p.waiting.add(call, atPeer)
	l.replyless.add(call, atReplies)
	l.replyless.add(next, atReplies)
	for p.purse.Balance() > 0 {
		if _, err := p.purse.Take(0); err != nil {
			t.Fatal(err)
		}
	}
	err := l.attempt(p, &outgoing{kind: request, wants: true, w: call}, nil, call)
	if err != ErrNoCredit {
		t.Fatalf("a call without a credit: %v", err)
	}
	l.unqueue(p, front)
	l.queue(p, call, err)
	if n := l.freeReplies(1); n != 3 || call.waits(atReplies) || !next.told() {
		t.Errorf("%d of 4 reply buffers are free, the call waits for one: %v, the next who does was told: %v", n, call.waits(atReplies), next.told())
	}
	l.unqueue(p, call)
	if n := l.freeReplies(1); n != 4 {
		t.Errorf("%d of 4 reply buffers came back", n)
	}
}

// Room in the network's queue comes and goes as credits do, and posts pass a call that is back in the queue for reply buffers.
func TestWhoFindsTheQueueFullKeepsItsReplyBuffer(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	port := &stuffed{scripted: s, full: true, now: time.Hour}
	l.port = port
	p, call := callInFront(t, l, s)
	next := l.newWaiter()
	l.replyless.add(next, atReplies)
	o := &outgoing{kind: request, wants: true, w: call}
	for i := range 2 {
		if err := l.attempt(p, o, nil, call); err != ErrQueueFull {
			t.Fatalf("a call that meets a full queue: %v", err)
		}
		l.queue(p, call, ErrQueueFull)
		if n := l.freeReplies(1); n != 3 || p.bypassable() {
			t.Fatalf("%d reply buffers are free, want 3 of 4; others pass: %v", n, p.bypassable())
		}
		if told := next.hear(); told != (i == 0) { // by whom it tells at every look they keep one another awake
			t.Errorf("look %d: the next who waits for a reply buffer was told: %v", i, told)
		}
	}
	port.full = false
	if err := l.attempt(p, o, nil, call); err != nil {
		t.Fatalf("there is room: %v", err)
	}
	l.unqueue(p, call)
	if n := l.freeReplies(1); n != 3 {
		t.Errorf("%d reply buffers are free, want 3 of 4", n)
	}
}

// Everybody whom a prepared message may wait for may wait for its buffer, perhaps through others.
func TestAPreparedPostPassesWhereSomebodyWaitsForABuffer(t *testing.T) {
	for _, c := range []struct {
		name    string
		replies bool // the first who waits at the peer does so for a reply buffer
		lane    bool // somebody waits for a send buffer
		others  int  // send buffers that are not prepared
		want    error
	}{
		{"for a reply buffer, others for a send buffer", true, true, 0, nil},
		{"for a reply buffer, others for a send buffer that will come", true, true, 1, ErrNoCredit},
		{"for a reply buffer", true, false, 0, ErrNoCredit},
		{"for a credit, which is there, others for a send buffer", false, true, 0, ErrNoCredit},
	} {
		var cut []error
		l, s, _ := target(t, &cut)
		hello(t, l, s, 1)
		p := l.known(1)
		first := l.newWaiter()
		p.waiting.add(first, atPeer)
		if c.replies {
			l.replyless.add(first, atReplies)
		}
		for range p.purse.Balance() { // posts that may take all credits
			w := l.newWaiter()
			p.waiting.add(w, atPeer)
			p.posts.add(w, atPosts)
			if c.lane {
				l.waiting.add(w, atLane)
			}
		}
		b, err := s.Reserve(0)
		if err != nil {
			t.Fatal(err)
		}
		l.prepared.Store(int32(l.cfg.Sends - c.others))
		if err := l.attempt(p, &outgoing{kind: request, cat: medium, buf: &b, keeps: true}, nil, nil); err != c.want {
			t.Errorf("a prepared post behind one that waits %s: %v, want %v", c.name, err, c.want)
		}
	}
}

// freeReplies is how many reply buffers a peer might reserve.
func (l *Endpoint) freeReplies(peer int) (n int) {
	for ; ; n++ {
		if _, err := l.pool.ReserveReply(peer); err != nil {
			break
		}
	}
	for range n {
		l.pool.CancelReply(peer, connection)
	}
	return n
}
