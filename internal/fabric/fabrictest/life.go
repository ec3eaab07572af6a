package fabrictest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
)

// countersAddUp: bytes exactly as asked for, operations posted = completed +
// failed when nothing is in flight.
func (g *group) countersAddUp() {
	l := g.lane(0)
	if c := l.Counters().Load(); c != (fabric.Counters{}) {
		g.Fatalf("a new lane has counted %+v", c)
	}
	var want fabric.Counters
	for i := range 200 {
		n := g.rng.IntN(10_000)
		b := make([]byte, n)
		var err error
		var h fabric.Handle
		switch i % 5 {
		case 0, 1:
			h, err = l.Put(i%g.o.Ranks, 0, b, fabric.Flag(i%5)*fabric.Implicit)
			want.Puts++
			want.PutBytes += uint64(n)
		case 2, 3:
			h, err = l.Get(i%g.o.Ranks, 0, b, fabric.Flag(i%5-2)*fabric.Implicit)
			want.Gets++
			want.GetBytes += uint64(n)
		case 4:
			_, h, err = l.Atomic(i%g.o.Ranks, 8, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
			want.Atomics++
		}
		g.finish(l, "operation", h, err)
	}
	g.must("flush", l.Flush(g.ctx))
	c := l.Counters().Load()
	if c.Puts != want.Puts || c.Gets != want.Gets || c.Atomics != want.Atomics ||
		c.PutBytes != want.PutBytes || c.GetBytes != want.GetBytes {
		g.Fatalf("counted %+v, want %+v", c, want)
	}
	g.identities(c)
	if c.Errors != 0 {
		g.Fatalf("%d errors were counted, there were none", c.Errors)
	}
}

// identities hold whenever nothing is in flight.
func (g *base) identities(c fabric.Counters) {
	g.Helper()
	if c.Puts+c.Gets+c.Atomics != c.Completed+c.Errors {
		g.Fatalf("%d puts + %d gets + %d atomics are not %d completed + %d errors",
			c.Puts, c.Gets, c.Atomics, c.Completed, c.Errors)
	}
}

// allocations: none, whatever the way an operation takes.
func (g *group) allocations() {
	l := g.lane(0)
	small, large := make([]byte, 8), make([]byte, min(32<<10, g.o.SegmentSize))
	mem := g.register(l, 4096)
	var b fabric.Batch
	var q fabric.Completions
	var told [2]fabric.Completion
	var old uint64
	bad := error(nil)
	wait := func(h fabric.Handle, err error) {
		if err == nil {
			_, err = l.Wait(g.ctx, h)
		}
		if err != nil {
			bad = err
		}
	}
	for what, f := range map[string]func(){
		"put of 8 bytes": func() { wait(l.Put(1, 0, small, 0)) },
		"get of 8 bytes": func() { wait(l.Get(1, 0, small, 0)) },
		"blocking get":   func() { wait(l.Get(1, 0, small, fabric.Blocking)) },
		"large put":      func() { wait(l.Put(1, 0, large, 0)) },
		"large get":      func() { wait(l.Get(1, 0, large, 0)) },
		"fetch-add":      func() { _, h, err := l.Atomic(1, 0, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0); wait(h, err) },
		"fetch-xor": func() {
			_, h, err := l.Atomic(1, 4, fabric.Atomic{Op: fabric.FetchXor, Type: fabric.Uint32, Operand: 1}, 0)
			wait(h, err)
		},
		"implicit atomics + flush": func() {
			for t := fabric.Uint64; t <= fabric.Float64; t++ {
				_, h, err := l.Atomic(1, 8*uint64(t), fabric.Atomic{Type: t, Operand: 1}, fabric.Implicit)
				wait(h, err)
			}
			wait(fabric.Done, l.Flush(g.ctx))
		},
		"implicit put + flush": func() { wait(l.Put(1, 0, small, fabric.Implicit)); wait(fabric.Done, l.Flush(g.ctx)) },
		"batch of puts": func() {
			b.Reset()
			for range 4 {
				b.Put(1, 0, small)
			}
			wait(fabric.Done, l.Post(&b, nil, 0))
			wait(fabric.Done, l.Flush(g.ctx))
		},
		"batch with tags": func() {
			b.Reset()
			for i := range uint64(6) {
				b.GetInto(1, 8*i, mem, 8*i, 8)
				b.Get(1, 8*i, small)
				b.Atomic(1, 8*i, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, &old)
				b.Atomic(1, 8*i, fabric.Atomic{Op: fabric.FetchXor, Type: fabric.Int32, Operand: 1}, nil)
				b.Tag(fabric.Tag(i))
			}
			wait(fabric.Done, l.Post(&b, &q, fabric.Blocking))
			for q.InFlight() > 0 || q.Len() > 0 {
				wait(fabric.Done, l.Await(g.ctx, &q))
				q.Take(told[:])
			}
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 && !(g.o.LargeAllocates && strings.HasPrefix(what, "large")) {
			g.Errorf("%s: %v allocations", what, n)
		}
	}
	g.must("an operation", bad)
}

// peerDown: the rank that is down fails, with its name and cause; others work.
func (g *group) peerDown() {
	if g.o.Ranks < 3 {
		g.Fatalf("this check needs 3 ranks")
	}
	l := g.lane(0)
	g.put(l, 1, 0, word8(1))
	cause, later := errors.New("it was killed"), errors.New("reported again")
	g.ranks[0].Net.PeerDown(1, cause)
	g.ranks[0].Net.PeerDown(1, later)
	_, perr := g.try(l.Put(1, 0, make([]byte, 8), 0))(l)
	_, gerr := g.try(l.Get(1, 0, make([]byte, 8), 0))(l)
	_, h, aerr := l.Atomic(1, 0, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
	_, aerr = g.try(h, aerr)(l)
	for op, err := range map[string]error{"put": perr, "get": gerr, "atomic": aerr} {
		var pd *fabric.PeerDownError
		if !errors.As(err, &pd) || !errors.Is(err, fabric.ErrPeerDown) || !errors.Is(err, cause) {
			g.Fatalf("%s to a rank that is down: got %v, want a *PeerDownError with the first cause", op, err)
		}
		if pd.Rank != 1 {
			g.Fatalf("%s: the error names rank %d, want 1", op, pd.Rank)
		}
	}
	if l.Mapped(1) != nil {
		g.Fatalf("memory of a rank that is down is handed out")
	}
	_ = l.Flush(g.ctx) // may report it or not, but returns
	g.must("the group's timeout", g.ctx.Err())
	for _, peer := range []int{0, 2} {
		g.put(l, peer, 8, word8(7))
		if got := *wordAt(g.ranks[peer].Segment, 8); got != 7 {
			g.Fatalf("rank %d has %d, want 7", peer, got)
		}
	}
	fresh := g.lane(0)
	if _, err := g.try(fresh.Put(1, 0, []byte{1}, 0))(fresh); !errors.Is(err, fabric.ErrPeerDown) {
		g.Fatalf("a lane opened after the death: %v, want ErrPeerDown", err)
	}
	g.must("flush", fresh.Flush(g.ctx))
}

// try follows an operation to its end, wherever its error comes out.
func (g *base) try(h fabric.Handle, err error) func(fabric.Lane) (uint64, error) {
	return func(l fabric.Lane) (uint64, error) {
		if err != nil {
			return 0, err
		}
		return l.Wait(g.ctx, h)
	}
}

// peerDownInFlight: what was posted before ends, one way or the other, and is
// counted.
func (g *group) peerDownInFlight() {
	l := g.lane(0)
	n := min(g.many(), 300)
	src := g.random(min(64<<10, g.o.SegmentSize))
	var hs []fabric.Handle
	for i := range n {
		if i == n/2 {
			g.ranks[0].Net.PeerDown(1, errors.New("it was killed"))
		}
		h, err := l.Put(1, 0, src, fabric.Flag(i%2)*fabric.Implicit)
		if err != nil && !errors.Is(err, fabric.ErrPeerDown) {
			g.Fatalf("put: %v", err)
		}
		if err == nil {
			hs = append(hs, h)
		}
	}
	for _, h := range hs {
		if _, err := l.Wait(g.ctx, h); err != nil && !errors.Is(err, fabric.ErrPeerDown) {
			g.Fatalf("wait: %v", err)
		}
	}
	if err := l.Flush(g.ctx); err != nil && !errors.Is(err, fabric.ErrPeerDown) {
		g.Fatalf("flush: %v", err)
	}
	g.must("second flush", l.Flush(g.ctx))
	g.identities(l.Counters().Load())
}

// laneLimit: as many lanes as promised, then ErrNoLane, then again.
func (g *group) laneLimit() {
	n := g.ranks[0].Net
	limit := n.Limits().Lanes
	count := limit
	if limit == 0 {
		count = 50
	}
	for range 2 {
		var ls []fabric.Lane
		for range count {
			ls = append(ls, g.lane(0))
		}
		if limit > 0 {
			extra, err := n.NewLane()
			if err == nil {
				_ = extra.Close()
			}
			if !errors.Is(err, fabric.ErrNoLane) {
				g.Fatalf("lane %d of %d: %v, want ErrNoLane", limit+1, limit, err)
			}
		}
		for i, l := range ls {
			want := g.random(8)
			g.put(l, 1, uint64(8*i), want)
			g.same("segment after a put of one lane of many", g.ranks[1].Segment[8*i:8*i+8], want)
			g.must("close of a lane", l.Close())
			g.must("second close of a lane", l.Close())
			g.closedLane(l)
		}
	}
}

// closedLane refuses work.
func (g *base) closedLane(l fabric.Lane) {
	g.Helper()
	_, perr := l.Put(1, 0, []byte{1}, 0)
	_, gerr := l.Get(1, 0, make([]byte, 1), 0)
	_, _, aerr := l.Atomic(1, 0, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
	_, rerr := l.Register(make([]byte, 8))
	for op, err := range map[string]error{
		"put": perr, "get": gerr, "atomic": aerr, "register": rerr, "flush": l.Flush(g.ctx),
		"post": l.Post(new(fabric.Batch), nil, 0), "await": l.Await(g.ctx, new(fabric.Completions)),
	} {
		if !errors.Is(err, os.ErrClosed) {
			g.Fatalf("%s on a closed lane: %v, want os.ErrClosed", op, err)
		}
	}
}

// closing: not with lanes open, then once and for all.
func (g *group) closing() {
	for r, rank := range g.ranks {
		l := g.lane(r)
		if err := rank.Net.Close(); !errors.Is(err, fabric.ErrBusy) {
			g.Fatalf("close with an open lane: %v, want ErrBusy", err)
		}
		g.put(l, (r+1)%g.o.Ranks, 0, word8(1)) // the refusal broke nothing
		g.must("close of the lane", l.Close())
	}
	n := g.ranks[0].Net
	if err := n.Connect(g.ctx, make([][]byte, g.o.Ranks), nil); err == nil {
		g.Fatalf("a second Connect was accepted")
	}
	lim := n.Limits()
	if n.Name() == "" || lim.Depth < 1 || lim.CopyMax < 0 || lim.Lanes < 0 {
		g.Fatalf("name %q, limits %+v", n.Name(), lim)
	}
	for r, rank := range g.ranks {
		g.must(fmt.Sprintf("close of rank %d", r), rank.Net.Close())
		g.must(fmt.Sprintf("second close of rank %d", r), rank.Net.Close())
		if _, err := rank.Net.NewLane(); err == nil {
			g.Fatalf("a closed network opened a lane")
		}
	}
}
