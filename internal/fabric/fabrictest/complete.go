package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// handles posts more than a lane keeps in flight and collects the results in
// another order, by Test and by Wait.
func (g *group) handles() {
	l := g.lane(0)
	n := g.many()
	seg := g.ranks[1].Segment
	n = min(n, len(seg)/8)
	hs, olds := make([]fabric.Handle, n), make([]uint64, n)
	for i := range n {
		*wordAt(seg, 8*i) = uint64(1000 + i)
	}
	live := make(map[fabric.Handle]bool)
	for i := range n {
		var err error
		olds[i], hs[i], err = l.Atomic(1, uint64(8*i), fabric.Atomic{Op: fabric.FetchAdd, Operand: uint64(i)}, 0)
		g.must("fetch-add", err)
		if hs[i] != fabric.Done && live[hs[i]] {
			g.Fatalf("handle %#x names two operations", uint64(hs[i]))
		}
		live[hs[i]] = true
	}
	for _, i := range g.rng.Perm(n) {
		if hs[i] != fabric.Done {
			olds[i] = g.collect(l, hs[i], i%2 == 0)
		}
		if olds[i] != uint64(1000+i) {
			g.Fatalf("operation %d returned %d, want %d", i, olds[i], 1000+i)
		}
	}
	for i := range n {
		if got := *wordAt(seg, 8*i); got != uint64(1000+2*i) {
			g.Fatalf("word %d is %d, want %d", i, got, 1000+2*i)
		}
	}
	if _, done, err := l.Test(fabric.Done); !done || err != nil {
		g.Fatalf("Test(Done) is %v, %v", done, err)
	}
	_, err := l.Wait(g.ctx, fabric.Done)
	g.must("Wait(Done)", err)
}

// collect waits for a handle, by polling with Test if asked to.
func (g *base) collect(l fabric.Lane, h fabric.Handle, poll bool) uint64 {
	g.Helper()
	for poll {
		old, done, err := l.Test(h)
		g.must("test", err)
		if done {
			return old
		}
		g.must("an operation that does not complete", g.ctx.Err())
	}
	old, err := l.Wait(g.ctx, h)
	g.must("wait", err)
	return old
}

// implicit operations need no handle; Flush completes them all.
func (g *group) implicit() {
	l := g.lane(0)
	n := min(g.many(), g.o.SegmentSize/256)
	want := g.random(n * 100)
	got := make([]byte, len(want))
	for round := range 2 {
		for i := range n {
			f := fabric.Implicit
			if i%3 == 0 {
				f |= fabric.Blocking
			}
			h, err := l.Put(1, uint64(100*i), want[100*i:100*i+100], f)
			g.must("implicit put", err)
			if h != fabric.Done {
				g.Fatalf("an implicit put has handle %#x", uint64(h))
			}
		}
		g.must("flush", l.Flush(g.ctx))
		g.same("segment after flush", g.ranks[1].Segment[:len(want)], want)
		for i := range n {
			h, err := l.Get(1, uint64(100*i), got[100*i:100*i+100], fabric.Implicit)
			g.must("implicit get", err)
			if h != fabric.Done {
				g.Fatalf("an implicit get has handle %#x", uint64(h))
			}
		}
		g.must("flush", l.Flush(g.ctx))
		g.same("buffers after flush", got, want)
		want[round]++
	}
}

// blocking operations may return a handle all the same.
func (g *group) blocking() {
	l := g.lane(0)
	for _, n := range []int{1, 8, 100, 5000, 100_000} {
		n = min(n, g.o.SegmentSize/2)
		data := g.random(n)
		h, err := l.Put(1, 8, data, fabric.Blocking)
		g.finish(l, "blocking put", h, err)
		g.same("segment", g.ranks[1].Segment[8:8+n], data)
		got := make([]byte, n)
		h, err = l.Get(1, 8, got, fabric.Blocking)
		g.finish(l, "blocking get", h, err)
		g.same("buffer", got, data)
	}
	*wordAt(g.ranks[1].Segment, 0) = 5
	old, h, err := l.Atomic(1, 0, fabric.Atomic{Op: fabric.Swap, Operand: 6}, fabric.Blocking)
	g.must("blocking atomic", err)
	if h != fabric.Done {
		old, err = l.Wait(g.ctx, h)
		g.must("wait", err)
	}
	if old != 5 {
		g.Fatalf("swap returned %d, want 5", old)
	}
}

// sourceReuse overwrites a put's source as early as the contract allows, in
// and out of batches.
func (g *group) sourceReuse() {
	l := g.lane(0)
	top := min(g.ranks[0].Net.Limits().CopyMax, 64<<10, g.o.SegmentSize/8)
	for _, n := range []int{1, 8, 32, 200, 1000, 4096, 20_000, top} {
		src := make([]byte, min(n, top))
		if len(src) == 0 {
			continue
		}
		for i := range 4 {
			fill(src, byte(i)+1)
			var b fabric.Batch
			b.Put(1, uint64(i*len(src)), src)
			g.must("post", l.Post(&b, nil, 0))
			fill(src, 0xEE)
		}
		for i := range 4 {
			fill(src, byte(i)+11)
			h, err := l.Put(1, uint64((4+i)*len(src)), src, 0)
			g.must("put", err)
			fill(src, 0xEE)
			_, err = l.Wait(g.ctx, h)
			g.must("wait", err)
		}
		g.must("flush", l.Flush(g.ctx))
		for i := range 4 {
			fill(src, byte(i)+1)
			g.same(fmt.Sprintf("batched put of %d bytes", len(src)), g.ranks[1].Segment[i*len(src):(i+1)*len(src)], src)
			fill(src, byte(i)+11)
			g.same(fmt.Sprintf("put of %d bytes", len(src)), g.ranks[1].Segment[(4+i)*len(src):(5+i)*len(src)], src)
		}
	}
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// waitContext: a wait that its context ends leaves the operation going, and returns
// the context's cause.
func (g *group) waitContext() {
	l := g.lane(0)
	over, cancel := context.WithCancelCause(g.ctx)
	cause := errors.New("enough")
	cancel(cause)
	src := g.random(g.o.SegmentSize / 4)
	for range 20 {
		h, err := l.Put(1, 0, src, 0)
		g.must("put", err)
		if _, err = l.Wait(over, h); err == nil {
			continue // it was complete: the handle is spent
		}
		if !errors.Is(err, cause) {
			g.Fatalf("wait with a cancelled context: %v", err)
		}
		_, err = l.Wait(g.ctx, h)
		g.must("second wait", err)
	}
	if err := l.Flush(over); err != nil && !errors.Is(err, cause) {
		g.Fatalf("flush with a cancelled context: %v", err)
	}
	g.must("flush", l.Flush(g.ctx))
	g.same("segment", g.ranks[1].Segment[:len(src)], src)
}

// abandoned: an operation whose result is not wanted is done all the same, and Flush waits
// for it. The handles are spent.
func (g *group) abandoned() {
	l := g.lane(0)
	n := min(g.many(), 100)
	src, dst := g.random(n*64), make([]byte, n*64)
	copy(g.ranks[1].Segment[len(src):], src)
	var hs []fabric.Handle
	for i := range n {
		part := 64 * i
		h, err := l.Put(1, uint64(part), src[part:part+64], 0)
		g.must("put", err)
		hs = append(hs, h)
		h, err = l.Get(1, uint64(len(src)+part), dst[part:part+64], 0)
		g.must("get", err)
		hs = append(hs, h)
	}
	for _, h := range hs {
		l.Abandon(h)
	}
	g.must("flush", l.Flush(g.ctx))
	g.same("segment", g.ranks[1].Segment[:len(src)], src)
	g.identities(l.Counters().Load())
	for _, h := range hs {
		l.Abandon(h)
		if h == fabric.Done {
			continue
		}
		if _, err := l.Wait(g.ctx, h); err == nil {
			g.Fatalf("an abandoned handle can be waited for")
		}
	}
}

// waitWord: every condition, a word that changes, a context and a stop.
func (g *group) waitWord() {
	l := g.lane(0)
	word := wordAt(g.ranks[0].Segment, 64)
	for c := fabric.Equal; c <= fabric.Less; c++ {
		for _, v := range []uint64{4, 5, 6, 1 << 63} {
			*word = v
			if c.Holds(v, 5) {
				g.must("wait for a word that is right", l.WaitWord(g.ctx, word, c, 5, nil))
				continue
			}
			stopped := errors.New("stop")
			if err := l.WaitWord(g.ctx, word, c, 5, func() error { return stopped }); !errors.Is(err, stopped) {
				g.Fatalf("condition %d on %d: %v, want the error of stop", c, v, err)
			}
		}
	}
	*word = 0
	over, cancel := g.host.WithTimeout(g.ctx, 10*time.Millisecond)
	defer cancel()
	if err := l.WaitWord(over, word, fabric.Equal, 1, nil); !errors.Is(err, context.DeadlineExceeded) {
		g.Fatalf("wait with a deadline: %v", err)
	}
	cause := errors.New("enough")
	ended, end := context.WithCancelCause(g.ctx)
	end(cause)
	if err := l.WaitWord(ended, word, fabric.Equal, 1, nil); !errors.Is(err, cause) {
		g.Fatalf("wait with a context that has a cause: %v", err)
	}
	// A peer's put ends the wait, also one that has gone to sleep.
	peer := g.lane(1)
	g.each(2, func(ctx context.Context, side int) error {
		if side == 0 {
			return l.WaitWord(ctx, word, fabric.Equal, 9, nil)
		}
		g.host.Sleep(30 * time.Millisecond)
		h, err := peer.Put(0, 64, word8(9), 0)
		if err == nil {
			_, err = peer.Wait(ctx, h)
		}
		return err
	})
	if got := atomic.LoadUint64(word); got != 9 {
		g.Fatalf("word is %d", got)
	}
}
