//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

var half = fabric.Atomic{Type: fabric.Float64, Operand: math.Float64bits(0.5)}

// What a lane sees of a word, and what its attempts in flight will leave, is what it expects next:
// else n additions in one batch would take n*n/2 attempts, and each alone two.
func TestLoopsOnOneWordNeedFewAttempts(t *testing.T) {
	const n = 60 // fits a queue
	r := newRig(t, 2, Config{Depth: 64, Lanes: 1})
	l := r.lane(0)
	*wordAt(r.segs[1], 0) = math.Float64bits(100)
	var b fabric.Batch
	for range n {
		b.Atomic(1, 0, half, nil)
	}
	r.must("post", l.Post(&b, nil, 0))
	r.must("flush", l.Flush(r.ctx))
	if got := math.Float64frombits(r.word(1, 0)); got != 100+n*0.5 {
		t.Errorf("the sum is %v", got)
	}
	// All guessed wrong once, and right then.
	if c := l.counters.Load(); c.Requests < 2*n || c.Requests > 2*n+4 {
		t.Errorf("%d additions took %d requests", n, c.Requests)
	}
	before := l.counters.Load().Requests
	for range n {
		_, h, err := l.Atomic(1, 0, half, fabric.Blocking)
		r.must("fetch-add", err)
		_, err = l.Wait(r.ctx, h)
		r.must("wait", err)
	}
	if took := l.counters.Load().Requests - before; took != n {
		t.Errorf("%d more took %d requests", n, took)
	}
	r.idle(l)
}

// More words than the lane has guesses: some share one, which may cost attempts and nothing else.
func TestLoopsOnManyWordsShareGuesses(t *testing.T) {
	const words, rounds = 500, 3
	r := newRig(t, 3, Config{Depth: 16, Lanes: 1})
	l := r.lane(0)
	for range rounds {
		for i := range words {
			_, _, err := l.Atomic(1+i%2, uint64(4*i), fabric.Atomic{Type: fabric.Uint32, Operand: uint64(i)}, fabric.Implicit)
			r.must("add", err)
		}
	}
	r.must("flush", l.Flush(r.ctx))
	for i := range words {
		word := fabric.Atomic{Type: fabric.Uint32}
		off := uint64(4 * i)
		if got := word.Inner(off, r.word(1+i%2, off&^7)); got != uint64(rounds*i) {
			t.Fatalf("word %d is %d, want %d", i, got, rounds*i)
		}
	}
	r.idle(l)
}

// paused is a loop whose first attempt has failed and that makes the next in an hour.
func paused(r *rig, l *lane, peer int, f fabric.Flag) fabric.Handle {
	r.Helper()
	l.set.loops.guesses = guesses{}
	*wordAt(r.segs[peer], 0) = 7
	_, h, err := l.Atomic(peer, 0, fabric.Atomic{Op: fabric.Swap, Operand: 9}, f)
	r.must("swap", err)
	if f&fabric.Implicit != 0 {
		l.set.tx.probeSilent()
	}
	for len(l.set.loops.again) == 0 {
		_, err := l.set.progress(1, 0)
		r.must("progress", err)
		r.must("an attempt that does not end", r.ctx.Err())
	}
	l.set.ops.all[l.set.loops.again[0]].due = now() + time.Hour
	return h
}

func TestALoopThatPausesEndsWithItsContext(t *testing.T) {
	r := newRig(t, 2, Config{Lanes: 1})
	l := r.lane(0)
	h := paused(r, l, 1, 0)
	ctx, cancel := context.WithTimeout(r.ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := l.Wait(ctx, h); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	if err := l.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("flush: %v", err)
	}
	if _, done, err := l.Test(h); done || err != nil {
		t.Errorf("test: %v, %v", done, err)
	}
	r.must("poll", l.Poll())
	if got := r.word(1, 0); got != 7 {
		t.Fatalf("the pause was no pause: the word is %d", got)
	}
	l.set.ops.all[l.set.loops.again[0]].due = 0
	old, err := l.Wait(r.ctx, h)
	r.must("wait", err)
	if old != 7 || r.word(1, 0) != 9 {
		t.Errorf("swap returned %d and left %d", old, r.word(1, 0))
	}
	r.idle(l)
}

// The word changes faster than a round trip.
func TestALoopThatIsOvertakenEndsWithItsContext(t *testing.T) {
	r := newRig(t, 2, Config{Lanes: 1})
	l := r.lane(0)
	word, stop := wordAt(r.segs[1], 0), atomic.Bool{}
	var other sync.WaitGroup
	other.Go(func() {
		for !stop.Load() {
			atomic.AddUint64(word, 2)
		}
	})
	ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
	defer cancel()
	var err error
	flips := uint64(0)
	for ; err == nil; flips++ { // one may get in between
		r.must("testTimeout", r.ctx.Err())
		var h fabric.Handle
		_, h, err = l.Atomic(1, 0, fabric.Atomic{Op: fabric.FetchXor, Operand: 1}, 0)
		r.must("xor", err)
		if _, err = l.Wait(ctx, h); err != nil {
			l.Abandon(h)
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	stop.Store(true)
	other.Wait()
	r.must("flush", l.Flush(r.ctx)) // it goes on
	if *word&1 != flips&1 {
		t.Errorf("%d flips left %#x", flips, *word)
	}
	r.idle(l)
}

func TestPausesGrowUpToALimit(t *testing.T) {
	longest := [40]time.Duration{}
	for n := range longest {
		for range 1000 {
			d := backoff(int32(n))
			if d < 0 || d >= min(backoffMin<<min(n, 20), backoffMax) {
				t.Fatalf("pause %d is %v", n, d)
			}
			longest[n] = max(longest[n], d)
		}
	}
	if longest[0] >= backoffMin || longest[5] <= backoffMin || longest[39] <= backoffMax/2 {
		t.Errorf("the longest of 1000: %v", longest)
	}
}

// A loop's error says where it was, whether an attempt was in flight or it paused.
func TestLoopsOnADeadRankFailWithTheirPlace(t *testing.T) {
	for _, f := range []fabric.Flag{0, fabric.Implicit} {
		for name, start := range map[string]func(r *rig, l *lane) fabric.Handle{
			"paused": func(r *rig, l *lane) fabric.Handle { return paused(r, l, 1, f) },
			"in flight": func(r *rig, l *lane) fabric.Handle {
				r.mute(1, 0)
				_, h, err := l.Atomic(1, 0, fabric.Atomic{Op: fabric.Swap, Operand: 9}, f)
				r.must("swap", err)
				return h
			},
		} {
			r := newRig(t, 3, Config{Lanes: 1})
			l := r.lane(0)
			h := start(r, l)
			r.nets[0].PeerDown(1, errKilled)
			var err error
			if f == 0 {
				_, err = l.Wait(r.ctx, h)
			} else {
				err = l.Flush(r.ctx)
			}
			r.down(name, err, 1, errKilled)
			var oe *fabric.OpError
			if !errors.As(err, &oe) || oe.Op != "swap" || oe.Rank != 1 || oe.Off != 0 || oe.Len != 8 {
				t.Errorf("%s, flags %d: %v", name, f, err)
			}
			r.must("flush", l.Flush(r.ctx))
			mixed(r, l, 50, []int{0, 2})
			r.idle(l)
		}
	}
}

func TestALaneClosesOverLoops(t *testing.T) {
	r := newRig(t, 2, Config{Lanes: 1, Depth: 8})
	for i := range 20 {
		l, implicit := r.lane(0), i%4 == 2
		if i%2 == 0 {
			paused(r, l, 1, fabric.Flag(i/2%2)*fabric.Implicit)
		}
		for k := range 5 {
			_, _, err := l.Atomic(1, 8, fabric.Atomic{Op: fabric.FetchXor, Operand: uint64(k)}, fabric.Flag(k%2)*fabric.Implicit)
			r.must("xor", err)
		}
		failed, ok := l.Close().(*fabric.OpError)
		if ok != implicit || ok && (failed.Rank != 1 || failed.Len != 8 || !errors.Is(failed, os.ErrClosed)) {
			t.Errorf("close over a loop that pauses, implicit: %v: %v", implicit, failed)
		}
	}
	l := r.lane(0)
	mixed(r, l, 100, []int{1})
	r.idle(l)
}

// Atomics whose result is not wanted share one place for it.
func TestUnseenAtomicsNeedNoBlocks(t *testing.T) {
	r := newRig(t, 2, Config{Depth: 64, Lanes: 1})
	l := r.lane(0)
	free := len(l.set.slab.small.free)
	var b fabric.Batch
	for range 50 {
		b.Atomic(1, 0, fabric.Atomic{Operand: 1}, nil)
	}
	r.must("post", l.Post(&b, nil, 0))
	if got := len(l.set.slab.small.free); got != free {
		t.Errorf("%d blocks free, %d before", got, free)
	}
	r.must("flush", l.Flush(r.ctx))
	if c := l.counters.Load(); r.word(1, 0) != 50 || c.Doorbells > 2 {
		t.Errorf("%d, with %d doorbells", r.word(1, 0), c.Doorbells)
	}
	r.idle(l)
}
