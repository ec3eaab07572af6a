package heap

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

var (
	operations = flag.Int("operations", 0, "operations of the random worlds (default 50000; a tenth where parttest.Of says so)")
	firstSeed  = flag.Uint64("seed", 1, "of the first random world")
)

const region = "conduit.heap"

// member is one rank of a test.
type member struct {
	env.Env
	h     *Heap
	team  *coll.Team
	lanes env.Lanes
	close func()
}

// specs are the regions of a job with heaps of size bytes.
func specs(t testing.TB, ranks int, size uint64) []env.Spec {
	s, err := coll.Spec(ranks, coll.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return []env.Spec{s, {Name: region, Size: size, Align: alloc.PageSize}}
}

// join makes a rank's heap.
func join(ctx context.Context, e env.Env, cfg Config, msg am.Config) (*member, error) {
	table := am.NewLibraryTable()
	h := Declare(table)
	l, err := envtest.OpenLibrary(e, table, msg)
	if err != nil {
		return nil, err
	}
	teams, err := coll.Open(e, coll.Config{})
	if err != nil {
		return nil, err
	}
	cfg.Mem = e.Region(region).Bytes
	if err := h.Open(e, teams.All(), cfg); err != nil {
		return nil, err
	}
	m := &member{Env: e, h: h, team: teams.All()}
	if m.lanes, err = e.NewLanes(); err != nil {
		return nil, err
	}
	m.close = func() {
		_ = h.Close(ctx)
		_ = m.lanes.Close()
		_ = teams.Close()
		_ = l.Close()
	}
	return m, m.team.Barrier(ctx)
}

// world runs f on simulated ranks with heaps of size bytes.
func world(t testing.TB, cfg sim.Config, size uint64, hc Config, f func(ctx context.Context, m *member) error) *envtest.World {
	t.Helper()
	if cfg.MaxTime == 0 {
		cfg.MaxTime = 120 * time.Second
	}
	w, err := envtest.NewWorld(cfg, specs(t, cfg.Ranks, size)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(func(ctx context.Context, e env.Env) error {
		m, err := join(ctx, e, hc, am.Config{Credits: 16, Replies: 16, Sends: 16, ReplySends: 8})
		if err != nil {
			return err
		}
		defer m.close()
		err = f(ctx, m)
		if err == nil {
			err = m.team.Barrier(ctx)
		}
		return err
	}); err != nil {
		t.Fatalf("seed %d: %v", cfg.Seed, err)
	}
	return w
}

// oracle knows all blocks of a job, as its ranks are goroutines that run one at a time.
type oracle struct {
	size  uint64
	heaps []*Heap
	live  []block
	ends  []map[uint64]uint64 // by rank: begin and end of each block
	ops   int
}

type block struct {
	p      Ptr
	n      uint64
	global bool
	single bool // a global block of one rank
	tag    uint64
	at     int // the rank where the tag is
}

func newOracle(ranks int, size uint64) *oracle {
	o := &oracle{size: size, heaps: make([]*Heap, ranks), ends: make([]map[uint64]uint64, ranks)}
	for r := range o.ends {
		o.ends[r] = make(map[uint64]uint64)
	}
	return o
}

// ranks are those in whose memory a block lies.
func (o *oracle) ranks(b block) []int {
	if !b.global || b.single {
		return []int{b.p.Rank()}
	}
	all := make([]int, len(o.heaps))
	for i := range all {
		all[i] = i
	}
	return all
}

func (o *oracle) add(b block) error {
	for _, r := range o.ranks(b) {
		for begin, end := range o.ends[r] {
			if b.p.off < end && begin < b.p.off+b.n {
				return fmt.Errorf("block %v of %d bytes overlaps %#x to %#x of rank %d", b.p, b.n, begin, end, r)
			}
		}
		if b.p.off+b.n > o.size {
			return fmt.Errorf("block %v of %d bytes ends outside", b.p, b.n)
		}
		o.ends[r][b.p.off] = b.p.off + b.n
	}
	o.live = append(o.live, b)
	return nil
}

func (o *oracle) remove(i int) block {
	b := o.live[i]
	o.live[i] = o.live[len(o.live)-1]
	o.live = o.live[:len(o.live)-1]
	for _, r := range o.ranks(b) {
		delete(o.ends[r], b.p.off)
	}
	return b
}

// verify checks the invariants I1 to I5.
func (o *oracle) verify() error {
	for _, h := range o.heaps {
		if h == nil {
			return nil // not all have opened theirs
		}
	}
	r := o.heaps[0].root
	b := &r.bound
	begin := b.size - b.global
	if b.local > begin {
		return fmt.Errorf("I2: local heaps up to %#x, the global heap from %#x on", b.local, begin)
	}
	if got := r.global.Stats().Len; got != b.global {
		return fmt.Errorf("I3: the global heap has %d bytes and %d are reserved", got, b.global)
	}
	for off := range r.blocks {
		if off < begin {
			return fmt.Errorf("I3: global block at %#x, the global heap begins at %#x", off, begin)
		}
	}
	for rank, h := range o.heaps {
		if h.length > h.limit || h.limit > b.local && !b.busy {
			return fmt.Errorf("I1: rank %d: length %#x, limit %#x, limit of the job %#x, epoch %d of %d", rank, h.length, h.limit, b.local, h.epoch, b.epoch)
		}
		if got := h.local.Stats().Len; got != h.length {
			return fmt.Errorf("rank %d: the heap has %d bytes, not %d", rank, got, h.length)
		}
		for _, n := range []uint64{h.length, h.limit, b.local, b.global} {
			if n%alloc.PageSize != 0 {
				return fmt.Errorf("I4: %#x is no number of pages", n)
			}
		}
	}
	return nil
}

func (o *oracle) done() error {
	o.ops++
	return o.verify()
}

// put and get reach a place of the heap from any rank.
func (m *member) put(ctx context.Context, rank int, off, v uint64) error {
	l := m.lanes.To(rank)
	if _, err := l.Put(rank, m.Region(region).Off+off, binary.LittleEndian.AppendUint64(nil, v), fabric.Implicit); err != nil {
		return err
	}
	return l.Flush(ctx)
}

func (m *member) get(ctx context.Context, rank int, off uint64) (uint64, error) {
	buf := make([]byte, 8)
	l := m.lanes.To(rank)
	h, err := l.Get(rank, m.Region(region).Off+off, buf, 0)
	if err == nil && h != fabric.Done {
		_, err = l.Wait(ctx, h)
	}
	return binary.LittleEndian.Uint64(buf), err
}

// TestRandomWorlds allocates and frees at random, with one or two goroutines a rank, and checks
// after each operation that no two blocks overlap in the memory of any rank and that the invariants
// hold. Each block has a tag somewhere in its memory, which a rank that was never told of the block
// wrote, and another one reads.
func TestRandomWorlds(t *testing.T) {
	want := cmp.Or(*operations, parttest.Of(50_000))
	var sum struct{ worlds, ops, full, reclaims, stale, asked int }
	seed := *firstSeed
	for ; sum.ops < want; seed++ {
		rng := rand.New(rand.NewPCG(seed, 7))
		ranks := []int{1, 2, 3, 8, 17}[rng.IntN(5)]
		size := uint64(8+rng.IntN(120)) * alloc.PageSize
		hc := Config{Check: rng.IntN(4) == 0}
		if rng.IntN(2) == 0 {
			hc.New = func() alloc.Allocator { return alloc.NewBuddy() }
		}
		o := newOracle(ranks, size)
		cfg := sim.Config{Ranks: ranks, Seed: seed, Jitter: time.Duration(rng.IntN(50_000))}
		full := 0
		world(t, cfg, size, hc, func(ctx context.Context, m *member) error {
			o.heaps[m.Rank()] = m.h
			rng := rand.New(rand.NewPCG(seed, 100+uint64(m.Rank())))
			for range 4 {
				if err := m.churn(ctx, o, rng, 60, &full); err != nil {
					return fmt.Errorf("rank %d of %d: %w", m.Rank(), ranks, err)
				}
				if err := m.together(ctx, o, seed, &full); err != nil {
					return fmt.Errorf("rank %d of %d: %w", m.Rank(), ranks, err)
				}
			}
			return nil
		})
		sum.worlds++
		sum.ops += o.ops
		sum.full += full
		sum.reclaims += int(o.heaps[0].bound.reclaims)
		for _, h := range o.heaps {
			sum.stale += int(h.count.stale.Load())
			sum.asked += int(h.count.asked.Load())
		}
	}
	t.Logf("seeds %d to %d: %+v", *firstSeed, seed-1, sum)
	if sum.full == 0 || sum.reclaims == 0 || sum.asked == 0 {
		t.Error("memory was never short")
	}
}

func randomSize(rng *rand.Rand, size uint64) uint64 {
	n := 8 + rng.Uint64N(1<<(4+rng.IntN(12)))
	return min(n, size)
}

// churn is operations of one rank alone.
func (m *member) churn(ctx context.Context, o *oracle, rng *rand.Rand, n int, full *int) error {
	for range n {
		var b block
		var err error
		switch k := rng.IntN(10); {
		case k < 4:
			b = block{n: randomSize(rng, o.size)}
			b.p, err = m.h.Alloc(ctx, b.n, 1<<rng.IntN(9))
		case k < 6:
			count := 1 + rng.Uint64N(uint64(3*m.Size()))
			each := randomSize(rng, o.size) / count
			b = block{n: each * ((count + uint64(m.Size()) - 1) / uint64(m.Size())), global: true, single: count == 1}
			b.p, err = m.h.GlobalAlloc(ctx, count, each, 1<<rng.IntN(9))
		case len(o.live) > 0:
			b := o.remove(rng.IntN(len(o.live)))
			if b.n >= 8 {
				if got, err := m.get(ctx, b.at, b.p.off); err != nil || got != b.tag {
					return fmt.Errorf("block %v of %d bytes has %#x at rank %d, want %#x (%v)", b.p, b.n, got, b.at, b.tag, err)
				}
			}
			if rng.IntN(3) == 0 {
				err = m.h.FreeAsync(ctx, b.p)
			} else {
				err = m.h.Free(ctx, b.p)
			}
			if err != nil {
				return err
			}
			if err := o.done(); err != nil {
				return err
			}
			continue
		default:
			continue
		}
		if errors.Is(err, ErrNoSharedMemory) {
			*full++
			if e := (*NoMemoryError)(nil); !errors.As(err, &e) || e.HeapSize != o.size || e.Reserved+e.GlobalSize > o.size {
				return fmt.Errorf("figures that cannot be: %w", err)
			}
			if err := o.done(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if b.n == 0 {
			if !b.p.IsNull() {
				return fmt.Errorf("no bytes at %v", b.p)
			}
			continue
		}
		if err := m.tag(ctx, o, &b, rng.Uint64()); err != nil {
			return err
		}
	}
	return nil
}

// tag enters a block that was allocated, and writes into it.
func (m *member) tag(ctx context.Context, o *oracle, b *block, tag uint64) error {
	ranks := o.ranks(*b)
	b.tag, b.at = tag, ranks[tag%uint64(len(ranks))]
	if err := o.add(*b); err != nil {
		return err
	}
	// Nobody else may free it before it is written.
	i := slices.IndexFunc(o.live, func(x block) bool { return x == *b })
	o.live = slices.Delete(o.live, i, i+1)
	var err error
	if b.n >= 8 {
		err = m.put(ctx, b.at, b.p.off, b.tag)
	}
	o.live = append(o.live, *b)
	if err != nil {
		return err
	}
	return o.done()
}

// together is operations of all ranks.
func (m *member) together(ctx context.Context, o *oracle, seed uint64, full *int) error {
	rng := rand.New(rand.NewPCG(seed, uint64(o.size)+uint64(*full)*0)) // alike at all ranks
	var mine []Ptr
	for range 3 {
		count := 1 + rng.Uint64N(uint64(3*m.Size()))
		each := randomSize(rng, o.size) / count
		p, err := m.h.AllAlloc(ctx, count, each, 0)
		if err != nil && !errors.Is(err, ErrNoSharedMemory) {
			return err
		}
		text := "none"
		if err != nil {
			text = err.Error()
		}
		all, gerr := m.team.AllGather(ctx, []byte(fmt.Sprint(p, text)))
		if gerr != nil {
			return gerr
		}
		for r := range all {
			if string(all[r]) != string(all[0]) {
				return fmt.Errorf("rank %d got %q of an AllAlloc, rank 0 %q", r, all[r], all[0])
			}
		}
		if err != nil || p.IsNull() {
			*full++
			continue
		}
		mine = append(mine, p)
		if m.Rank() == 0 {
			b := block{p: p, n: each * ((count + uint64(m.Size()) - 1) / uint64(m.Size())), global: true, single: count == 1}
			if err := o.add(b); err != nil {
				return err
			}
			o.live = o.live[:len(o.live)-1] // it is freed together
			if err := o.done(); err != nil {
				return err
			}
		}
	}
	if err := m.team.Barrier(ctx); err != nil {
		return err
	}
	for _, p := range mine {
		if err := m.h.AllFree(ctx, p); err != nil {
			return err
		}
		for r := range o.ends {
			delete(o.ends[r], p.off)
		}
	}
	return o.done()
}
