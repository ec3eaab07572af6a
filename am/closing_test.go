package am

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// closable is a scripted port that knows whether it was closed, and stops a Send on request.
type closable struct {
	*scripted
	closed  atomic.Bool
	at      chan struct{} // told when a Send has begun; nil: none is stopped
	proceed chan struct{} // lets it go on
}

func (p *closable) Close() error { p.closed.Store(true); return nil }

func (p *closable) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if p.at != nil {
		p.at <- struct{}{}
		<-p.proceed
	}
	if p.closed.Load() {
		panic("a message is written into the memory of a port that is closed")
	}
	return p.scripted.Send(peer, b, n, w, cookie, f)
}

// closableOver replaces the port of an endpoint that nobody uses yet.
func closableOver(l *Endpoint, p *scripted) *closable {
	c := &closable{scripted: p}
	l.core.net = c
	return c
}

// A request that arrived, whose handler the goroutine that polled has not begun, may refer to the
// segment.
func TestCloseWaitsForHandlersNotBegun(t *testing.T) {
	l, s := target(t)
	p := closableOver(l, s)
	l.core.cfg.CloseAfter = 20 * time.Millisecond
	hello(t, l, s, 1)
	s.arrive(t, 1, message(l, head{kind: request}, nil))
	if !l.progress.tryLead() {
		t.Fatal("somebody leads")
	}
	b := l.inbox.batch()
	l.progress.round(b, 0, 0)
	l.inbox.offer(b)
	l.progress.leave()
	if err := l.Close(); !errors.Is(err, ErrBusy) || p.closed.Load() {
		t.Fatalf("Close with a handler to come: %v, the port is closed: %v", err, p.closed.Load())
	}
	l.inbox.run(b)
	if err := l.Close(); err != nil || s.ran != 1 || !p.closed.Load() {
		t.Fatalf("%v; %d handlers ran", err, s.ran)
	}
}

// Over verbs the send buffers are unmapped by the port's Close.
func TestCloseWaitsForAMessageOnItsWayIntoThePort(t *testing.T) {
	for _, kind := range []string{"post", "reply"} {
		t.Run(kind, func(t *testing.T) {
			l, s := target(t)
			p := closableOver(l, s)
			hello(t, l, s, 1)
			var send func() error
			if kind == "post" {
				send = func() error { return l.core.table.find(0).Post(context.Background(), l, 1) }
			} else {
				send = func() error { return l.replier.refuse(1, 7, NoAnswer, "late") }
			}
			p.at, p.proceed = make(chan struct{}), make(chan struct{})
			sent, closed := make(chan error), make(chan error)
			go func() { sent <- send() }()
			<-p.at
			go func() { closed <- l.Close() }()
			for !l.core.closing.Load() && !lockrank.OneLock { // with one lock Close cannot even begin
				time.Sleep(time.Millisecond)
			}
			select {
			case <-closed:
				t.Error("Close did not wait")
			case <-time.After(20 * time.Millisecond):
			}
			close(p.proceed)
			if err := <-sent; err != nil {
				t.Error(err)
			}
			if !t.Failed() {
				<-closed
			}
		})
	}
}

// What a rank sends itself it copies into its segment, which the program may unmap behind Close.
func TestCloseWaitsForWhatARankCopiesToItself(t *testing.T) {
	const size = 32 << 20
	payload := bytes.Repeat([]byte{7}, size)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would wait for the copy, and Close for it
	for _, kind := range []string{"a deferred reply", "a large payload"} {
		t.Run(kind, func(t *testing.T) {
			var owed *DeferredReply
			ended := make(chan byte, 1)
			segment := make([]byte, size)
			table := NewTable()
			call := table.Handle("call", func(c *Call) { owed = c.Defer(0) })
			large := table.HandleLarge("take", Receiver{
				Announced: func(a *Announcement) { _ = a.Grant(0) },
				Ended:     func(*Announcement, error) { ended <- segment[size-1] },
			})
			l, err := Open(scriptedNet{p: &scripted{}}, 0, Config{Size: 1, Table: table, Segment: segment, AttendAfter: -1})
			if err != nil {
				t.Fatal(err)
			}
			var send func() error
			if kind == "a large payload" {
				send = func() error { return large.Send(context.Background(), l, 0, payload) }
			} else {
				if _, err := call.Start(t.Context(), l, 0, Payload{}); err != nil {
					t.Fatal(err)
				}
				send = func() error { return owed.ReplyWith(Long(0, payload)) }
			}
			sent := make(chan error, 1)
			go func() { sent <- send() }()
			for copies := false; !copies && len(sent) == 0; {
				l.core.mu.Lock()
				copies = l.core.copying > 0
				l.core.mu.Unlock()
			}
			_ = l.Close() // it counts what was in flight
			if segment[size-1] != 7 {
				t.Error("Close has returned before the copy")
			}
			if err := <-sent; err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if kind == "a large payload" && <-ended != 7 {
				t.Error("the payload has ended before the copy")
			}
		})
	}
}

// The packet of a post may get lost, and is sent again as long as the connection is there.
func TestQuiesceWaitsForMessagesThatNeedNoBuffer(t *testing.T) {
	l, s := target(t)
	s.unconfirmed = 3
	if err := l.Quiesce(context.Background()); err != nil || s.unconfirmed != 0 {
		t.Errorf("%v, with %d messages that may not have arrived", err, s.unconfirmed)
	}
	s.unconfirmed, s.lost = 2, true
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	var rest *InFlightError
	if err := l.Quiesce(ctx); !errors.As(err, &rest) || rest.Messages != 2 {
		t.Errorf("with 2 messages that do not arrive: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// What is prepared does not count as on its way; its end must not hide another message.
func TestQuiesceWaitsWhileAPreparedMessageEnds(t *testing.T) {
	for name, end := range map[string]func(*Prepared) error{
		"Cancel": func(p *Prepared) error { p.Cancel(); return nil },
		"Commit": func(p *Prepared) error { return p.Commit(context.Background()) },
		"NoWait": func(p *Prepared) error { return p.Commit(NoWait) },
	} {
		t.Run(name, func(t *testing.T) {
			if lockrank.OneLock {
				t.Skip("with one lock Quiesce cannot look in between")
			}
			l, s := greeted(t)
			s.counts = true
			s.out.Store(1)                                                               // a message that does not arrive
			s.sending = func(b fabric.SendBuf, _ int) error { s.Release(b); return nil } // it arrives at once
			b, err := l.core.table.find(0).Prepare(NoWait, l, 1, 8)
			if err != nil {
				t.Fatal(err)
			}
			quiet := make(chan error, 1)
			s.released = func() {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				begun := make(chan struct{})
				go func() { defer cancel(); close(begun); quiet <- l.Quiesce(ctx) }()
				<-begun
				time.Sleep(100 * time.Millisecond) // it may have to wait for what is held here
			}
			if err := end(b); err != nil {
				t.Fatal(err)
			}
			var rest *InFlightError
			if err := <-quiet; !errors.As(err, &rest) || rest.Messages == 0 {
				t.Errorf("with a message that does not arrive: %v", err)
			}
		})
	}
}

// While it is tried again it is in no list.
func TestQuiesceWaitsForAReplyThatIsBeingSent(t *testing.T) {
	l, s := target(t)
	l.core.table.find(0).f = func(c *Call) { _ = c.ReplyWith(Medium(make([]byte, argsSize+1))) }
	asked := func() {}
	s.reserve = func(f fabric.SendFlag) error { // there are none for replies
		if f&fabric.Urgent == 0 {
			return nil
		}
		asked()
		return fabric.ErrNoBuffer
	}
	hello(t, l, s, 1)
	s.arrive(t, 1, message(l, head{kind: request, wants: true, token: 1}, nil))
	l.pollAll(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	quiet := make(chan error, 1)
	before := l.progress.rounds()
	go func() { quiet <- l.Quiesce(ctx) }()
	for l.progress.rounds() < before+5 || !l.progress.tryLead() {
		time.Sleep(time.Millisecond)
	}
	var early []error
	asked = func() {
		select {
		case err := <-quiet:
			early = append(early, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	l.replier.sendLate()
	asked = func() {}
	l.progress.leave()
	if len(early) > 0 {
		t.Fatalf("with a reply that has no buffer yet: %v", early)
	}
	cancel()
	var rest *InFlightError
	if err := <-quiet; !errors.As(err, &rest) || rest.Unsent != 1 {
		t.Error(err)
	}
}

// A mutex whose waiters have waited for long is handed to the next one (sync.Mutex, starvation
// mode): whoever unlocks it stops right there. So Close looks at the endpoint as soon as Prepare
// has taken a buffer.
func TestABufferIsTheProgramsBeforeCloseCanLook(t *testing.T) {
	l, s := target(t)
	p := closableOver(l, s)
	l.core.cfg.CloseAfter = 20 * time.Millisecond
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	queued := func() { time.Sleep(3 * time.Millisecond) } // beyond the millisecond that counts as long
	prepared, closed := make(chan *Prepared, 1), make(chan error, 1)
	l.core.mu.Lock()
	go func() {
		b, err := l.core.table.find(0).Prepare(NoWait, l, 1, 8)
		if err != nil {
			t.Error(err)
		}
		prepared <- b
	}()
	queued()
	go func() { closed <- l.Close() }()
	queued()
	l.core.mu.Unlock()
	l.core.mu.Lock() // who is woken finds it taken, and wants it handed over
	queued()
	l.core.mu.Unlock()
	if err := <-closed; !errors.Is(err, ErrBusy) || p.closed.Load() {
		t.Errorf("Close while the program has a buffer: %v, the port is closed: %v", err, p.closed.Load())
	}
	(<-prepared).Cancel()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestACommitAfterCloseBeganIsRefused(t *testing.T) {
	l, s := target(t)
	l.core.cfg.CloseAfter = 20 * time.Millisecond
	hello(t, l, s, 1) // so that there is a credit
	h := l.core.table.find(0)
	ctx := t.Context()
	for name, commit := range map[string]func(*Prepared) error{
		"NoWait":     func(p *Prepared) error { return p.Commit(NoWait) },
		"Commit":     func(p *Prepared) error { return p.Commit(ctx) },
		"CommitCall": func(p *Prepared) error { _, err := p.CommitCall(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			p, err := h.Prepare(ctx, l, 1, 8)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Cancel()
			before := len(s.sent)
			l.core.shut(ErrClosed)
			if err := commit(p); !errors.Is(err, ErrClosed) || len(s.sent) != before {
				t.Errorf("%v, and %d messages were sent", err, len(s.sent)-before)
			}
			l.core.mu.Lock()
			l.core.end = nil // as it was, for the next
			l.core.closing.Store(false)
			l.core.mu.Unlock()
		})
	}
}

// Close has ended the call, and somebody polls once more.
func TestWhoRepliesWhileTheLaneIsClosedIsNotCutOff(t *testing.T) {
	l, s := greeted(t)
	p, err := l.core.table.find(0).Start(t.Context(), l, 1, Payload{})
	if err != nil {
		t.Fatal(err)
	}
	answer := message(l, head{kind: reply, token: p.w.token}, nil)
	l.core.shut(ErrClosed)
	s.arrive(t, 1, answer)
	if _, err := l.Test(); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	st := l.Stats()
	if err := st.Check(); err != nil || len(s.cut) != 0 || st.Broken != 0 || st.Ended != 1 || st.Ignored != 1 {
		t.Errorf("cut off: %v; %d calls ended, %d messages were broken, %d ignored; %v", s.cut, st.Ended, st.Broken, st.Ignored, err)
	}
}

func TestTestSaysThatTheLaneIsClosed(t *testing.T) {
	l, _ := target(t)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Test(); !errors.Is(err, ErrClosed) {
		t.Errorf("a loop that polls until there is an error would go on for ever: %v", err)
	}
}

func TestAWaitAfterAStallErrorWaitsAsLongAgain(t *testing.T) {
	l, s := target(t)
	s.now = s.ticks()
	l.core.cfg.StallAfter, l.core.cfg.PingAfter = time.Second, -1
	hello(t, l, s, 1)
	p, err := l.core.table.find(0).Start(t.Context(), l, 1, Payload{})
	if err != nil {
		t.Fatal(err)
	}
	var polls [2]uint64
	for i := range polls {
		before := l.progress.rounds()
		var stall *StallError
		if _, err := p.Wait(t.Context()); !errors.As(err, &stall) {
			t.Fatal(err)
		}
		polls[i] = l.progress.rounds() - before
	}
	if polls[1] < polls[0]/2 {
		t.Errorf("the first Wait polled %d times before it gave up, the second %d", polls[0], polls[1])
	}
}

// The watchdog wakes it, and it cannot look for itself.
func TestACallStallsWhileAnotherPolls(t *testing.T) {
	l, s := target(t)
	var now atomic.Int64
	now.Store(int64(time.Hour))
	s.now = func() time.Duration { return time.Duration(now.Load()) }
	l.core.cfg.StallAfter, l.core.cfg.PingAfter = time.Second, -1
	hello(t, l, s, 1)
	p, err := l.core.table.find(0).Start(t.Context(), l, 1, Payload{})
	if err != nil {
		t.Fatal(err)
	}
	if !l.progress.tryLead() {
		t.Fatal("somebody polls")
	}
	defer l.progress.leave()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	end := make(chan error)
	go func() { _, err := p.Wait(ctx); end <- err }()
	for l.progress.waiting.Load() == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	l.progress.watch(time.Duration(now.Add(int64(time.Second))))
	var stall *StallError
	if err := <-end; !errors.As(err, &stall) {
		t.Errorf("a reply that does not come: %v", err)
	}
}
