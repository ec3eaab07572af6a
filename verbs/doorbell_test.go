//go:build linux && cgo

package verbs

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/owner"
)

// fillWrites makes every slot of the end's chain an 8-byte WRITE of word i to word 512+i.
func (r *rig) fillWrites(e *end, flags SendFlags) {
	for i := range e.send.slots {
		w := e.send.WR(i)
		w.WRID, w.Opcode, w.Flags = uint64(i), OpWrite, flags
		w.SetRemote(r.addr(4096+8*i), r.mr.RKey())
		e.send.SetLocal(i, r.addr(8*i), 8, r.mr.LKey())
		*r.word(8 * i) = uint64(i + 1)
		*r.word(4096 + 8*i) = 0
	}
}

func TestASubChainPostsExactlyItsSlots(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	slots := a.send.slots
	for _, c := range []struct{ first, n int }{{0, 1}, {3, 4}, {slots - 2, 5}, {0, slots}, {5, slots}} {
		r.fillWrites(a, Signaled)
		check(t, a.bell.Send(a.qp, a.send, c.first, c.n))
		got := must(a.bell.Ring(c.n, testTimeout))(t)
		if got != c.n || a.bell.Posted() != c.n {
			t.Fatalf("%+v: %d posted, %d completed", c, a.bell.Posted(), got)
		}
		for i, wc := range a.bell.Completions() {
			if want := uint64((c.first + i) % slots); wc.WRID != want || wc.Err() != nil {
				t.Errorf("%+v: completion %d is %s, want slot %d", c, i, describe(wc), want)
			}
		}
		for i := range slots {
			in := (i-c.first+slots)%slots < c.n
			if got := *r.word(4096 + 8*i); (got == uint64(i+1)) != in || !in && got != 0 {
				t.Errorf("%+v: slot %d wrote %d", c, i, got)
			}
		}
	}
}

func TestOneRingPostsToSeveralQueues(t *testing.T) {
	r := newRig(t)
	shared := must(r.ctx.CreateCQ(CQConfig{}))(t)
	closing(t, shared)
	a, b := r.newEnd(endConfig{shared: shared}), r.newEnd(endConfig{shared: shared})
	r.connect(a, b)
	r.fillWrites(a, Signaled)
	a.recv.SetLocal(0, r.addr(8192), 64, r.mr.LKey())
	a.recv.WR(0).WRID = 100
	b.send.WR(0).WRID = 101
	b.send.WR(0).Flags = Signaled
	b.send.SetLocal(0, r.addr(0), 8, r.mr.LKey())
	check(t, a.bell.Recv(a.qp, a.recv, 0, 1))
	check(t, a.bell.Send(a.qp, a.send, 0, 2))
	check(t, a.bell.Send(b.qp, b.send, 0, 1))
	check(t, a.bell.Send(a.qp, a.send, 2, 1))
	if n := must(a.bell.Ring(5, testTimeout))(t); n != 5 || a.bell.Posted() != 5 {
		t.Fatalf("%d posted, %d completed, want 5", a.bell.Posted(), n)
	}
	seen := map[uint64]bool{}
	for _, wc := range a.bell.Completions() {
		check(t, wc.Err())
		seen[wc.WRID] = true
	}
	for _, id := range []uint64{0, 1, 2, 100, 101} {
		if !seen[id] {
			t.Errorf("no completion of %d", id)
		}
	}
	if s := a.bell.Stats(); s.Rings != 1 || s.Completions != 5 {
		t.Errorf("counters %+v", s)
	}
}

func TestARefusedRequestIsNamed(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(endConfig{})
	r.fillWrites(a, Signaled)
	r.fillWrites(b, Signaled)
	// Slot 6 asks for more inline bytes than the QP has.
	a.send.WR(6).Flags |= Inline
	a.send.SGEs(6)[0].Length = 1 << 20
	check(t, a.bell.Send(a.qp, a.send, 0, 2))
	check(t, a.bell.Send(a.qp, a.send, 4, 4))
	check(t, a.bell.Send(b.qp, b.send, 0, 1))
	check(t, a.bell.Send(a.qp, a.send, 2, 1))
	_, err := a.bell.Ring(5, testTimeout)
	var e *PostError
	if !errors.As(err, &e) {
		t.Fatalf("%v, want a PostError", err)
	}
	if e.Batch != 1 || e.Slot != 6 || e.WRID != 6 || e.Posted != 5 || e.Errno == 0 || e.Queue != a.qp.name || a.bell.Posted() != 5 {
		t.Errorf("%+v", e)
	}
	t.Log(err)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOMEM) {
		t.Errorf("errno %v", e.Errno)
	}
	for i, want := range []syscall.Errno{0, e.Errno, 0, syscall.ECANCELED} { // the last is behind it in its queue
		if e := a.bell.Refused(i); (e == nil) != (want == 0) || e != nil && e.Errno != want {
			t.Errorf("sub-chain %d: %v, want %v", i, e, want)
		}
	}
	// The four before it complete, and the other queue's; 6, 7 and 2 were never posted; the links
	// are whole again.
	for got := len(a.bell.Completions()); got < 4; got += must(a.bell.Ring(1, testTimeout))(t) {
	}
	for got := 0; got < 1; got += must(b.bell.Ring(1, testTimeout))(t) {
	}
	if n := must(a.bell.Ring(1, 0))(t); n != 0 {
		t.Errorf("%d completions too many", n)
	}
	if *r.word(4096 + 8*7) != 0 || *r.word(4096 + 8*2) != 0 {
		t.Error("a request after the bad one was posted")
	}
	r.fillWrites(a, Signaled)
	check(t, a.bell.Send(a.qp, a.send, 0, a.send.slots))
	if n := must(a.bell.Ring(a.send.slots, testTimeout))(t); n != a.send.slots {
		t.Errorf("%d completions of the whole chain afterwards", n)
	}
}

func TestPostOnePostsBehindWhatIsQueued(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	r.fillWrites(a, Signaled)
	took := func(ids ...uint64) {
		t.Helper()
		for got := 0; got < len(ids); {
			must(a.bell.Ring(1, testTimeout))(t)
			for _, wc := range a.bell.Completions() {
				if got == len(ids) || wc.WRID != ids[got] || wc.Err() != nil {
					t.Fatalf("completion %d is %s, want those of %d", got, describe(wc), ids)
				}
				got++
			}
		}
	}
	check(t, a.bell.PostOne(a.qp, a.send, 3))
	took(3)
	check(t, a.bell.Send(a.qp, a.send, 0, 2))
	check(t, a.bell.PostOne(a.qp, a.send, 5))
	took(0, 1, 5)
	a.send.WR(6).Flags |= Inline
	a.send.SGEs(6)[0].Length = 1 << 20 // more than the QP has
	for queued := range 2 {
		if queued == 1 {
			check(t, a.bell.Send(a.qp, a.send, 1, 1))
		}
		err := a.bell.PostOne(a.qp, a.send, 6)
		var e *PostError
		if !errors.As(err, &e) || e.Batch != queued || e.Slot != 6 || e.WRID != 6 || e.Posted != queued {
			t.Errorf("%d before it: %+v, %v", queued, e, err)
		}
	}
	took(1)
	if err := a.bell.PostOne(a.qp, a.send, -1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("slot -1: %v", err)
	}
	check(t, a.qp.Close())
	if err := a.bell.PostOne(a.qp, a.send, 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after the queue's close: %v", err)
	}
}

func TestAFullQueueNamesTheFirstThatDidNotFit(t *testing.T) {
	r := newRig(t)
	e := r.newEnd(endConfig{qp: QPConfig{MaxRecvWR: 4}})
	check(t, e.qp.Init(InitAttr{}))
	room := e.qp.Caps().MaxRecvWR
	chain := must(NewRecvChain(ChainConfig{Slots: room + 8}))(t)
	closing(t, chain)
	for i := range chain.slots {
		chain.WR(i).WRID = uint64(1000 + i)
		chain.SetLocal(i, r.addr(0), 8, r.mr.LKey())
	}
	check(t, e.bell.Recv(e.qp, chain, 0, chain.slots))
	_, err := e.bell.Ring(0, 0)
	var pe *PostError
	if !errors.As(err, &pe) || !errors.Is(err, unix.ENOMEM) || pe.Slot != pe.Posted || pe.Slot < room || pe.WRID != uint64(1000+pe.Slot) {
		t.Errorf("queue of %d: %+v, %v", room, pe, err)
	}
}

func TestADoorbellRefusesBadSlots(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	r.fillWrites(a, Signaled)
	for _, c := range []struct{ first, n int }{{-1, 1}, {a.send.slots, 1}, {0, 0}, {0, a.send.slots + 1}, {0, -5}} {
		if err := a.bell.Send(a.qp, a.send, c.first, c.n); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v, want EINVAL", c, err)
		}
	}
	closed := must(NewSendChain(ChainConfig{}))(t)
	check(t, closed.Close())
	if err := a.bell.Send(a.qp, closed, 0, 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("post from a closed chain: %v", err)
	}
	for range MaxBatch {
		check(t, a.bell.Send(a.qp, a.send, 0, 1))
	}
	if err := a.bell.Send(a.qp, a.send, 0, 1); !errors.Is(err, ErrFull) {
		t.Errorf("%v, want %v", err, ErrFull)
	}
	if err := a.qp.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("close of a QP that waits in a doorbell: %v, want %v", err, ErrBusy)
	}
	if err := a.send.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("close of a chain that waits in a doorbell: %v, want %v", err, ErrBusy)
	}
	if n := must(a.bell.Ring(MaxBatch, testTimeout))(t); n != MaxBatch {
		t.Errorf("%d completions of %d sub-chains", n, MaxBatch)
	}
}

func TestARingKeepsNoQueueFromClosing(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(endConfig{})
	r.fillWrites(a, Signaled)
	check(t, b.qp.Reset())
	check(t, a.bell.Send(a.qp, a.send, 0, 1))
	if n := must(a.bell.Ring(1, time.Millisecond))(t); n != 0 {
		t.Errorf("%d completions of a request without an answer", n)
	}
	check(t, a.qp.Close())
	if err := a.bell.Send(a.qp, a.send, 0, 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after the queue's close: %v, want %v", err, os.ErrClosed)
	}
}

func TestRingReturnsWhenTheBudgetIsSpent(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	for _, budget := range []time.Duration{0, -1, time.Microsecond, time.Millisecond} {
		if n, err := a.bell.Ring(1, budget); n != 0 || err != nil {
			t.Errorf("budget %v: %d, %v", budget, n, err)
		}
	}
	// Without a budget it looks once.
	r.fillWrites(a, Signaled)
	check(t, a.bell.Send(a.qp, a.send, 0, 1))
	end := time.Now().Add(testTimeout)
	for must(a.bell.Ring(1, 0))(t) == 0 {
		if time.Now().After(end) {
			t.Fatal("it did not look at all")
		}
	}
}

func TestRingReturnsNoMoreThanItsCapacity(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	small := must(a.cq.NewDoorbell(DoorbellConfig{Completions: 3}))(t)
	closing(t, small)
	r.fillWrites(a, Signaled)
	check(t, small.Send(a.qp, a.send, 0, 8))
	var ids []uint64
	for len(ids) < 8 {
		n := must(small.Ring(100, testTimeout))(t)
		if n == 0 || n > 3 {
			t.Fatalf("%d completions", n)
		}
		for _, wc := range small.Completions() {
			ids = append(ids, wc.WRID)
		}
		if len(ids) == 6 {
			// The last two cannot fill it.
			n := must(small.Ring(2, testTimeout))(t)
			for _, wc := range small.Completions()[:n] {
				ids = append(ids, wc.WRID)
			}
		}
	}
	for i, id := range ids {
		if id != uint64(i) {
			t.Errorf("completions %v", ids)
			break
		}
	}
}

func TestADoorbellDetectsTwoGoroutines(t *testing.T) {
	if !owner.Checked {
		t.Skip("the release build does not look")
	}
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	r.postRecv(a, 0, 64, 1)
	started := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		close(started)
		_, err := a.bell.Ring(1, testTimeout)
		for errors.Is(err, ErrConcurrent) { // it met the look below
			_, err = a.bell.Ring(1, testTimeout)
		}
		done <- err
	}()
	<-started
	for a.bell.user.Enter() == nil { // until the other is inside
		a.bell.user.Exit()
		time.Sleep(time.Millisecond)
	}
	if _, err := a.bell.Ring(1, 0); !errors.Is(err, ErrConcurrent) {
		t.Errorf("%v, want %v", err, ErrConcurrent)
	}
	if err := a.bell.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("close: %v, want %v", err, ErrBusy)
	}
	check(t, a.qp.ToError()) // which completes the receive
	check(t, <-done)
}

func TestPostAndPollDoNotAllocate(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	r.fillWrites(a, Signaled)
	failed := 0
	if n := testing.AllocsPerRun(50, func() {
		if a.bell.Send(a.qp, a.send, 0, 2) != nil {
			failed++
		}
		n, err := a.bell.Ring(2, testTimeout)
		if n != 2 || err != nil {
			failed++
		}
		for i := range a.bell.Completions() {
			if a.bell.Completions()[i].Err() != nil {
				failed++
			}
		}
	}); n != 0 || failed != 0 {
		t.Errorf("%v allocations, %d failures", n, failed)
	}
}
