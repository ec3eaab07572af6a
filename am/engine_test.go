package am_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
)

func TestHandlersRunWhileTheProgramComputes(t *testing.T) {
	table := am.NewTable()
	var ran atomic.Uint64
	h := table.Handle("count", func(*am.Call) { ran.Add(1) })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
	for range 3 {
		before := ran.Load()
		if err := h.Post(bounded(t), l[0], 1); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the handler runs though rank 1 does not poll", func() bool { return ran.Load() == before+1 })
	}
}

func TestWithoutAnAttendantOnlyPollsRunHandlers(t *testing.T) {
	table := am.NewTable()
	var ran atomic.Uint64
	h := table.Handle("count", func(*am.Call) { ran.Add(1) })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, AttendAfter: -1})
	ctx, cancel := context.WithCancelCause(bounded(t))
	served := make(chan error, 1)
	go func() { served <- l[1].Serve(ctx) }()
	if err := h.Post(ctx, l[0], 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Serve runs the handler", func() bool { return ran.Load() == 1 })
	enough := errors.New("enough")
	cancel(enough)
	if err := <-served; !errors.Is(err, enough) {
		t.Fatalf("Serve ended with %v", err)
	}
	if err := h.Post(bounded(t), l[0], 1); err != nil {
		t.Fatal(err)
	}
	if ran.Load() != 1 {
		t.Fatal("a handler ran by itself")
	}
	eventually(t, "Test runs the handler", func() bool {
		some, err := l[1].Test()
		if err != nil {
			t.Fatal(err)
		}
		return some && ran.Load() == 2
	})
}

// A handler takes its time; calls that others wait for end meanwhile.
func TestASlowHandlerHoldsUpNobody(t *testing.T) {
	table := am.NewTable()
	release := make(chan struct{})
	slow := table.Handle("slow", func(c *am.Call) { <-release; _ = c.Reply() })
	fast := table.Handle("fast", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	for _, attend := range []time.Duration{0, -1} {
		l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, AttendAfter: attend, StallAfter: 20 * time.Second})
		ctx := bounded(t)
		var wg sync.WaitGroup
		serve, stop := context.WithCancel(ctx)
		for range 3 {
			wg.Go(func() { _ = l[1].Serve(serve) })
		}
		p, err := slow.Start(ctx, l[0], 1, am.Payload{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(50) {
			if r, err := fast.Call(ctx, l[0], 1, i); err != nil || r.Arg(0) != i {
				t.Fatal(r.Arg(0), err)
			}
		}
		if _, done, _ := p.Test(); done {
			t.Fatal("the slow call has ended")
		}
		release <- struct{}{}
		if _, err := p.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		stop()
		wg.Wait()
	}
}

// The wait ends first; the call goes on, and others use waiters of their own meanwhile.
func TestACallOutlivesItsWait(t *testing.T) {
	table := am.NewTable()
	release := make(chan struct{})
	slow := table.Handle("slow", func(c *am.Call) { <-release; _ = c.Reply(c.Arg(0)) })
	fast := table.Handle("fast", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
	ctx := bounded(t)
	serve, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { _ = l[1].Serve(serve) })
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, p, err := slow.StartWait(short, l[0], 1, 7)
	if p == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(p, err)
	}
	for i := range uint64(20) {
		if r, p, err := fast.StartWait(ctx, l[0], 1, i); err != nil || p != nil || r.Arg(0) != i {
			t.Fatal(r.Arg(0), p, err)
		}
	}
	release <- struct{}{}
	if r, err := p.Wait(ctx); err != nil || r.Arg(0) != 7 {
		t.Fatal(r.Arg(0), err)
	}
	if _, p, err := slow.StartWait(short, l[0], 1); p != nil || err == nil { // it was not even started
		t.Fatal(p, err)
	}
	stop()
	wg.Wait()
}

// The Fencer learns of a call that outlives its wait when the program learns of its end.
func TestAWaitThatEndsFirstTellsTheFencerLater(t *testing.T) {
	table := am.NewTable()
	release := make(chan struct{})
	short, cancel := context.WithCancel(bounded(t))
	h := table.Handle("slow", func(c *am.Call) { cancel(); <-release; _ = c.Reply() })
	f := &fences{}
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, Fencer: f})
	replies := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, s := range f.told {
			if s == "reply" {
				n++
			}
		}
		return n
	}
	_, p, err := h.StartWait(short, through{l[0]}, 1)
	if p == nil || err == nil || replies() != 0 {
		t.Fatal(p, err, replies())
	}
	close(release)
	if _, err := p.Wait(bounded(t)); err != nil || replies() != 1 {
		t.Fatal(err, replies())
	}
	if _, p, err := h.StartWait(bounded(t), through{l[0]}, 1); p != nil || err != nil || replies() != 2 {
		t.Fatal(p, err, replies())
	}
}

func TestAHandlerThatCommunicatesGetsAnError(t *testing.T) {
	if checked {
		t.Skip("the debug build panics: see TestDebugBuildPanics")
	}
	table := am.NewTable()
	var l []*am.Endpoint
	var got []error
	var h *am.Handler
	h = table.Handle("bad", func(c *am.Call) {
		_, err := h.Call(context.Background(), c.Endpoint(), 1-c.Endpoint().Rank())
		_, err2 := h.Prepare(context.Background(), c.Endpoint(), 0, 1)
		_, err3 := c.Endpoint().Test()
		got = []error{err, err2, err3, h.Post(context.Background(), c.Endpoint(), 0), h.Post(am.NoWait, c.Endpoint(), 0),
			c.Endpoint().Serve(context.Background()), c.Endpoint().Quiesce(context.Background()), c.Endpoint().EndRequests(context.Background()),
			c.Endpoint().Drain(context.Background()), c.Endpoint().Close()}
		_ = c.Reply(1)
	})
	l = endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
	for to := range 2 {
		got = nil
		if r, err := h.Call(bounded(t), l[0], to); err != nil || r.Arg(0) != 1 {
			t.Fatal(r.Arg(0), err)
		}
		for i, err := range got {
			if !errors.Is(err, am.ErrInHandler) {
				t.Errorf("operation %d in a handler of rank %d: %v", i, to, err)
			}
		}
		if len(got) == 0 {
			t.Fatal("no handler ran")
		}
	}
}

func TestTheWatchdogNamesWhatIsWaitedFor(t *testing.T) {
	table := am.NewTable()
	hold := table.Handle("hold", func(c *am.Call) { c.Defer(time.Hour) })
	cfg := am.Config{Table: table, StallAfter: 50 * time.Millisecond, Credits: 2, Replies: 2, Sends: 4}
	l := endpoints(t, amtest.NewMemory(3, 64), 3, cfg)
	ctx := bounded(t)
	var e *am.StallError
	stalls := uint64(0)
	call := func(rank int) (err error) {
		for {
			_, err = hold.Call(ctx, l[0], rank)
			stalls++
			if !errors.As(err, &e) || e.Resource != "a credit" { // which a busy machine may be late to bring
				return err
			}
		}
	}
	err := call(1)
	if !errors.As(err, &e) || e.Resource != "the reply" || e.Rank != 1 || e.For < cfg.StallAfter || !strings.Contains(e.Op, "hold") {
		t.Fatalf("a reply that does not come: %v", err)
	}
	if err = call(1); !errors.As(err, &e) || e.Resource != "the reply" {
		t.Fatal(err)
	}
	if err = call(2); !errors.As(err, &e) || e.Resource != "a buffer for the reply" || !strings.Contains(e.Holder, "peer 1 holds") {
		t.Fatalf("no reply buffer: %v", err)
	}
	var lent []*am.Prepared
	for range 2 {
		p, err := hold.Prepare(ctx, l[0], 1, 10)
		if err != nil {
			t.Fatal(err)
		}
		lent = append(lent, p)
	}
	if _, err := hold.Prepare(am.NoWait, l[0], 1, 10); err != am.ErrNoBuffer {
		t.Fatalf("no send buffer: %v", err)
	}
	if _, err = hold.Prepare(ctx, l[0], 1, 10); !errors.As(err, &e) || e.Resource != "a send buffer" || !strings.Contains(e.Holder, "2 prepared") {
		t.Fatalf("no send buffer: %v", err)
	}
	stalls++
	for _, p := range lent {
		p.Cancel()
	}
	if s := l[0].Stats(); s.Stalls != stalls {
		t.Fatalf("%d stalls of %d were counted", s.Stalls, stalls)
	}
}

func TestTheWatchdogExplainsMissingCredits(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("h", func(*am.Call) {})
	m := amtest.NewMemory(2, 64)
	m.NoteLoss = 1 // the question never arrives
	l := endpoints(t, m, 2, am.Config{Table: table, StallAfter: 50 * time.Millisecond})
	if err := h.Post(am.NoWait, l[0], 1); err != am.ErrNotConnected {
		t.Fatal(err)
	}
	var e *am.StallError
	if err := h.Post(bounded(t), l[0], 1); !errors.As(err, &e) || e.Resource != "a credit" || !strings.Contains(e.Holder, "0 granted") || !strings.Contains(e.Holder, "asked") {
		t.Fatal(err)
	}
}

func TestASilentRankIsTakenForDead(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("h", func(*am.Call) {})
	m := amtest.NewMemory(2, 64)
	m.NoteLoss = 1
	told := make(chan int, 1)
	l := endpoints(t, m, 2, am.Config{Table: table, SilentAfter: 50 * time.Millisecond, OnClosed: func(rank int, _ error) { told <- rank }})
	if err := h.Post(bounded(t), l[0], 1); !errors.Is(err, fabric.ErrPeerDown) || !strings.Contains(err.Error(), "answers no question") {
		t.Fatal(err)
	}
	if rank := <-told; rank != 1 {
		t.Fatal(rank)
	}
}

func TestCloseEndsWhatIsPendingAndSaysWhat(t *testing.T) {
	table := am.NewTable()
	hold := table.Handle("hold", func(c *am.Call) { c.Defer(time.Hour) })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, Replies: 2, CloseAfter: 20 * time.Millisecond})
	ctx := bounded(t)
	errs := make(chan error, 4)
	for range 4 { // two wait for replies, two for reply buffers
		go func() { _, err := hold.Call(ctx, l[0], 1); errs <- err }()
	}
	eventually(t, "two calls are in flight", func() bool { return l[0].Stats().CallsInFlight == 2 })
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	var rest *am.InFlightError
	if err := l[0].Quiesce(short); !errors.As(err, &rest) || rest.Calls != 2 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Quiesce: %v", err)
	}
	p, err := hold.Prepare(am.NoWait, l[0], 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := l[0].Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Fatalf("Close with a prepared message: %v", err)
	}
	for range 4 {
		if err := <-errs; !errors.Is(err, os.ErrClosed) {
			t.Errorf("a pending call ended with %v", err)
		}
	}
	p.Cancel()
	if err := l[0].Close(); !errors.As(err, &rest) || rest.Calls != 2 {
		t.Fatalf("the Close that succeeds counts what the first one ended: %v", err)
	}
	if err := l[0].Close(); err != nil {
		t.Fatalf("a Close after that: %v", err)
	}
	if err := hold.Post(ctx, l[0], 1); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("post afterwards: %v", err)
	}
	eventually(t, "both requests have been handled", func() bool { return l[1].Stats().Owed == 2 })
	if err := l[1].Close(); !errors.As(err, &rest) || rest.Owed != 2 {
		t.Fatalf("Close with owed replies: %v", err)
	}
	s := l[0].Stats()
	if err := s.Check(); err != nil || s.Ended != 2 {
		t.Fatal(s.Ended, err)
	}
}

// Followers are many and wake-ups few: who leaves the lead since its own call has ended wakes one,
// not all.
func TestTheLeadIsHandedOverToOne(t *testing.T) {
	const calls = 6
	owed := make(chan *am.DeferredReply, calls)
	table := am.NewTable()
	hold := table.Handle("hold", func(c *am.Call) { owed <- c.Defer(time.Minute) })
	nothing := table.Handle("nothing", func(*am.Call) {})
	m := amtest.NewMemory(2, 64)
	var l [2]*am.Endpoint
	for i, attend := range []time.Duration{time.Minute, 0} { // only who calls leads the endpoint of rank 0
		var err error
		if l[i], err = am.Open(m.Rank(i), 0, am.Config{Rank: i, Size: 2, Table: table, Segment: m.Rank(i).Segment, AttendAfter: attend}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l[i].Close() })
	}
	ctx := bounded(t)
	if _, err := nothing.Call(ctx, l[0], 1); err != nil { // or the first call would wait twice, for its credit too
		t.Fatal(err)
	}
	slept := l[0].Stats().Sleeps
	ended := make(chan error, calls)
	for i := range uint64(calls) {
		go func() { _, err := hold.Call(ctx, l[0], 1); ended <- err }()
		eventually(t, "the first leads and sleeps, the others are parked", func() bool {
			s := l[0].Stats()
			return s.CallsInFlight == int(i)+1 && s.Sleeps > slept && s.Parks == i
		})
	}
	end := func() {
		if err := (<-owed).Reply(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	end() // the first
	eventually(t, "the lead has been handed over", func() bool { return l[0].Stats().HandOvers > 0 })
	time.Sleep(20 * time.Millisecond) // time to park again, for those who were woken and are not needed
	// Another may be woken while the first has not taken the lead yet.
	if s := l[0].Stats(); s.Parks >= calls-1+s.HandOvers {
		t.Errorf("handed over %d times; %d of %d others parked again", s.HandOvers, s.Parks-(calls-1), calls-1)
	}
	for range calls - 1 {
		end() // somebody leads always
	}
	if s := l[0].Stats(); s.Check() != nil {
		t.Error(s.Check())
	}
}

// A commit that waits gives its buffer back: requests in front of it may need the buffer.
func TestACommitThatWaitsGivesItsBufferBack(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("echo", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload())) })
	for name, commit := range map[string]func(ctx context.Context, p *am.Prepared) error{
		"Commit": func(ctx context.Context, p *am.Prepared) error { return p.Commit(ctx) },
		"CommitCall": func(ctx context.Context, p *am.Prepared) error {
			r, err := p.CommitCall(ctx)
			if err == nil && string(r.Data) != "prepared" {
				err = fmt.Errorf("%q came back", r.Data)
			}
			return err
		},
	} {
		l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, Credits: 1, Sends: 2, AttendAfter: -1})
		ctx := bounded(t)
		poll := func() {
			for _, l := range l {
				if _, err := l.Test(); err != nil {
					t.Fatal(err)
				}
			}
		}
		eventually(t, "the credit is taken", func() bool { poll(); return h.Post(am.NoWait, l[0], 1) == nil })
		p, err := h.Prepare(ctx, l[0], 1, len("prepared"))
		if err != nil {
			t.Fatal(err)
		}
		copy(p.Bytes(), "prepared")
		if q, err := h.Prepare(am.NoWait, l[0], 1, 1); err != am.ErrNoBuffer {
			t.Fatalf("%s: more messages are prepared than Config.Prepares: %v, %v", name, q, err)
		}
		if err := p.Commit(am.NoWait); err != am.ErrNoCredit {
			t.Fatalf("%s: without a credit: %v", name, err)
		}
		done := make(chan error, 1)
		go func() { done <- commit(ctx, p) }()
		eventually(t, "the buffer comes back", func() bool {
			q, err := h.Prepare(am.NoWait, l[0], 1, 1)
			if err == nil {
				q.Cancel()
			}
			return err == nil
		})
		if len(done) > 0 {
			t.Errorf("%s did not wait for a credit", name)
		}
		eventually(t, "the commit ends", func() bool { poll(); return len(done) > 0 })
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
