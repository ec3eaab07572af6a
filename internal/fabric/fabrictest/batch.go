package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
)

// register maps memory and registers it, until the check ends.
func (g *group) register(l fabric.Lane, n int) *fabric.Memory {
	g.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	g.must("mapping", err)
	m, err := l.Register(b)
	g.must("register", err)
	g.Cleanup(func() {
		_ = l.Flush(g.ctx)
		_ = m.Close()
		if err := unix.Munmap(b); err != nil {
			g.Errorf("unmapping: %v", err)
		}
	})
	return m
}

// told takes n completions, in whatever order, and checks that no further one is to come.
func (g *group) told(l fabric.Lane, q *fabric.Completions, n int) []fabric.Completion {
	g.Helper()
	all := make([]fabric.Completion, n)
	for k := 0; k < n; {
		g.must("await", l.Await(g.ctx, q))
		k += q.Take(all[k:min(n, k+3)])
	}
	if q.Len() != 0 || q.InFlight() != 0 {
		g.Fatalf("%d completions were told, and then %d more with %d in flight", n, q.Len(), q.InFlight())
	}
	return all
}

// largeBatches mix peers, kinds, tags and implicit operations, and are larger than any queue.
func (g *group) largeBatches() {
	l := g.lane(0)
	n := min(g.many(), g.o.SegmentSize/16)
	mem := g.register(l, 16*n)
	var b fabric.Batch
	var q fabric.Completions
	groups := 0
	for i := range n {
		peer, at := i%g.o.Ranks, uint64(8*i)
		*wordAt(mem.Bytes(), 8*i) = uint64(i) + 1
		if i%7 < 4 {
			b.PutFrom(peer, at, mem, at, 8)
		} else {
			b.Put(peer, at, word8(uint64(i)+1))
		}
		if i%5 == 0 && i < n-9 {
			b.Tag(fabric.Tag(groups))
			groups++
		}
	}
	g.must("post", l.Post(&b, &q, 0))
	seen := make([]bool, groups)
	for _, c := range g.told(l, &q, groups) {
		if c.Err != nil || seen[c.Tag] {
			g.Fatalf("group %d: told before: %v, error %v", c.Tag, seen[c.Tag], c.Err)
		}
		seen[c.Tag] = true
	}
	g.must("flush", l.Flush(g.ctx))
	for i := range n {
		if got := *wordAt(g.ranks[i%g.o.Ranks].Segment, 8*i); got != uint64(i)+1 {
			g.Fatalf("word %d is %d", i, got)
		}
	}
	// All of it back, as one group to one peer after the other.
	b.Reset()
	for peer := range g.o.Ranks {
		for i := peer; i < n; i += g.o.Ranks {
			b.GetInto(peer, uint64(8*i), mem, uint64(8*(n+i)), 8)
		}
	}
	b.Tag(77)
	g.must("post", l.Post(&b, &q, fabric.Blocking))
	if c := g.told(l, &q, 1)[0]; c.Tag != 77 || c.Err != nil {
		g.Fatalf("%+v", c)
	}
	g.same("words that were gathered", mem.Bytes()[8*n:], mem.Bytes()[:8*n])
	g.identities(l.Counters().Load())
}

// gather brings pieces of several ranks, of odd lengths and none, into one buffer, and back by a
// scatter, in groups of every size up to beyond the depth of a queue.
func (g *group) gather() {
	l := g.lane(0)
	const most = 40
	mem := g.register(l, 1000*most)
	var b fabric.Batch
	var q fabric.Completions
	for _, n := range []int{1, 2, 3, 17, min(g.many(), 700)} {
		for r := range g.ranks {
			copy(g.ranks[r].Segment, g.random(2*n*most))
		}
		var want []byte
		type place struct {
			peer    int
			off, at uint64
			n       uint64
		}
		var places []place
		for i := range n {
			p := place{g.rng.IntN(g.o.Ranks), uint64(i * most), uint64(len(want)), uint64(g.rng.IntN(most))}
			want = append(want, g.ranks[p.peer].Segment[p.off:p.off+p.n]...)
			places = append(places, p)
			b.GetInto(p.peer, p.off, mem, p.at, p.n)
		}
		b.Tag(1)
		g.must("gather", l.Post(&b, &q, 0))
		b.Reset() // it is ours again
		g.must("group", g.told(l, &q, 1)[0].Err)
		g.same(fmt.Sprintf("gather of %d pieces", n), mem.Bytes()[:len(want)], want)
		for i := range want {
			mem.Bytes()[i] ^= 0x5A
		}
		for _, p := range places {
			b.PutFrom(p.peer, uint64(n*most)+p.off, mem, p.at, p.n)
		}
		b.Tag(2)
		g.must("scatter", l.Post(&b, &q, 0))
		b.Reset()
		g.must("group", g.told(l, &q, 1)[0].Err)
		for _, p := range places {
			off := uint64(n*most) + p.off
			g.same(fmt.Sprintf("scatter of %d pieces", n), g.ranks[p.peer].Segment[off:off+p.n], mem.Bytes()[p.at:p.at+p.n])
		}
	}
}

// twoParts build batches on one lane side by side; each is told its own groups, whose tags are the
// same. A batch that is not posted does nothing.
func (g *group) twoParts() {
	l := g.lane(0)
	clear(g.ranks[1].Segment[:1<<15])
	var b [3]fabric.Batch
	var q [2]fabric.Completions
	for i := range 100 {
		for part := range b {
			b[part].Put(1, uint64(10000*part+8*i), word8(uint64(part)+1))
			if part < 2 && i%10 == 9 {
				b[part].Tag(fabric.Tag(i % 20)) // tags are used again
			}
		}
	}
	g.must("post", l.Post(&b[1], &q[1], 0))
	g.must("post", l.Post(&b[0], &q[0], 0))
	for part := range q {
		count := map[fabric.Tag]int{}
		for _, c := range g.told(l, &q[part], 10) {
			g.must("group", c.Err)
			count[c.Tag]++
		}
		if count[9] != 5 || count[19] != 5 {
			g.Fatalf("part %d was told %v", part, count)
		}
	}
	g.must("flush", l.Flush(g.ctx))
	for part, want := range []uint64{1, 2, 0} {
		for i := range 100 {
			if got := *wordAt(g.ranks[1].Segment, 10000*part+8*i); got != want {
				g.Fatalf("word %d of part %d is %d, want %d", i, part, got, want)
			}
		}
	}
	// The same batch again.
	b[2].Tag(3)
	for range 2 {
		g.must("post", l.Post(&b[2], &q[0], 0))
	}
	for _, c := range g.told(l, &q[0], 2) {
		if c.Tag != 3 || c.Err != nil {
			g.Fatalf("%+v", c)
		}
	}
	// Groups without operations, or with nothing to move.
	b[0].Reset()
	b[0].Tag(4)
	b[0].Untag() // of nothing
	b[0].Put(1, 0, nil)
	b[0].Get(1, 8, nil)
	b[0].Tag(5)
	b[0].Put(1, 16, word8(99))
	b[0].Untag()
	b[0].Put(1, 8, word8(1))
	b[0].Put(1, 0, nil)
	b[0].Tag(6)
	g.must("post", l.Post(&b[0], &q[0], 0))
	tags := map[fabric.Tag]bool{}
	for _, c := range g.told(l, &q[0], 3) {
		tags[c.Tag] = c.Err == nil
	}
	if !tags[4] || !tags[5] || !tags[6] {
		g.Fatalf("groups without much to do: %v", tags)
	}
	g.must("flush", l.Flush(g.ctx))
	if got := *wordAt(g.ranks[1].Segment, 16); got != 99 {
		g.Fatalf("a put without a tag between groups: the word is %d", got)
	}
	g.identities(l.Counters().Load())
}

// badBatches are refused as a whole, wherever in them the mistake is.
func (g *group) badBatches() {
	l := g.lane(0)
	foreign := g.register(g.lane(1), 64)
	mem, gone := g.register(l, 64), g.register(l, 64)
	g.must("close of memory", gone.Close())
	g.must("second close of memory", gone.Close())
	size := uint64(len(g.ranks[1].Segment))
	isBounds := func(err error) bool { return errors.As(err, new(*fabric.BoundsError)) }
	isRank := func(err error) bool { return errors.As(err, new(*fabric.RankError)) }
	isMemory := func(err error) bool { return errors.Is(err, fabric.ErrMemory) }
	isAlign := func(err error) bool { return errors.As(err, new(*fabric.AlignError)) }
	for what, bad := range map[string]struct {
		build func(b *fabric.Batch)
		is    func(error) bool
	}{
		"put behind the end":     {func(b *fabric.Batch) { b.Put(1, size-7, word8(1)) }, isBounds},
		"get that overflows":     {func(b *fabric.Batch) { b.Get(1, math.MaxUint64-3, make([]byte, 8)) }, isBounds},
		"empty get behind":       {func(b *fabric.Batch) { b.Get(1, size+1, nil) }, isBounds},
		"put of a memory behind": {func(b *fabric.Batch) { b.PutFrom(1, size, mem, 0, 1) }, isBounds},
		"no such rank":           {func(b *fabric.Batch) { b.Put(g.o.Ranks, 0, word8(1)) }, isRank},
		"a negative rank":        {func(b *fabric.Batch) { b.Get(math.MinInt, 0, nil) }, isRank},
		"a misaligned atomic":    {func(b *fabric.Batch) { b.Atomic(1, 4, fabric.Atomic{Operand: 1}, nil) }, isAlign},
		"an atomic behind":       {func(b *fabric.Batch) { b.Atomic(1, size, fabric.Atomic{Operand: 1}, nil) }, isBounds},
		"an unknown atomic": {func(b *fabric.Batch) {
			b.Atomic(1, 0, fabric.Atomic{Op: 255}, nil)
		}, func(err error) bool { return errors.Is(err, fabric.ErrNoAtomic) }},
		"a range outside":        {func(b *fabric.Batch) { b.GetInto(1, 0, mem, 60, 5) }, isMemory},
		"a range that overflows": {func(b *fabric.Batch) { b.PutFrom(1, 0, mem, math.MaxUint64, 2) }, isMemory},
		"an empty range outside": {func(b *fabric.Batch) { b.PutFrom(1, 0, mem, 65, 0) }, isMemory},
		"another rank's memory":  {func(b *fabric.Batch) { b.GetInto(1, 0, foreign, 0, 8) }, isMemory},
		"memory that is closed": {func(b *fabric.Batch) {
			b.GetInto(1, 0, gone, 0, 8)
		}, func(err error) bool { return isMemory(err) && errors.Is(err, os.ErrClosed) }},
		"a tag nobody is told of": {func(b *fabric.Batch) { b.Tag(1) }, func(err error) bool { return err != nil }},
	} {
		var b fabric.Batch
		var q fabric.Completions
		told := &q
		for i := range 70 { // more than one chain
			b.Put(1, uint64(8*i), word8(0xBAD))
			if what == "a tag nobody is told of" {
				told = nil
			} else if i%9 == 0 {
				b.Tag(1)
			}
		}
		bad.build(&b)
		clear(g.ranks[1].Segment[:70*8])
		before := l.Counters().Load()
		if err := l.Post(&b, told, 0); !bad.is(err) {
			g.Fatalf("%s: %v", what, err)
		}
		g.must("flush", l.Flush(g.ctx))
		g.same("segment after a batch with "+what, g.ranks[1].Segment[:70*8], make([]byte, 70*8))
		after := l.Counters().Load()
		if after.Puts != before.Puts || after.Errors != before.Errors || q.InFlight() != 0 || q.Len() != 0 {
			g.Fatalf("%s: counted %+v, before %+v; %d groups in flight", what, after, before, q.InFlight())
		}
		b.Reset() // a mistake is forgotten with the batch
		b.Put(1, 0, word8(5))
		g.must("post after a mistake", l.Post(&b, nil, 0))
		g.must("flush", l.Flush(g.ctx))
	}
}

// memoryLife: memory in use cannot be closed; nor is it needed for the network's end.
func (g *group) memoryLife() {
	l := g.lane(0)
	n := min(g.o.SegmentSize/2, 1<<20)
	var b fabric.Batch
	var q fabric.Completions
	for range 5 {
		m := g.register(l, n)
		for i := range 8 {
			b.GetInto(1, uint64(i), m, 0, uint64(n-8))
		}
		b.Tag(1)
		g.must("post", l.Post(&b, &q, 0))
		b.Reset()
		switch err := m.Close(); {
		case err == nil && q.InFlight() > 0:
			g.Fatalf("memory was closed under operations in flight")
		case err != nil && !errors.Is(err, fabric.ErrBusy):
			g.Fatalf("close of memory in use: %v", err)
		}
		g.must("group", g.told(l, &q, 1)[0].Err)
		g.must("close of memory", m.Close())
		b.GetInto(1, 0, m, 0, 8)
		if err := l.Post(&b, &q, 0); !errors.Is(err, os.ErrClosed) {
			g.Fatalf("post with closed memory: %v", err)
		}
		b.Reset()
	}
	// One lane's registration serves another lane of the network, and outlives both.
	m := g.register(l, 64)
	copy(m.Bytes(), "registered once")
	if limit := g.ranks[0].Net.Limits().Lanes; limit != 1 {
		other := g.lane(0)
		b.PutFrom(1, 0, m, 0, 15)
		g.must("post", other.Post(&b, nil, 0))
		g.must("flush", other.Flush(g.ctx))
		g.same("segment", g.ranks[1].Segment[:15], []byte("registered once"))
		g.must("close of the other lane", other.Close())
	}
	g.must("close of the lane", l.Close())
	g.must("close of the network", g.ranks[0].Net.Close())
	g.must("close of memory behind the network", m.Close())
}

// flushNames: a flush names what a dead peer has lost; a group has its own error only.
func (g *group) flushNames() {
	l := g.lane(0)
	data := g.random(100)
	cause := errors.New("it was killed")
	for i := range 20 {
		for _, peer := range []int{1, 0} {
			_, err := l.Put(peer, uint64(100*i), data, fabric.Implicit)
			g.must("put", err)
		}
		g.must("flush", l.Flush(g.ctx))
		g.same("segment after the flush", g.ranks[1].Segment[100*i:100*i+100], data)
	}
	g.ranks[0].Net.PeerDown(1, cause)
	var b fabric.Batch
	var q fabric.Completions
	b.Put(0, 0, data)
	b.Put(1, 64, data)
	b.Untag()
	b.Put(0, 0, data) // its group does not have the error of what is without a tag in front of it
	b.Tag(1)
	g.must("post", l.Post(&b, &q, 0))
	g.must("group", g.told(l, &q, 1)[0].Err)
	b.Reset()
	b.Put(1, 64, data)
	for round := range 2 {
		if round > 0 {
			g.must("post", l.Post(&b, nil, 0))
		}
		var oe *fabric.OpError
		err := l.Flush(g.ctx)
		if !errors.As(err, &oe) || !errors.Is(err, fabric.ErrPeerDown) || !errors.Is(err, cause) {
			g.Fatalf("flush after a death: %v", err)
		}
		if oe.Rank != 1 || oe.Off != 64 || oe.Len != 100 || oe.Op != "put" {
			g.Fatalf("the error says %+v", oe)
		}
		g.must("flush after the error", l.Flush(g.ctx))
	}
}

// awaits end with their contexts, and at once when there is nothing to wait for.
func (g *group) awaits() {
	l := g.lane(0)
	var q fabric.Completions
	if err := l.Await(g.ctx, &q); !errors.Is(err, fabric.ErrIdle) {
		g.Fatalf("await with nothing in flight: %v", err)
	}
	cause := errors.New("enough")
	over, cancel := context.WithCancelCause(g.ctx)
	cancel(cause)
	src := g.random(g.o.SegmentSize / 4)
	for range 10 {
		var b fabric.Batch
		b.Put(1, 0, src)
		b.Tag(1)
		g.must("post", l.Post(&b, &q, 0))
		if err := l.Await(over, &q); err != nil && !errors.Is(err, cause) {
			g.Fatalf("await with a cancelled context: %v", err)
		}
		if err := l.Flush(over); err != nil && !errors.Is(err, cause) {
			g.Fatalf("flush with a cancelled context: %v", err)
		}
		g.must("group", g.told(l, &q, 1)[0].Err)
	}
	g.must("flush", l.Flush(g.ctx))
	g.same("segment", g.ranks[1].Segment[:len(src)], src)
}

// deathInBatches: groups to the dead rank fail, or were complete; others do not, and each is told
// once, also those posted afterwards.
func (g *group) deathInBatches() {
	l := g.lane(0)
	n := min(64<<10, g.o.SegmentSize/4)
	mem := g.register(l, n)
	var q fabric.Completions
	cause := errors.New("it was killed")
	const rounds = 30
	for round := range rounds {
		var b fabric.Batch
		for i, peer := range []int{1, 2, 1, 0} {
			if round%3 == 0 {
				b.GetInto(peer, uint64(8*i), mem, 0, uint64(n))
			} else {
				b.PutFrom(peer, uint64(8*i), mem, uint64(i), uint64(n-8))
			}
			b.Atomic(peer, 0, fabric.Atomic{Operand: 1}, nil)
			b.Put(peer, 8, word8(1))
			b.Tag(fabric.Tag(peer))
		}
		if round == rounds/2 {
			g.ranks[0].Net.PeerDown(1, cause)
		}
		g.must("post", l.Post(&b, &q, 0))
	}
	count := map[fabric.Tag]int{}
	failed := 0
	for _, c := range g.told(l, &q, 4*rounds) {
		count[c.Tag]++
		var oe *fabric.OpError
		switch {
		case c.Err == nil:
		case c.Tag != 1 || !errors.As(c.Err, &oe) || oe.Rank != 1 || !errors.Is(c.Err, fabric.ErrPeerDown) ||
			!errors.Is(c.Err, cause):
			g.Fatalf("group to rank %d: %v", c.Tag, c.Err)
		default:
			failed++
		}
	}
	if count[1] != 2*rounds || count[2] != rounds || count[0] != rounds || failed < rounds {
		g.Fatalf("told %v, %d failed", count, failed)
	}
	if err := l.Flush(g.ctx); err != nil && !errors.Is(err, fabric.ErrPeerDown) {
		g.Fatalf("flush: %v", err)
	}
	g.identities(l.Counters().Load())
	g.must("close of memory", mem.Close())
}
