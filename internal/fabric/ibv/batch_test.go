//go:build linux && cgo

package ibv

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// calls is how often a lane crossed into C to post or poll.
func calls(l *lane) uint64 { return l.set.tx.bell.Stats().Rings }

// await7 waits until the device has filled memory with sevens, and its completions are there.
func (r *rig) await7(b []byte) {
	r.Helper()
	for bytes.Count(b, []byte{7}) < len(b) {
		if r.ctx.Err() != nil {
			r.Fatal("the device does not fill the memory")
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
}

// A chain of gets from one peer is one call into C, one doorbell and one completion. Where each has
// a tag of its own, all of them are harvested by one call.
func TestAChainOfGetsIsOneCall(t *testing.T) {
	const n, size = 64, 64
	for _, each := range []bool{false, true} {
		r := newRig(t, 2, Config{})
		l := r.lane(0)
		mem := r.memory(l, n*size)
		copy(r.segs[1], bytes.Repeat([]byte{7}, 2*n*size))
		var b fabric.Batch
		var q fabric.Completions
		for i := range uint64(n) {
			b.GetInto(1, 2*i*size, mem, (n-1-i)*size, size)
			if each || i == n-1 {
				b.Tag(fabric.Tag(i))
			}
		}
		before, at, completions := l.counters.Load(), calls(l), l.set.tx.bell.Stats().Completions
		r.must("post", l.Post(&b, &q, 0))
		c := l.counters.Load()
		if got := calls(l) - at; got != 1 || c.Doorbells-before.Doorbells != 1 || c.Requests-before.Requests != n {
			t.Errorf("%d calls, %d doorbells, %d work requests", got, c.Doorbells-before.Doorbells, c.Requests-before.Requests)
		}
		r.await7(mem.Bytes())
		at = calls(l)
		r.must("poll", l.Poll())
		told := make([]fabric.Completion, n)
		want := 1
		if each {
			want = n
		}
		if got := q.Take(told); got < want {
			r.must("second poll", l.Poll())
			if got += q.Take(told); got != want {
				t.Errorf("%d groups were told, want %d", got, want)
			}
		}
		if got := calls(l) - at; got > 2 {
			t.Errorf("%d calls to harvest", got)
		}
		if got := l.set.tx.bell.Stats().Completions - completions; got != uint64(want) {
			t.Errorf("%d completions, want %d", got, want)
		}
		if c := l.counters.Load(); c.Bounced != 0 || c.Direct-before.Direct != n || c.Completed-before.Completed != n {
			t.Errorf("%+v", c)
		}
		r.idle(l)
	}
}

// In a group for one peer only the last asks for a completion, whatever the pieces are.
func TestOnlyTheLastOfAGroupIsSignaled(t *testing.T) {
	for name, piece := range map[string]func(b *fabric.Batch, m, other *fabric.Memory, i uint64){
		"puts and gets": func(b *fabric.Batch, m, other *fabric.Memory, i uint64) {
			b.GetInto(1, i*64, m, i*64, 64)
			b.PutFrom(1, 8192+i*256, m, 4096, 256)
		},
		"two memories": func(b *fabric.Batch, m, other *fabric.Memory, i uint64) {
			b.GetInto(1, i*64, m, i*64, 64)
			b.GetInto(1, i*64, other, i*64, 64)
		},
		"unregistered": func(b *fabric.Batch, m, other *fabric.Memory, i uint64) {
			b.Get(1, i*64, make([]byte, 64))
			b.GetInto(1, i*64, other, i*64, 64)
		},
		"atomics": func(b *fabric.Batch, m, other *fabric.Memory, i uint64) {
			b.Atomic(1, 0, fabric.Atomic{Operand: 1}, nil)
		},
		"small puts": func(b *fabric.Batch, m, other *fabric.Memory, i uint64) { b.Put(1, i*8, word(i)) },
	} {
		r := newRig(t, 2, Config{})
		l := r.lane(0)
		m, other := r.memory(l, 8192), r.memory(l, 8192)
		var b fabric.Batch
		var q fabric.Completions
		for i := range uint64(7) {
			piece(&b, m, other, i)
		}
		b.Tag(1)
		completions := l.set.tx.bell.Stats().Completions
		r.must("post", l.Post(&b, &q, 0))
		r.must("await", l.Await(r.ctx, &q))
		if got := l.set.tx.bell.Stats().Completions - completions; got != 1 {
			t.Errorf("%s: %d completions", name, got)
		}
		r.idle(l)
	}
}

// Merged requests that follow each other to one peer are unsignaled, but for as many as could fill
// a queue, however shallow.
func TestAlternatingMergedRequestsDrain(t *testing.T) {
	for _, depth := range []int{1, 2, 4, 6, 16, 64} {
		r := newRig(t, 2, Config{Depth: depth, Lanes: 1})
		l := r.lane(0)
		m, other := r.memory(l, 1<<16), r.memory(l, 1<<16)
		for _, run := range []int{1, 2, 3, 15} {
			var b fabric.Batch
			var q fabric.Completions
			for i := range 40 * run {
				if i/run%2 == 0 {
					b.GetInto(1, 0, m, uint64(100*i), 100)
				} else {
					b.GetInto(1, 0, other, uint64(100*i), 100)
				}
			}
			b.Tag(1)
			r.must("post", l.Post(&b, &q, 0))
			r.must("await", l.Await(r.ctx, &q))
			verify(t, l.set)
		}
		r.must("flush", l.Flush(r.ctx))
		r.idle(l)
	}
}

// The last piece of a group may be one that posts nothing: what is before it completes even so.
func TestAGroupThatEndsWithNothingIsTold(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	for _, first := range []int{8, 200} {
		var b fabric.Batch
		var q fabric.Completions
		b.Put(1, 0, make([]byte, first))
		b.Put(1, 0, nil)
		b.Tag(1)
		r.must("post", l.Post(&b, &q, 0))
		r.must("await", l.Await(r.ctx, &q))
		var c [1]fabric.Completion
		if q.Take(c[:]); c[0].Tag != 1 || c[0].Err != nil {
			t.Errorf("%+v", c)
		}
	}
	r.must("flush", l.Flush(r.ctx))
	r.idle(l)
}

// Groups that end with nothing ask for no completion before the ring, and may fill a queue so.
func TestGroupsThatEndWithNothingDrain(t *testing.T) {
	for _, depth := range []int{16, 24, 64} {
		r := newRig(t, 2, Config{Depth: depth, Lanes: 1})
		l := r.lane(0)
		var b fabric.Batch
		var q fabric.Completions
		for range 6 {
			for i := range uint64(depth/2 - 1) {
				b.Put(1, 8*i, word(i))
			}
			b.Atomic(1, 4096, fabric.Atomic{Operand: 1}, nil)
			b.Put(1, 0, nil)
			b.Tag(1)
		}
		r.must("post", l.Post(&b, &q, 0))
		r.must("flush", l.Flush(r.ctx))
		if q.Len() != 6 || r.word(1, 4096) != 6 {
			t.Errorf("depth %d: %d of 6 groups were told, %d additions", depth, q.Len(), r.word(1, 4096))
		}
		r.idle(l)
	}
}

// A lane that is closed with a batch in flight tells nothing any more, and keeps its memory until
// the device is done with it, or the network closes.
func TestALaneClosedOverABatchKeepsItsMemory(t *testing.T) {
	r := newRig(t, 2, quick(Config{Lanes: 1}))
	l := r.lane(0)
	b, q := new(fabric.Batch), new(fabric.Completions)
	mem := r.memory(l, 4096)
	r.mute(1, 0)
	b.GetInto(1, 0, mem, 0, 4096)
	b.Get(1, 0, make([]byte, 100))
	b.Tag(1)
	r.must("post", l.Post(b, q, 0))
	if err := mem.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close of memory in use: %v", err)
	}
	_ = l.Close()
	if err := mem.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close of memory of a closed lane: %v", err)
	}
	l = r.lane(0) // waits until the device has given up
	if q.Len() != 0 || q.InFlight() != 1 {
		t.Errorf("a closed lane told %d groups, %d are in flight", q.Len(), q.InFlight())
	}
	r.must("close of memory", mem.Close())
	mem = r.memory(l, 64)
	r.must("close", l.Close())
	r.must("close of the network", r.nets[0].Close())
	r.must("close of memory that the network ended", mem.Close())
}

// A made-up handle must not reach the record of a group or of its pieces.
func TestHandlesOfABatchAreRefused(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	var b fabric.Batch
	var q fabric.Completions
	b.Get(1, 0, make([]byte, 300))
	b.Tag(1)
	r.must("post", l.Post(&b, &q, 0))
	for i := range l.set.ops.all {
		h := l.set.ops.handle(int32(i))
		l.Abandon(h)
		if _, err := l.Wait(r.ctx, h); !errors.Is(err, errSpent) {
			t.Errorf("%v", err)
		}
	}
	r.must("await", l.Await(r.ctx, &q))
	r.idle(l)
}
