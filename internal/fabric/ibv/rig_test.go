//go:build linux && cgo

package ibv

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/segment"
)

// testTimeout bounds each wait that only a broken network would not end.
const testTimeout = 45 * time.Second

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
	return newRigOf(t, n, segmentBytes, cfg)
}

// newRigOf has segments of another size.
func newRigOf(t testing.TB, n, size int, cfg Config) *rig {
	t.Helper()
	r := &rig{TB: t}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	r.ctx = ctx
	for _, rank := range makeRanks(t, n, size, cfg) {
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
	if n.mem.cache == nil {
		return
	}
	if s := n.mem.cache.Stats(); s.Puts != s.Gets || s.Live+s.Dead != 0 || s.Registered != s.Deregistered {
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
		if l.set != nil {
			verify(r.TB, l.set)
		}
		_ = l.Close()
	})
	return l
}

// memory maps and registers memory, until the end of the test.
func (r *rig) memory(l *lane, n int) *fabric.Memory {
	r.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	r.must("mapping", err)
	m, err := l.Register(b)
	r.must("register", err)
	r.Cleanup(func() {
		if err := m.Close(); err == nil { // else the network ends it
			r.must("unmapping", unix.Munmap(b))
		}
	})
	return m
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

// verifySender checks that every request of a sender is free or in one of the queues, and that the
// sums agree. waiting are requests that were taken and not added. It returns the requests in
// flight.
func verifySender(t testing.TB, s *sender, queues []*sendQueue, waiting ...list) (flight []int32) {
	t.Helper()
	used := make([]bool, len(s.requests))
	walk := func(l list) (all []int32) {
		i := l.head
		for range l.n {
			if used[i] {
				t.Fatalf("request %d is in two lists", i)
			}
			used[i] = true
			all = append(all, i)
			if len(all) == int(l.n) && i != l.tail {
				t.Errorf("a list ends at request %d, not at %d", i, l.tail)
			}
			i = s.requests[i].next
		}
		return all
	}
	out, total := int32(0), 0
	for _, q := range queues {
		wrs, probes, all := int32(0), 0, walk(q.flight)
		for _, i := range all {
			r := &s.requests[i]
			wrs += r.wrs
			if r.probe {
				probes++
			}
			if r.queue != q {
				t.Errorf("request %d is in the queue to rank %d, and says rank %d", i, q.rank, r.queue.rank)
			}
		}
		if wrs != q.wrs || q.silent > q.flight.n || probes > 1 || (probes == 1) != q.probing {
			t.Errorf("rank %d: %d work requests in flight, the queue says %d; %d of %d requests silent, %d probes", q.rank, wrs, q.wrs, q.silent, q.flight.n, probes)
		}
		out += wrs
		flight = append(flight, all...)
	}
	total = len(flight)
	for _, l := range waiting {
		total += len(walk(l))
	}
	free := len(walk(list{head: s.free, n: s.unused, tail: lastFree(s)}))
	if out != s.out || free+total != len(s.requests) {
		t.Errorf("%d work requests in flight, the sender says %d; %d requests free and %d in use of %d", out, s.out, free, total, len(s.requests))
	}
	return flight
}

func lastFree(s *sender) (i int32) {
	for n, next := s.unused, s.free; n > 0; n-- {
		i, next = next, s.requests[next].next
	}
	return i
}

// verify checks a queue set: every request, block, registration and operation is in one place, and
// the sums agree.
func verify(t testing.TB, e *queueSet) {
	t.Helper()
	var queues []*sendQueue
	for _, q := range e.queues {
		if q != nil {
			queues = append(queues, q)
		}
	}
	blocks, holds := 0, make([]int32, len(e.holds.all))
	for _, i := range verifySender(t, &e.tx, queues) {
		if e.tx.requests[i].probe || e.parts[i].bare {
			continue
		}
		if e.parts[i].block != none {
			blocks++
		}
		if h := e.parts[i].hold; h != none {
			holds[h]++
		}
	}
	if got := len(e.slab.small.free) + len(e.slab.big.free) + blocks; got != e.slab.small.total+e.slab.big.total {
		t.Errorf("%d blocks free and in use of %d", got, e.slab.small.total+e.slab.big.total)
	}
	for i := e.holds.free; i != none; i = e.holds.all[i].next {
		if holds[i] != 0 {
			t.Fatalf("hold %d is free and in use, or free twice", i)
		}
		holds[i] = -1
	}
	for i, n := range holds {
		if n == 0 || max(n, 0) != e.holds.all[i].parts {
			t.Errorf("hold %d is used by %d work requests, and says %d", i, n, e.holds.all[i].parts)
		}
	}
	free := map[int32]bool{}
	for i := e.ops.free; i != none; i = e.ops.all[i].next {
		if free[i] || e.ops.all[i].live {
			t.Fatalf("operation %d is free twice, or free and live", i)
		}
		free[i] = true
	}
	for i := range e.ops.all {
		if !e.ops.all[i].live && !free[int32(i)] {
			t.Errorf("operation %d is lost", i)
		}
	}
}

// idle checks that nothing is left of what was asked for.
func (r *rig) idle(l *lane) {
	r.Helper()
	verify(r.TB, l.set)
	if l.set.tx.out != 0 {
		r.Errorf("%d work requests are in flight", l.set.tx.out)
	}
	for i := range l.set.ops.all {
		if l.set.ops.all[i].live {
			r.Errorf("operation %d is live", i)
		}
	}
	if c := l.counters.Load(); c.Puts+c.Gets+c.Atomics != c.Completed+c.Errors {
		r.Errorf("%d puts + %d gets + %d atomics are not %d completed + %d errors", c.Puts, c.Gets, c.Atomics, c.Completed, c.Errors)
	}
}
