//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// The smaller the queue, the fewer requests may be silent: with every depth the
// bookkeeping must leave one that asks for a completion.
func TestEveryDepthDrains(t *testing.T) {
	for _, depth := range []int{1, 2, 3, 4, 5, 7, 16, 33} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			r := newRig(t, 2, Config{Depth: depth, Lanes: 1})
			l := r.lane(0)
			mixed(r, l, 600, []int{0, 1})
			r.idle(l)
		})
	}
}

// mixed does many operations of all kinds, in and out of batches, to the peers
// in turn, verifies the lane on the way, and at the end the content.
func mixed(r *rig, l *lane, n int, peers []int) {
	r.Helper()
	rng := rand.New(rand.NewPCG(3, uint64(n)))
	const slots, slotBytes = 16, 24 << 10 // of the target: one for each content in flight
	want := map[[2]int][]byte{}
	adds := map[int]uint64{}
	for _, peer := range peers {
		adds[peer] = r.word(peer, 0)
	}
	mem := r.memory(l, 1<<20)
	var b fabric.Batch
	var q fabric.Completions
	var tags []bool // told
	var hs []fabric.Handle
	batch := 0
	post := func() {
		r.must("post", l.Post(&b, &q, fabric.Flag(rng.IntN(4))))
		b.Reset()
	}
	for i := range n {
		peer := peers[rng.IntN(len(peers))]
		if batch == 0 && rng.IntN(8) == 0 {
			batch = 1 + rng.IntN(3*l.set.net.cfg.Depth)
		}
		f := fabric.Flag(rng.IntN(4))
		var h fabric.Handle
		var err error
		switch what := rng.IntN(6); {
		case batch > 0:
			r.piece(&b, mem, rng, peer, uint64(i), adds)
			if rng.IntN(4) == 0 {
				b.Tag(fabric.Tag(len(tags)))
				tags = append(tags, false)
			}
		case what == 0:
			_, h, err = l.Atomic(peer, 0, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, f)
			adds[peer]++
		case what == 1:
			_, h, err = l.Atomic(peer, 8, fabric.Atomic{Op: fabric.Swap, Operand: uint64(i)}, f)
		case what == 2:
			h, err = l.Get(peer, 16, make([]byte, 1+rng.IntN(slotBytes)), f)
		default:
			size := []int{1, 8, 100, 200, 300, 3000, slotBytes}[rng.IntN(7)]
			slot := [2]int{peer, rng.IntN(slots)}
			b := make([]byte, size)
			for k := range b {
				b[k] = byte(i + k)
			}
			want[slot] = append(b, want[slot][min(len(want[slot]), size):]...)
			h, err = l.Put(peer, 4096+uint64(slot[1]*slotBytes), b, f)
		}
		r.must("operation", err)
		if h != fabric.Done {
			hs = append(hs, h)
		}
		if batch > 0 {
			if batch--; batch == 0 {
				post()
			}
		}
		if i%37 == 0 {
			verify(r.TB, l.set)
		}
		if len(hs) > 50 {
			hs = r.collect(l, hs)
		}
	}
	post()
	r.collect(l, hs)
	r.must("flush", l.Flush(r.ctx))
	if q.InFlight() != 0 || q.Len() != len(tags) {
		r.Errorf("%d groups told and %d in flight of %d after a flush", q.Len(), q.InFlight(), len(tags))
	}
	for range tags {
		var c [1]fabric.Completion
		q.Take(c[:])
		if c[0].Err != nil || tags[c[0].Tag] {
			r.Fatalf("group %d, told: %v: %v", c[0].Tag, tags[c[0].Tag], c[0].Err)
		}
		tags[c[0].Tag] = true
	}
	r.must("close of memory", mem.Close())
	for slot, b := range want {
		got := r.segs[slot[0]][4096+slot[1]*slotBytes:][:len(b)]
		if string(got) != string(b) {
			r.Errorf("slot %v differs", slot)
		}
	}
	for peer, n := range adds {
		if got := r.word(peer, 0); got != n {
			r.Errorf("additions on rank %d gave %d, want %d", peer, got, n)
		}
	}
}

// piece adds a random piece to a batch. Puts go where nothing else is.
func (r *rig) piece(b *fabric.Batch, mem *fabric.Memory, rng *rand.Rand, peer int, i uint64, adds map[int]uint64) {
	n := uint64([]int{0, 1, 8, 100, 200, 300, 3000, 24 << 10}[rng.IntN(8)])
	const free = 400 << 10 // behind the slots
	switch rng.IntN(6) {
	case 0:
		b.Atomic(peer, 0, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, nil)
		adds[peer]++
	case 1:
		b.Atomic(peer, 8, fabric.Atomic{Op: fabric.Swap, Operand: i}, new(uint64))
	case 2:
		b.GetInto(peer, 16, mem, uint64(rng.IntN(1<<19)), n)
	case 3:
		b.Get(peer, 16, make([]byte, n))
	case 4:
		b.PutFrom(peer, free, mem, uint64(rng.IntN(1<<19)), n)
	default:
		b.Put(peer, free, make([]byte, n))
	}
}

func (r *rig) collect(l *lane, hs []fabric.Handle) []fabric.Handle {
	r.Helper()
	for _, h := range hs {
		_, err := l.Wait(r.ctx, h)
		r.must("wait", err)
	}
	return hs[:0]
}

// A completion queue smaller than what the links together may have out.
func TestALaneDoesNotOverrunItsCompletionQueue(t *testing.T) {
	r := newRig(t, 5, Config{Depth: 16, Lanes: 1})
	l := r.lane(0)
	for _, limit := range []int32{32, 8, 3, 2, 1} {
		l.set.size(16, limit)
		mixed(r, l, 400, []int{0, 1, 2, 3, 4})
		r.idle(l)
	}
}

// With one block of each size everything waits for blocks.
func TestAnExhaustedSlabMakesOperationsWait(t *testing.T) {
	for _, blocks := range []int{1, 2, 3} {
		r := newRig(t, 3, Config{Depth: 64, Lanes: 1})
		l := r.lane(0)
		s := &l.set.slab
		for _, list := range []*blockList{&s.small, &s.big} {
			list.free, list.total = list.free[:blocks], blocks
		}
		mixed(r, l, 500, []int{0, 1, 2})
		if l.counters.Stalls == 0 {
			t.Error("nothing waited")
		}
		r.idle(l)
	}
}

// One ring posts at most verbs.MaxBatch sub-chains: alternating peers fill it
// before the chain.
func TestBatchesToManyPeersArePostedInParts(t *testing.T) {
	const ranks = 6
	r := newRig(t, ranks, Config{Depth: 64, Lanes: 1})
	l := r.lane(0)
	var b fabric.Batch
	const each = 50
	for i := range each * ranks {
		b.Put(i%ranks, uint64(8*(i/ranks)), word(uint64(i)+1))
	}
	r.must("post", l.Post(&b, nil, 0))
	r.must("flush", l.Flush(r.ctx))
	for i := range each * ranks {
		if got := r.word(i%ranks, uint64(8*(i/ranks))); got != uint64(i)+1 {
			t.Fatalf("word %d of rank %d is %d", i/ranks, i%ranks, got)
		}
	}
	if c := l.counters.Load(); c.Doorbells < each*ranks/verbs.MaxBatch {
		t.Errorf("%d doorbells", c.Doorbells)
	}
	r.idle(l)
}

func TestSwapsUnderContentionLoseNothing(t *testing.T) {
	const lanes, rounds = 4, 60
	r := newRig(t, 2, Config{Depth: 3, Lanes: lanes})
	var all sync.WaitGroup
	taken := make(chan uint64, lanes*rounds)
	for i := range lanes {
		l := r.lane(i % 2)
		all.Go(func() {
			var hs []fabric.Handle // some in flight together, so that retries meet a full queue
			take := func() {
				for _, h := range hs {
					old, err := l.Wait(r.ctx, h)
					if err != nil {
						t.Error(err)
					}
					taken <- old
				}
				hs = hs[:0]
			}
			for k := range rounds {
				old, h, err := l.Atomic(1, 0, fabric.Atomic{Op: fabric.Swap, Operand: uint64(i*rounds + k + 1)}, 0)
				switch {
				case err != nil:
					t.Error(err)
				case h == fabric.Done:
					taken <- old
				default:
					hs = append(hs, h)
				}
				if len(hs) == 5 {
					take()
				}
			}
			take()
			verify(t, l.set)
		})
	}
	all.Wait()
	close(taken)
	seen := map[uint64]bool{r.word(1, 0): true}
	for v := range taken {
		if seen[v] {
			t.Fatalf("token %d was taken twice", v)
		}
		seen[v] = true
	}
	if len(seen) != lanes*rounds+1 {
		t.Fatalf("%d different tokens, want %d", len(seen), lanes*rounds+1)
	}
}

// A handle is spent by its collection; what is made up, or another lane's, must
// not free an operation a second time.
func TestSpentAndForeignHandlesAreRefused(t *testing.T) {
	r := newRig(t, 2, Config{Lanes: 2})
	l, other := r.lane(0), r.lane(0)
	open := func(l *lane) fabric.Handle {
		_, h, err := l.Atomic(1, 0, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
		r.must("atomic", err)
		return h
	}
	h := open(l)
	foreign := open(other)
	_, err := l.Wait(r.ctx, h)
	r.must("wait", err)
	for name, bad := range map[string]fabric.Handle{
		"spent":              h,
		"of the next tenant": h + 1<<32,
		"beyond the table":   h + 1000,
		"another lane's":     foreign,
		"without a place":    1 << 32,
		"with every bit set": 1<<64 - 1,
		"of generation zero": 1,
	} {
		if _, err := l.Wait(r.ctx, bad); !errors.Is(err, errSpent) {
			t.Errorf("Wait on a handle that is %s: %v", name, err)
		}
		if _, _, err := l.Test(bad); !errors.Is(err, errSpent) {
			t.Errorf("Test on a handle that is %s: %v", name, err)
		}
		verify(t, l.set)
	}
	_, err = other.Wait(r.ctx, foreign)
	r.must("wait", err)
}

// A lane that was closed with work in flight leaves an endpoint that serves the
// next lane as if nothing had been.
func TestLanesClosedInFlightCanBeOpenedAgainAtOnce(t *testing.T) {
	r := newRig(t, 2, Config{Lanes: 1, Depth: 8})
	src := make([]byte, 100<<10)
	for i := range 20 {
		l := r.lane(0)
		if c := l.counters.Load(); c != (fabric.Counters{}) {
			t.Fatalf("a new lane has counted %+v", c)
		}
		for k := range 10 {
			_, err := l.Put(1, 0, src[:1+i*k*100], fabric.Flag(k%2)*fabric.Implicit)
			r.must("put", err)
			_, _, err = l.Atomic(1, 1<<19, fabric.Atomic{Op: fabric.Swap, Operand: uint64(k)}, 0)
			r.must("swap", err)
		}
		r.must("close", l.Close())
		if _, err := l.Put(1, 0, src, 0); !errors.Is(err, os.ErrClosed) {
			t.Fatalf("put on a closed lane: %v", err)
		}
	}
	l := r.lane(0)
	mixed(r, l, 100, []int{1})
	r.idle(l)
}

func TestANetworkClosesOverWorkInFlight(t *testing.T) {
	r := newRig(t, 2, Config{Lanes: 2})
	for range 2 {
		l := r.lane(0)
		for range 30 {
			_, err := l.Put(1, 0, make([]byte, 60<<10), fabric.Implicit)
			r.must("put", err)
		}
		if err := r.nets[0].Close(); !errors.Is(err, fabric.ErrBusy) {
			t.Fatalf("close with an open lane: %v", err)
		}
		r.must("close of the lane", l.Close())
	}
	r.must("close", r.nets[0].Close())
	if _, err := r.nets[0].NewLane(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("new lane of a closed network: %v", err)
	}
}

// The first rank reaches itself as it does any other.
func TestARankReachesItself(t *testing.T) {
	r := newRig(t, 1, Config{Depth: 4})
	l := r.lane(0)
	mixed(r, l, 300, []int{0})
	r.idle(l)
}

// An implicit put longer than CopyMax may be sent from where it lies: its source
// is read late, but before Flush returns.
func TestLongImplicitPutsFromTheSegmentAreDirect(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	n := r.nets[0].Limits().CopyMax
	for i, want := range map[int]struct{ direct, bounced uint64 }{n: {0, 1}, n + 1: {1, 0}} {
		before := l.counters.Load()
		src := r.segs[0][:i]
		for k := range src {
			src[k] = byte(k * i)
		}
		_, err := l.Put(1, 4096, src, fabric.Implicit)
		r.must("put", err)
		if i <= n {
			clear(src) // promised
		}
		r.must("flush", l.Flush(r.ctx))
		for k := range i {
			if r.segs[1][4096+k] != byte(k*i) {
				t.Fatalf("%d bytes: byte %d is wrong", i, k)
			}
		}
		c := l.counters.Load()
		if c.Direct-before.Direct != want.direct || c.Bounced-before.Bounced != want.bounced {
			t.Errorf("%d bytes: %d direct, %d bounced", i, c.Direct-before.Direct, c.Bounced-before.Bounced)
		}
	}
}

// Flush ends with its context even when there is no room for the marker that it
// needs behind silent requests.
func TestFlushEndsWithItsContextWhenTheQueueIsFull(t *testing.T) {
	r := newRig(t, 2, Config{Depth: 4, Lanes: 1})
	l := r.lane(0)
	r.must("stop of the peer", r.nets[1].all[0].queues[0].qp.ToError())
	for range 3 {
		_, err := l.Put(1, 0, word(1), fabric.Implicit)
		r.must("put", err)
	}
	over, cancel := context.WithCancel(r.ctx)
	cancel()
	if err := l.Flush(over); !errors.Is(err, context.Canceled) && !errors.Is(err, fabric.ErrPeerDown) {
		t.Errorf("%v", err)
	}
	verify(t, l.set)
}
