//go:build linux && cgo

package ibv

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/segment"
)

// patience bounds each wait that only a broken network would not end.
const patience = 45 * time.Second

const segmentBytes = 1 << 20

// rig is a job of ranks in this process, over one device.
type rig struct {
	testing.TB
	ctx  context.Context
	nets []*Network
	segs [][]byte
}

// newRig connects n ranks, each configured alike.
func newRig(t testing.TB, n int, cfg Config) *rig {
	t.Helper()
	r := &rig{TB: t}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	r.ctx = ctx
	ranks := makeRanks(t, n, segmentBytes, cfg)
	for _, rank := range ranks {
		r.nets = append(r.nets, rank.Net.(*Network))
		r.segs = append(r.segs, rank.Segment)
	}
	return r
}

// makeRanks makes ranks and connects them; they end with the test.
func makeRanks(t fabrictest.T, n, size int, cfg Config) []fabrictest.Rank {
	if tb, ok := t.(testing.TB); ok {
		cfg.Device = rdmatest.Device(tb)
	}
	cfg.GIDIndex = -1
	ranks, nets := make([]fabrictest.Rank, n), make([]fabric.Network, n)
	for r := range n {
		m, err := segment.Map(segment.Config{Size: int64(size)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		cfg := cfg
		cfg.Rank, cfg.Size, cfg.Segment = r, n, m
		nets[r], err = New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nets[r].Close(); err != nil {
				t.Error(err)
			}
			noRegistrationIsLeft(t, nets[r].(*Network))
		})
		ranks[r] = fabrictest.Rank{Net: nets[r], Segment: m.Bytes()}
	}
	if err := fabrictest.Connect(t.Context(), nets); err != nil {
		t.Fatal(err)
	}
	return ranks
}

// noRegistrationIsLeft checks that each registration that an operation took was given back.
func noRegistrationIsLeft(t fabrictest.T, n *Network) {
	if n.cache == nil {
		return
	}
	if s := n.cache.Stats(); s.Puts != s.Gets || s.Live+s.Dead != 0 || s.Registered != s.Deregistered {
		t.Errorf("registrations after Close: %+v", s)
	}
}

// lane opens a lane that is verified and closed at the end of the test.
func (r *rig) lane(rank int) *lane {
	r.Helper()
	opened, err := r.nets[rank].NewLane()
	r.must("new lane", err)
	l := opened.(*lane)
	r.Cleanup(func() {
		if l.ep != nil {
			verify(r.TB, l.ep)
		}
		_ = l.Close()
	})
	return l
}

func (r *rig) must(what string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

// word is a word of a rank's segment.
func (r *rig) word(rank int, off uint64) uint64 {
	return atomic.LoadUint64(wordAt(r.segs[rank], off))
}

func wordAt(seg []byte, off uint64) *uint64 { return (*uint64)(unsafe.Pointer(&seg[off])) }

// await waits until a word of a rank's segment has a value.
func (r *rig) await(rank int, off, v uint64) {
	r.Helper()
	for r.word(rank, off) != v {
		if r.ctx.Err() != nil {
			r.Fatalf("word %d of rank %d is %d, want %d", off, rank, r.word(rank, off), v)
		}
		time.Sleep(time.Millisecond)
	}
}

func word(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// verify checks the endpoint's books: every work request, block and operation
// is in one place, and the sums agree.
func verify(t testing.TB, e *endpoint) {
	t.Helper()
	used, free := make([]bool, len(e.wrs)), 0
	blocks := 0
	sum := int32(0)
	holds := make([]int32, len(e.holds))
	active := map[int32]bool{}
	for i, r := range e.active {
		if active[r] || int(e.links[r].place) != i {
			t.Errorf("link %d stands twice in the list of active links, or at another place than it says", r)
		}
		active[r] = true
	}
	for r := range e.links {
		k := &e.links[r]
		if k.qp == nil {
			continue
		}
		n, last := int32(0), none
		for i := k.head; i != none && n <= e.limit; i = e.wrs[i].next {
			if used[i] || e.wrs[i].link != k.rank {
				t.Fatalf("work request %d is in two lists", i)
			}
			used[i], last = true, i
			if e.wrs[i].block != none {
				blocks++
			}
			if h := e.wrs[i].hold; h != 0 {
				holds[h-1]++
				if e.wrs[i].dst == nil {
					t.Errorf("work request %d has a registration, and nothing to end its use by", i)
				}
			}
			n++
		}
		if n != k.outstanding || last != k.tail || (n > 0) != active[int32(r)] || k.silent > n {
			t.Errorf("link %d lists %d work requests to %d, and says %d to %d, %d silent, active %v", r, n, last, k.outstanding, k.tail, k.silent, active[int32(r)])
		}
		sum += n
	}
	for i := e.freeWR; i != none && free <= len(e.wrs); i = e.wrs[i].next {
		if used[i] {
			t.Fatalf("work request %d is free and in use", i)
		}
		free++
	}
	if sum != e.outstanding || int(sum)+free != len(e.wrs) {
		t.Errorf("%d work requests out, %d free of %d; the endpoint says %d out", sum, free, len(e.wrs), e.outstanding)
	}
	if got := len(e.slab.small.free) + len(e.slab.big.free) + blocks; got != e.slab.small.total+e.slab.big.total {
		t.Errorf("%d blocks free and in use of %d", got, e.slab.small.total+e.slab.big.total)
	}
	for i := e.freeHold; i != none; i = e.holds[i].next {
		if holds[i] != 0 {
			t.Fatalf("hold %d is free and in use, or free twice", i)
		}
		holds[i] = -1
	}
	for i, n := range holds {
		if n == 0 || max(n, 0) != e.holds[i].parts {
			t.Errorf("hold %d is used by %d work requests, and says %d", i, n, e.holds[i].parts)
		}
	}
	freeOps := map[int32]bool{}
	for i := e.freeOp; i != none; i = e.ops[i].next {
		if freeOps[i] || e.ops[i].live {
			t.Fatalf("operation %d is free twice, or free and live", i)
		}
		freeOps[i] = true
	}
	for i := range e.ops {
		if !e.ops[i].live && !freeOps[int32(i)] {
			t.Errorf("operation %d is lost", i)
		}
	}
}

// idle checks that nothing is left of what was asked for.
func (r *rig) idle(l *lane) {
	r.Helper()
	verify(r.TB, l.ep)
	if l.ep.outstanding != 0 {
		r.Errorf("%d work requests are out", l.ep.outstanding)
	}
	for i := range l.ep.ops {
		if l.ep.ops[i].live {
			r.Errorf("operation %d is live", i)
		}
	}
	if c := l.counters.Load(); c.Puts+c.Gets+c.Atomics != c.Completed+c.Errors {
		r.Errorf("%d puts + %d gets + %d atomics are not %d completed + %d errors", c.Puts, c.Gets, c.Atomics, c.Completed, c.Errors)
	}
}
