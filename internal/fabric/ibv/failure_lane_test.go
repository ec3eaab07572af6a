//go:build linux && cgo

package ibv

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// whole follows an operation to its end, wherever its error comes out.
func (r *rig) whole(h fabric.Handle, err error) func(l *lane) error {
	return func(l *lane) error {
		if err == nil {
			_, err = l.Wait(r.ctx, h)
		}
		if err == nil {
			err = l.Flush(r.ctx)
		}
		return err
	}
}

// The device may still answer on a queue pair that it does not give back: neither
// its blocks nor its numbers may serve other requests.
func TestAQueuePairThatIsNotResetLosesItsLane(t *testing.T) {
	var d deaths
	r := newRig(t, 3, Config{OnDown: d.onDown})
	l := r.lane(0)
	r.mute(1, 0)
	h, err := l.Get(1, 0, make([]byte, 64), fabric.Blocking)
	r.must("get", err)
	e, k := l.set, l.set.queues[1]
	r.must("close the queue pair under the lane", k.qp.Close()) // so that Reset fails
	e.tx.fail(k, errKilled)
	e.endFailed()
	if e.lost == nil || !errors.Is(e.lost, os.ErrClosed) {
		t.Errorf("the lane goes on: %v", e.lost)
	}
	_, err = l.Wait(r.ctx, h)
	r.down("wait", err, 1, errKilled)
	if _, err := l.Put(2, 0, word(1), fabric.Blocking); !errors.Is(err, os.ErrClosed) || errors.Is(err, fabric.ErrPeerDown) {
		t.Errorf("put to another rank on a lost lane: %v", err)
	}
	if e.tx.out != 0 || len(d.of(1)) != 1 || len(d.of(2)) != 0 {
		t.Errorf("%d in flight; reported %v", e.tx.out, d.reported)
	}
}

// A completion queue that ran over is of no more use: all that the lane does fails, nothing waits
// for ever. No peer is down, and the other lane goes on.
func TestALostCompletionQueueFailsItsLane(t *testing.T) {
	const ranks = 5
	var d deaths
	r := newRig(t, ranks, Config{Depth: 64, Lanes: 2, OnDown: d.onDown})
	l, other := r.lane(0), r.lane(0)
	e := l.set
	if most := 127 * ranks; e.cq.Cap() >= most {
		t.Fatalf("a completion queue of %d entries takes all that %d queue pairs can complete, %d: raise the number of ranks", e.cq.Cap(), ranks, most)
	}
	e.size(127, 1000) // more than the queues were made for, so that the completion queue runs over
	var b fabric.Batch
	var q fabric.Completions
	for i := range 127 * ranks {
		b.Put(i%ranks, 0, word(1))
		b.Tag(fabric.Tag(i))
	}
	r.must("post", l.Post(&b, &q, 0))
	for overrun := false; !overrun; {
		if r.ctx.Err() != nil {
			t.Fatalf("the device's queue of %d entries took %d completions", e.cq.Cap(), b.Len())
		}
		time.Sleep(time.Millisecond)
		_, err := e.tx.bell.Ring(0, 0)
		overrun = errors.Is(err, verbs.ErrOverrun)
	}
	lost := 0
	for q.InFlight()+q.Len() > 0 {
		_ = l.Await(r.ctx, &q)
		var c [1]fabric.Completion
		if q.Take(c[:]) == 0 {
			t.Fatalf("%d groups are lost", q.InFlight())
		}
		if err := c[0].Err; errors.Is(err, verbs.ErrOverrun) && !errors.Is(err, fabric.ErrPeerDown) {
			lost++
		} else if err != nil {
			t.Fatalf("group: %v", err)
		}
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
	_ = l.Flush(r.ctx)
	r.must("the test's testTimeout", r.ctx.Err())
	if _, err := l.Put(0, 0, word(1), 0); !errors.Is(err, verbs.ErrOverrun) {
		t.Errorf("a later put: %v", err)
	}
	r.idle(l)
	if d.reported != nil || r.nets[0].deaths.N.Load() != 0 {
		t.Errorf("OnDown was called for %v", d.reported)
	}
	mixed(r, other, 100, []int{0, 1, 4})
	_ = l.Close()
	if _, err := r.nets[0].NewLane(); !errors.Is(err, fabric.ErrNoLane) || !strings.Contains(err.Error(), "of 2, 1 are lost") {
		t.Errorf("a new lane where one is lost and one is open: %v", err)
	}
}

// What was abandoned gives its record back when it ends, well or not.
func TestAnAbandonedOperationLeavesNothingBehind(t *testing.T) {
	r := newRig(t, 3, quick(Config{Depth: 64, Lanes: 1}))
	l := r.lane(0)
	dst := make([]byte, 3*bigBlock)
	peers := []int{1, 2}
	round := func() {
		var hs []fabric.Handle
		for _, peer := range peers {
			p, err := l.Put(peer, 0, word(1), 0)
			r.must("put", err)
			g, err := l.Get(peer, 0, dst, 0)
			r.must("get", err)
			_, s, err := l.Atomic(peer, 8, fabric.Atomic{Op: fabric.Swap, Operand: 7}, 0)
			r.must("swap", err)
			hs = append(hs, p, g, s)
		}
		for _, h := range hs {
			l.Abandon(h)
			l.Abandon(h)
			if _, err := l.Wait(r.ctx, h); !errors.Is(err, errSpent) {
				t.Errorf("wait for what was abandoned: %v", err)
			}
		}
		_ = l.Flush(r.ctx)
		r.idle(l)
	}
	round()
	ops := len(l.set.ops.all)
	round()
	if len(l.set.ops.all) != ops {
		t.Errorf("%d records, %d after the first round", len(l.set.ops.all), ops)
	}
	_, h, err := l.Atomic(1, 16, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
	r.must("atomic", err)
	for l.set.tx.out > 0 { // it is complete, and still to be collected
		r.must("poll", l.Poll())
	}
	l.Abandon(h)
	r.idle(l)
	r.mute(1, 0)
	round()
}

// A lane that is closed with work for a dead peer in flight serves again once the
// device has given up.
func TestALaneClosedWithADeadPeerServesAgain(t *testing.T) {
	r := newRig(t, 3, quick(Config{Depth: 4, Lanes: 1}))
	r.mute(1, 0)
	l := r.lane(0)
	for i := range 4 {
		_, err := l.Put(1, 0, word(1), fabric.Flag(i%2)*fabric.Implicit)
		r.must("put", err)
	}
	if err := l.Close(); err != nil { // it waits for nothing, but may know already
		r.down("close", err, 1, verbs.StatusRetryExceeded)
		if _, ok := err.(*fabric.OpError); !ok {
			t.Errorf("close: %v, and not as Flush returns it", err)
		}
	}
	l = r.lane(0)
	if _, err := l.Put(1, 0, word(1), 0); !errors.Is(err, fabric.ErrPeerDown) {
		t.Errorf("put: %v", err)
	}
	mixed(r, l, 100, []int{0, 2})
	r.idle(l)
}
