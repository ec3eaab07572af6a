//go:build linux && cgo

package verbs

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/rdmatest"
)

// lockThread makes the goroutine's thread its own; it is never unlocked, so the thread dies with
// the goroutine.
func lockThread() { runtime.LockOSThread() }

func (r *rig) channelled() (ch *CompChannel, a, b *end) {
	r.t.Helper()
	ch = must(r.ctx.CreateCompChannel())(r.t)
	closing(r.t, ch)
	a, b = r.pair(endConfig{cq: CQConfig{Channel: ch}})
	return ch, a, b
}

func TestArmedCQWakesAWaiterThroughTheChannel(t *testing.T) {
	r := newRig(t)
	ch, a, b := r.channelled()
	for round := range 3 {
		check(t, b.cq.Arm(false))
		r.postRecv(b, 4096, 64, uint64(round))
		type result struct {
			cq  *CQ
			err error
		}
		got := make(chan result, 1)
		ctx := within(t)
		go func() {
			cq, err := ch.Wait(ctx)
			got <- result{cq, err}
		}()
		r.postFrom(a, 8, func(w *SendWR) { w.Opcode = OpSend })
		if g := <-got; g.err != nil || g.cq != b.cq {
			t.Fatalf("round %d: %v, %v; want %s", round, g.cq, g.err, b.cq.name)
		}
		if wc := r.ok(b); wc.WRID != uint64(round) {
			t.Errorf("round %d: %s", round, describe(wc))
		}
		r.ok(a)
	}
}

func TestSolicitedArmIgnoresOrdinaryMessages(t *testing.T) {
	r := newRig(t)
	ch, a, b := r.channelled()
	check(t, b.cq.Arm(true))
	send := func(f SendFlags) {
		r.postRecv(b, 4096, 64, 1)
		r.postFrom(a, 8, func(w *SendWR) { w.Opcode = OpSend; w.Flags |= f })
		r.ok(a)
		r.ok(b)
	}
	send(0)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if cq, err := ch.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("an ordinary message woke the waiter: %v, %v", cq, err)
	}
	send(Solicited)
	if cq, err := ch.Wait(within(t)); err != nil || cq != b.cq {
		t.Errorf("solicited: %v, %v", cq, err)
	}
}

func TestWaitEndsWithItsContextAndCanBeCalledAgain(t *testing.T) {
	r := newRig(t)
	ch, a, b := r.channelled()
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { _, err := ch.Wait(ctx); done <- err }()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("%v, want %v", err, context.Canceled)
		}
	}
	check(t, b.cq.Arm(false))
	r.postRecv(b, 4096, 64, 1)
	r.postFrom(a, 8, func(w *SendWR) { w.Opcode = OpSend })
	if cq, err := ch.Wait(within(t)); err != nil || cq != b.cq {
		t.Errorf("after cancelled waits: %v, %v", cq, err)
	}
}

func TestTimedWaitEndsAndAllocatesNothing(t *testing.T) {
	r := newRig(t)
	ch, a, b := r.channelled()
	const d = 5 * time.Millisecond
	began := time.Now()
	if n := testing.AllocsPerRun(20, func() {
		if cq, err := ch.WaitFor(d); cq != nil || err != nil {
			t.Fatalf("without an event: %v, %v", cq, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if took := time.Since(began); took < 21*d {
		t.Errorf("21 waits for %v took %v", d, took)
	}
	for _, d := range []time.Duration{0, -time.Second} {
		if cq, err := ch.WaitFor(d); cq != nil || err != nil {
			t.Errorf("for %v: %v, %v", d, cq, err)
		}
	}
	send := func() {
		check(t, b.cq.Arm(false))
		r.postRecv(b, 4096, 64, 1)
		r.postFrom(a, 8, func(w *SendWR) { w.Opcode = OpSend })
	}
	send()
	if cq, err := ch.WaitFor(time.Minute); err != nil || cq != b.cq {
		t.Errorf("with an event: %v, %v", cq, err)
	}
	r.ok(a)
	r.ok(b)
	send()
	r.ok(a)
	r.ok(b)
	// The event may be a little later than the completion
	for began := time.Now(); ; runtime.Gosched() {
		if cq, err := ch.WaitFor(0); err != nil || cq == b.cq {
			check(t, err)
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("a wait for no time does not see an event")
		}
	}
	// The time of the wait before is over, and no deadline of the next.
	if cq, err := ch.WaitFor(d); cq != nil || err != nil {
		t.Errorf("afterwards: %v, %v", cq, err)
	}
	send()
	if cq, err := ch.Wait(within(t)); err != nil || cq != b.cq {
		t.Errorf("with a context: %v, %v", cq, err)
	}
}

func TestSecondWaiterIsRefusedAsIsCloseOfAWaiter(t *testing.T) {
	r := newRig(t)
	ch := must(r.ctx.CreateCompChannel())(t)
	closing(t, ch)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := ch.Wait(ctx)
		for errors.Is(err, ErrConcurrent) { // it met the look below
			_, err = ch.Wait(ctx)
		}
		done <- err
	}()
	for ch.waiting.TryLock() { // until the goroutine is in Wait
		ch.waiting.Unlock()
		time.Sleep(time.Millisecond)
	}
	if _, err := ch.Wait(within(t)); !errors.Is(err, ErrConcurrent) {
		t.Errorf("second waiter: %v, want %v", err, ErrConcurrent)
	}
	if err := ch.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("close: %v, want %v", err, ErrBusy)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestArmWithoutAChannelIsRefused(t *testing.T) {
	r := newRig(t)
	if err := r.anyCQ().Arm(false); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "CQConfig.Channel") {
		t.Errorf("%v", err)
	}
}

func TestResizeKeepsWhatTheCQHolds(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{cq: CQConfig{Entries: 4}})
	before := a.cq.Cap()
	r.postFrom(a, 8, func(w *SendWR) { w.Opcode = OpWrite; w.WRID = 3; w.SetRemote(r.addr(4096), r.mr.RKey()) })
	if err := a.cq.Resize(100); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		rdmatest.Lacks(t, r.ctx.Name(), "resizing of a CQ: "+err.Error())
	} else if err != nil {
		t.Fatal(err)
	}
	if a.cq.Cap() < 100 || a.cq.Cap() == before {
		t.Errorf("capacity %d after a resize to 100", a.cq.Cap())
	}
	if wc := r.ok(a); wc.WRID != 3 {
		t.Errorf("%s", describe(wc))
	}
}
