//go:build linux && cgo

package ibv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/parttest"
)

// mortal is a lane that does random operations while some of its peers die.
type mortal struct {
	*rig
	rng    *rand.Rand
	l      *lane
	mem    *fabric.Memory
	killed []int
	seq    byte
	next   []uint64 // by peer: where the next put goes
	sums   []uint64 // by peer: what its word has in the end
	wants  []func() // checks once all has ended, of peers that live

	told     fabric.Completions
	groups   map[fabric.Tag][]done
	implicit []done
	tag      fabric.Tag
	free     uint64 // of mem
}

// done is an operation, as an error names it, and what holds after its success.
type done struct {
	op     string
	peer   int
	off, n uint64
	check  func()
}

const (
	mortalReads = segmentBytes / 2 // behind it peers are read, in front written
	mortalBytes = 1 << 18
)

func (m *mortal) lives(peer int) bool { return !slices.Contains(m.killed, peer) }

// piece adds a random operation to a batch.
func (m *mortal) piece(b *fabric.Batch) done {
	d := done{peer: 1 + m.rng.IntN(len(m.nets)-1), check: func() {}}
	d.n = 1 + m.rng.Uint64N([]uint64{8, 300, 6000}[m.rng.IntN(3)])
	registered := m.rng.IntN(2) == 0 && m.free+d.n <= mortalBytes
	at := m.free
	if registered {
		m.free += d.n
	}
	switch m.rng.IntN(3) {
	case 0:
		d.op, d.off = "put", m.next[d.peer]
		m.next[d.peer] += d.n
		m.seq++
		src := bytes.Repeat([]byte{m.seq}, int(d.n))
		if registered {
			copy(m.mem.Bytes()[at:], src)
			b.PutFrom(d.peer, d.off, m.mem, at, d.n)
		} else {
			b.Put(d.peer, d.off, src)
		}
		m.wants = append(m.wants, func() {
			if m.lives(d.peer) && !bytes.Equal(m.segs[d.peer][d.off:d.off+d.n], src) {
				m.Errorf("a put of %d bytes at %d of rank %d is not there", d.n, d.off, d.peer)
			}
		})
	case 1:
		d.op, d.off = "get", mortalReads+m.rng.Uint64N(segmentBytes-mortalReads-d.n)
		dst := make([]byte, d.n)
		if registered {
			dst = m.mem.Bytes()[at : at+d.n]
			b.GetInto(d.peer, d.off, m.mem, at, d.n)
		} else {
			b.Get(d.peer, d.off, dst)
		}
		d.check = func() {
			if !bytes.Equal(dst, m.segs[d.peer][d.off:d.off+d.n]) {
				m.Errorf("a get of %d bytes at %d of rank %d brought others", d.n, d.off, d.peer)
			}
		}
	case 2:
		a := fabric.Atomic{Operand: 1 + m.rng.Uint64N(9)}
		if m.rng.IntN(2) == 0 { // a loop
			a.Type = fabric.Uint32
		}
		d.op, d.off, d.n = "fetch-add", 0, a.Type.Size()
		m.sums[d.peer] += a.Operand
		b.Atomic(d.peer, 0, a, []*uint64{nil, new(uint64)}[m.rng.IntN(2)])
	}
	return d
}

// post posts a batch of random groups.
func (m *mortal) post() {
	var b fabric.Batch
	for range 1 + m.rng.IntN(4) {
		var all []done
		for range m.rng.IntN(12) {
			all = append(all, m.piece(&b))
		}
		if m.rng.IntN(3) > 0 {
			m.tag++
			b.Tag(m.tag)
			m.groups[m.tag] = all
		} else {
			b.Untag()
			m.implicit = append(m.implicit, all...)
		}
	}
	m.must("post", m.l.Post(&b, &m.told, []fabric.Flag{0, fabric.Blocking}[m.rng.IntN(2)]))
}

// take looks at the groups that were told.
func (m *mortal) take() {
	var some [5]fabric.Completion
	for n := m.told.Take(some[:]); n > 0; n = m.told.Take(some[:]) {
		for _, c := range some[:n] {
			all, ok := m.groups[c.Tag]
			if !ok {
				m.Fatalf("group %d was told twice", c.Tag)
			}
			delete(m.groups, c.Tag)
			if c.Err != nil {
				m.named(c.Err, all)
				continue
			}
			for _, d := range all {
				d.check()
			}
		}
	}
}

// named checks that an error is that of an operation of all, on a dead peer.
func (m *mortal) named(err error, all []done) {
	e := (*fabric.OpError)(nil)
	if !errors.As(err, &e) || !errors.Is(err, fabric.ErrPeerDown) || m.lives(e.Rank) {
		m.Errorf("with %v dead: %v", m.killed, err)
		return
	}
	if !slices.ContainsFunc(all, func(d done) bool {
		return d.op == e.Op && d.peer == e.Rank && d.off >= e.Off && d.n <= e.Len && d.off-e.Off <= e.Len-d.n
	}) {
		m.Errorf("no operation of these is in the range of: %v", err)
	}
}

// flush checks the errors of implicit operations: one a dead peer.
func (m *mortal) flush(err error) {
	if err == nil {
		return
	}
	errs := []error{err}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		errs = all.Unwrap()
	}
	if len(errs) > len(m.killed) {
		m.Errorf("more errors than dead peers: %v", err)
	}
	for _, err := range errs {
		m.named(err, m.implicit)
	}
}

func (m *mortal) step() {
	ended, cancel := context.WithCancel(m.ctx)
	cancel()
	switch m.rng.IntN(8) {
	case 0, 1, 2, 3:
		m.post()
	case 4:
		m.flush(m.l.Flush(m.ctx))
	case 5:
		if err := m.l.Flush(ended); err != nil && !errors.Is(err, context.Canceled) {
			m.flush(err)
		}
	case 6:
		if m.told.InFlight() > 0 && m.told.Len() == 0 {
			m.must("await", m.l.Await(m.ctx, &m.told))
		}
	case 7:
		m.must("poll", m.l.Poll())
	}
	m.take()
}

// Peers that die at any step, found by this lane or elsewhere, fail the groups and implicit
// operations that name them, each once and with its place; everything else goes on.
func TestRandomDeathsConcernNobodyElse(t *testing.T) {
	for seed := range uint64(max(4, parttest.Of(12))) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomDeaths(t, seed) })
	}
}

func randomDeaths(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 19))
	cfg := Config{Lanes: 1, Depth: []int{2, 5, 16, 128}[rng.IntN(4)], Eager: []int{-1, 2, 8}[rng.IntN(3)], Connections: rng.IntN(3)}
	m := &mortal{rig: newRig(t, 5, cfg), rng: rng, groups: map[fabric.Tag][]done{}, sums: make([]uint64, 5), next: slices.Repeat([]uint64{8}, 5)}
	m.l = m.lane(0)
	m.mem = m.memory(m.l, mortalBytes)
	for _, s := range m.segs {
		for i := range s[mortalReads:] {
			s[mortalReads+i] = byte(rng.Uint32())
		}
	}
	var reports sync.WaitGroup
	defer reports.Wait()
	for step := range 40 {
		if m.rng.IntN(15) == 0 && len(m.killed) < 3 {
			peer := 1 + m.rng.IntN(4)
			m.killed = append(m.killed, peer)
			if q := m.l.set.queues[peer]; q != nil && q.qp != nil && m.rng.IntN(2) == 0 {
				m.must("stop of a queue pair", q.qp.ToError()) // this end finds out
			} else {
				reports.Go(func() { m.nets[0].PeerDown(peer, errKilled) })
			}
		}
		if m.step(); t.Failed() {
			t.Fatalf("%+v, step %d, %v dead", cfg, step, m.killed)
		}
	}
	m.flush(m.l.Flush(m.ctx))
	m.take()
	if len(m.groups) > 0 || m.told.InFlight() > 0 {
		t.Errorf("%d groups were not told, %d are in flight", len(m.groups), m.told.InFlight())
	}
	for _, want := range m.wants {
		want()
	}
	for peer := 1; peer < 5; peer++ {
		if got := m.word(peer, 0); m.lives(peer) && got != m.sums[peer] {
			t.Errorf("the word of rank %d is %d, want %d", peer, got, m.sums[peer])
		}
	}
	m.must("second flush", m.l.Flush(m.ctx))
	m.idle(m.l)
	m.must("close of the memory", m.mem.Close())
	if t.Failed() {
		t.Fatalf("%+v, %v dead", cfg, m.killed)
	}
}
