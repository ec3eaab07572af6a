//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

var errKilled = errors.New("it was killed")

// deaths records the calls of OnDown.
type deaths struct {
	mu       sync.Mutex
	reported map[int][]error
}

func (d *deaths) onDown(rank int, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reported == nil {
		d.reported = map[int][]error{}
	}
	d.reported[rank] = append(d.reported[rank], cause)
}

func (d *deaths) of(rank int) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reported[rank]
}

// down fails the test unless err says that the rank is down, for that cause.
func (r *rig) down(what string, err error, rank int, cause error) {
	r.Helper()
	var pd *fabric.PeerDownError
	if !errors.As(err, &pd) || pd.Rank != rank || !errors.Is(err, cause) {
		r.Errorf("%s: got %v, want rank %d down because of %v", what, err, rank, cause)
	}
}

// mute has a rank's device answer nothing to another's first lane, as if its host had died.
func (r *rig) mute(rank, to int) {
	r.Helper()
	r.must("stop of a queue pair", r.nets[rank].all[0].queues[to].qp.ToError())
}

// Silent requests that are complete already make no completion when their queue
// pair is stopped.
func TestPeerDownAfterSilentPutsEndsTheFlush(t *testing.T) {
	for _, puts := range []uint64{1, 3, 15, 17} {
		r := newRig(t, 3, Config{})
		l := r.lane(0)
		for i := range puts {
			_, err := l.Put(1, 0, word(i+1), fabric.Implicit)
			r.must("put", err)
		}
		r.await(1, 0, puts)
		time.Sleep(50 * time.Millisecond) // for the last acknowledgement
		r.nets[0].PeerDown(1, errKilled)
		_, err := l.Put(2, 0, word(1), fabric.Implicit) // the lane notices
		r.must("put to another", err)
		if err := l.Flush(r.ctx); err != nil && !errors.Is(err, fabric.ErrPeerDown) {
			t.Fatalf("%d silent puts, then a death: flush: %v", puts, err)
		}
		r.must("second flush", l.Flush(r.ctx))
		r.idle(l)
	}
}

func TestAnErrorAtThePostIsNotRepeatedAtFlush(t *testing.T) {
	r := newRig(t, 3, Config{})
	l := r.lane(0)
	r.nets[0].PeerDown(1, errKilled)
	_, err := l.Put(1, 0, word(1), fabric.Implicit)
	r.down("implicit put", err, 1, errKilled)
	_, err = l.Get(1, segmentBytes, make([]byte, 1), fabric.Implicit)
	var be *fabric.BoundsError
	if !errors.As(err, &be) {
		t.Errorf("get beyond the segment: %v", err)
	}
	r.must("flush", l.Flush(r.ctx))
	r.must("close", l.Close())
}

func TestPeerDownWithoutACauseOrARankIsHarmless(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	for _, rank := range []int{-1, 2, 1 << 40} {
		r.nets[0].PeerDown(rank, errKilled)
	}
	_, err := l.Put(1, 0, word(1), fabric.Implicit)
	r.must("put", err)
	r.must("flush", l.Flush(r.ctx))
	r.nets[0].PeerDown(1, nil)
	if _, err := l.Put(1, 0, word(1), 0); !errors.Is(err, fabric.ErrPeerDown) || errors.Unwrap(err) == nil {
		t.Errorf("put to a rank that died of nothing: %v", err)
	}
}

// What waits for room, or for an outcome, ends at once when the peer is found down, however long
// the device would try.
func TestPeerDownEndsWhatWaitsInTheMiddle(t *testing.T) {
	big := make([]byte, 40*bigBlock)
	for name, op := range map[string]func(r *rig, l *lane) error{
		"long put in pieces": func(r *rig, l *lane) error { return r.whole(l.Put(1, 0, big, 0))(l) },
		"long get in pieces": func(r *rig, l *lane) error { return r.whole(l.Get(1, 0, big, 0))(l) },
		"implicit put":       func(r *rig, l *lane) error { return r.whole(l.Put(1, 0, big, fabric.Implicit))(l) },
		"implicit get":       func(r *rig, l *lane) error { return r.whole(l.Get(1, 0, big, fabric.Implicit))(l) },
		"blocking put":       func(r *rig, l *lane) error { return r.whole(l.Put(1, 0, word(1), fabric.Blocking))(l) },
		"silent puts":        func(r *rig, l *lane) error { return r.whole(l.Put(1, 0, word(1), fabric.Implicit))(l) },
		"swap": func(r *rig, l *lane) error {
			_, h, err := l.Atomic(1, 0, fabric.Atomic{Op: fabric.Swap, Operand: 1}, 0)
			return r.whole(h, err)(l)
		},
		"batch": func(r *rig, l *lane) error {
			var b fabric.Batch
			for i := range 30 {
				b.Put(1+i%2, 8, word(1))
			}
			return errors.Join(l.Post(&b, nil, 0), l.Flush(r.ctx))
		},
		"group": func(r *rig, l *lane) error {
			var b fabric.Batch
			var q fabric.Completions
			for i := range 30 {
				b.Get(1, 8, make([]byte, 1+300*i))
			}
			b.Tag(1)
			if err := l.Post(&b, &q, 0); err != nil {
				return err
			}
			var c [2]fabric.Completion
			r.must("await", l.Await(r.ctx, &q))
			if q.Take(c[:]) != 1 {
				t.Error("a group was told twice")
			}
			return c[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d deaths
			r := newRig(t, 3, Config{Depth: 6, Lanes: 1, OnDown: d.onDown})
			l := r.lane(0)
			r.mute(1, 0)
			timer := time.AfterFunc(50*time.Millisecond, func() {
				r.nets[0].PeerDown(1, errKilled)
				r.nets[0].PeerDown(1, errors.New("reported again"))
			})
			defer timer.Stop()
			r.down(name, op(r, l), 1, errKilled)
			if n := l.set.queues[1].flight.n; n != 0 {
				t.Errorf("%d work requests may still use the buffers", n)
			}
			_ = l.Flush(r.ctx) // of those that had no handle, one may be left
			r.must("flush", l.Flush(r.ctx))
			r.idle(l)
			_, err := l.Put(2, 0, word(7), fabric.Implicit)
			r.must("put to the living", err)
			r.must("flush", l.Flush(r.ctx))
			if r.word(2, 0) != 7 {
				t.Error("the living rank has nothing")
			}
		})
	}
}

// quick makes the device give up on a silent peer within a fraction of a second.
func quick(cfg Config) Config {
	cfg.timeout, cfg.retries = 14, 2
	return cfg
}

func TestASilentPeerIsFoundDownByTheDevice(t *testing.T) {
	var d deaths
	r := newRig(t, 3, quick(Config{Depth: 8, Lanes: 1, OnDown: d.onDown}))
	l := r.lane(0)
	r.mute(1, 0)
	var hs []fabric.Handle
	var first error
	for i := range 30 { // more than the queue holds
		h, err := l.Put(1, 0, word(1), fabric.Flag(i%2)*fabric.Implicit)
		if err != nil {
			first = err
			break
		}
		hs = append(hs, h)
	}
	for _, h := range hs {
		if _, err := l.Wait(r.ctx, h); err != nil && first == nil {
			first = err
		}
	}
	r.down("operations", first, 1, verbs.StatusRetryExceeded)
	if err := l.Flush(r.ctx); err != nil {
		r.down("flush", err, 1, verbs.StatusRetryExceeded)
	}
	r.must("second flush", l.Flush(r.ctx))
	r.idle(l)
	if reported := d.of(1); len(reported) == 0 || !errors.Is(reported[0], verbs.StatusRetryExceeded) {
		t.Errorf("OnDown was called for %v", reported)
	}
	if len(d.of(0))+len(d.of(2)) != 0 {
		t.Error("OnDown was called for ranks that live")
	}
	// Other lanes and later ones know it too.
	_, err := r.lane2(l, 0).Put(1, 0, word(1), 0)
	r.down("a later lane", err, 1, verbs.StatusRetryExceeded)
}

// lane2 closes a lane and opens another.
func (r *rig) lane2(l *lane, rank int) *lane {
	r.Helper()
	r.must("close", l.Close())
	return r.lane(rank)
}

func TestAnAccessTheTargetRefusesIsADeath(t *testing.T) {
	var d deaths
	r := newRig(t, 3, Config{Lanes: 1, OnDown: d.onDown})
	l := r.lane(0)
	r.must("deregistration", r.nets[1].mr.Close())
	for i := range 3 {
		_, err := l.Put(1, 0, word(uint64(i)), fabric.Implicit)
		r.must("put", err)
	}
	err := l.Flush(r.ctx)
	r.down("flush", err, 1, verbs.StatusRemoteAccess)
	if !errors.Is(err, unix.EACCES) {
		t.Errorf("%v does not wrap EACCES", err)
	}
	r.must("second flush", l.Flush(r.ctx))
	r.idle(l)
	if len(d.of(1)) == 0 {
		t.Error("OnDown was not called")
	}
	// A later report does not replace the first cause.
	r.nets[0].PeerDown(1, errKilled)
	_, err = l.Get(1, 0, make([]byte, 8), 0)
	r.down("get", err, 1, verbs.StatusRemoteAccess)
}

// A queue that is fuller than the lane believes refuses a work request: that
// peer is lost, the others' requests of the same doorbell are not. Implicit operations and groups
// of one put.
func TestARefusedPostLosesOnePeerOnly(t *testing.T) {
	for _, c := range []struct {
		tagged bool
		puts   int // 16: those before the refused one are all silent
	}{{false, 22}, {false, 16}, {true, 22}} {
		var d deaths
		r := newRig(t, 8, Config{Depth: 8, Lanes: 1, OnDown: d.onDown}) // 8: a large completion queue, so that requests are silent
		l := r.lane(0)
		l.set.tx.depth = 32 // the device's queue has 8, or what it rounded them up to
		var b fabric.Batch
		var q fabric.Completions
		put := func(peer, k int) {
			b.Put(peer, uint64(8*k), word(uint64(k)+1))
			if c.tagged {
				b.Tag(fabric.Tag(peer))
			}
		}
		put(3, 0)
		for k := range c.puts {
			put(1, k)
		}
		put(2, 0)
		if c.puts > signalEvery {
			put(1, c.puts)
		}
		put(3, 1)
		if b.Len() > int(l.set.tx.limit) {
			t.Fatalf("%d requests with a limit of %d", b.Len(), l.set.tx.limit)
		}
		r.must("post", l.Post(&b, &q, 0))
		failed := 0
		for q.InFlight()+q.Len() > 0 {
			r.must("await", l.Await(r.ctx, &q))
			var one [1]fabric.Completion
			q.Take(one[:])
			var refused *verbs.PostError
			switch err := one[0].Err; {
			case err == nil:
			case one[0].Tag != 1 || !errors.As(err, &refused) || !errors.Is(err, unix.ENOMEM):
				t.Errorf("put to rank %d: %v", one[0].Tag, err)
			default:
				failed++
			}
		}
		err := l.Flush(r.ctx)
		if c.tagged {
			r.must("flush", err)
			if failed == 0 {
				t.Error("nothing failed")
			}
		} else {
			r.down("flush", err, 1, unix.ENOMEM)
		}
		r.must("second flush", l.Flush(r.ctx))
		r.idle(l)
		if r.word(2, 0) != 1 || r.word(3, 0) != 1 || r.word(3, 8) != 2 {
			t.Error("puts to the other ranks were lost")
		}
		if len(d.of(1)) == 0 || len(d.of(2))+len(d.of(3)) != 0 {
			t.Errorf("OnDown was called for %v", d.reported)
		}
		l.set.tx.depth = 8
		mixed(r, l, 100, []int{0, 2})
		r.idle(l)
	}
}

// Two lanes find the same death, one after the other.
func TestADeathIsReportedOnce(t *testing.T) {
	var d deaths
	r := newRig(t, 2, quick(Config{Lanes: 2, OnDown: d.onDown}))
	lanes := []*lane{r.lane(0), r.lane(0)}
	var hs []fabric.Handle
	for i, l := range lanes {
		r.must("stop of a queue pair", r.nets[1].all[i].queues[0].qp.ToError())
		h, err := l.Put(1, 0, word(1), 0)
		r.must("put", err)
		hs = append(hs, h)
	}
	for i, l := range lanes {
		_, err := l.Wait(r.ctx, hs[i])
		r.down("put", err, 1, verbs.StatusRetryExceeded)
		r.must("flush", l.Flush(r.ctx))
	}
	if reported := d.of(1); len(reported) != 1 {
		t.Errorf("OnDown was called %d times: %v", len(reported), reported)
	}
	// OnDown is not called for what came by PeerDown.
	r = newRig(t, 2, quick(Config{Lanes: 1, OnDown: d.onDown}))
	l := r.lane(0)
	r.mute(1, 0)
	r.nets[0].PeerDown(1, errKilled)
	_, err := l.Put(1, 0, word(1), 0)
	r.down("put", err, 1, errKilled)
	if reported := d.of(1); len(reported) != 1 {
		t.Errorf("OnDown was called again: %v", reported)
	}
}

func TestWaitWordEndsWithAPutOfTheOwnLane(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	_, err := l.Put(0, 8, word(3), fabric.Implicit)
	r.must("put", err)
	_, err = l.Put(1, 8, word(4), fabric.Implicit)
	r.must("put", err)
	ctx, cancel := context.WithTimeout(r.ctx, testTimeout/2)
	defer cancel()
	w := wordAt(r.segs[0], 8)
	r.must("wait for a word", l.WaitWord(ctx, w, fabric.Equal, 3, nil))
	r.await(1, 8, 4)
	stopped := errors.New("stopped")
	if err := l.WaitWord(ctx, w, fabric.Greater, 3, func() error { return stopped }); !errors.Is(err, stopped) {
		t.Errorf("%v", err)
	}
	r.must("flush", l.Flush(r.ctx))
	r.idle(l)
}

func TestImplicitAtomicsNameTheirOperation(t *testing.T) {
	for op, name := range map[fabric.AtomicOp]string{fabric.FetchAdd: "fetch-add", fabric.CompareSwap: "compare-swap"} {
		r := newRig(t, 2, Config{Lanes: 1})
		l := r.lane(0)
		r.must("stop of a queue pair", l.set.queues[1].qp.ToError())
		_, _, err := l.Atomic(1, 64, fabric.Atomic{Op: op}, fabric.Implicit)
		r.must(name, err)
		failed, _ := l.Flush(r.ctx).(*fabric.OpError)
		if failed == nil || failed.Op != name || failed.Rank != 1 || failed.Off != 64 || failed.Len != 8 {
			t.Errorf("%s: %v", name, failed)
		}
	}
}
