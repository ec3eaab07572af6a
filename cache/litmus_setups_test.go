package cache_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// remote is what the tests go through: the cache, or nothing at all.
type remote interface {
	Get(ctx context.Context, rank int, off uint64, dst []byte) error
	Put(ctx context.Context, rank int, off uint64, src []byte) error
	Acquire()
	Release(ctx context.Context) error
	Deliver(ctx context.Context) error
	Direct(ctx context.Context, rank int, off uint64, n int, write bool) error
	Linger()
	Prefetch(ctx context.Context, rank int, off uint64, n int) error
	PrefetchEach(ctx context.Context, rank int, offs []uint64, n int) error
	Verify() error
	Close() error
}

// uncached is no cache: each operation goes through the lanes and is complete when it returns.
type uncached struct{ lanes env.Lanes }

func (u uncached) Get(ctx context.Context, rank int, off uint64, dst []byte) error {
	l := u.lanes.To(rank)
	h, err := l.Get(rank, off, dst, fabric.Blocking)
	if err == nil {
		_, err = l.Wait(ctx, h)
	}
	return err
}

func (u uncached) Put(ctx context.Context, rank int, off uint64, src []byte) error {
	l := u.lanes.To(rank)
	h, err := l.Put(rank, off, src, fabric.Blocking)
	if err == nil {
		_, err = l.Wait(ctx, h)
	}
	return err
}

func (u uncached) Release(ctx context.Context) error {
	var err error
	for _, l := range u.lanes.All() {
		err = errors.Join(err, l.Flush(ctx))
	}
	return err
}

func (uncached) Acquire()                                               {}
func (uncached) Linger()                                                {}
func (uncached) Deliver(context.Context) error                          { return nil }
func (uncached) Direct(context.Context, int, uint64, int, bool) error   { return nil }
func (uncached) Prefetch(context.Context, int, uint64, int) error       { return nil }
func (uncached) PrefetchEach(context.Context, int, []uint64, int) error { return nil }
func (uncached) Verify() error                                          { return nil }
func (uncached) Close() error                                           { return nil }

// cached is the cache.
type cached struct{ *cache.Cache }

// setup is a configuration in which the litmus tests must pass.
type setup struct {
	name string
	off  bool // no cache: straight through the lanes
	cfg  cache.Config
}

// open opens a cache of the first bytes of each rank's region.
func (s setup) open(e env.Env, lanes env.Lanes, bytes uint64) (remote, error) {
	if s.off {
		return uncached{lanes}, nil
	}
	cfg := s.cfg
	cfg.Begin, cfg.Size = e.Region(region).Off, func(int) uint64 { return bytes }
	c, err := cache.New(e, lanes, cfg)
	if err != nil {
		return nil, err
	}
	return cached{c}, nil
}

// roomy reports whether a few pages stay in the cache while nothing else is used.
func (s setup) roomy() bool { return !s.off && s.cfg.Pages >= 16 }

// setups are those of the litmus tests. Each has sizes for the places of data, also the first.
var setups = func() []setup {
	all := []setup{{name: "off", off: true}, {name: "16 pages"}}
	for n := 1; n <= 4; n++ {
		all = append(all, setup{name: fmt.Sprintf("%d pages", n), cfg: cache.Config{Pages: n}})
	}
	all = append(all,
		setup{name: "one dirty page", cfg: cache.Config{Dirty: 1}},
		setup{name: "a ring of one", cfg: cache.Config{Ring: 1}},
		setup{name: "pages of 64 bytes", cfg: cache.Config{PageSize: 64}},
		setup{name: "pages of 4096 bytes", cfg: cache.Config{PageSize: 4096}},
		setup{name: "a duel of policies", cfg: cache.Config{Pages: 5, PageSize: 256, Policy: cache.Duel}},
		setup{name: "one small page, everything cached", cfg: cache.Config{Pages: 1, PageSize: 64, LineSize: 8, DirectMin: 1 << 16}},
	)
	for i := range all {
		all[i].cfg = sized(all[i].cfg)
	}
	return all
}()

// sized fills in the sizes that tests compute with.
func sized(cfg cache.Config) cache.Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&cfg.Pages, 16)
	def(&cfg.PageSize, 1024)
	def(&cfg.LineSize, min(64, cfg.PageSize))
	return cfg
}

// randomSetup is one for a program of the model.
func randomSetup(rng *rand.Rand) setup {
	one := func(of ...int) int { return of[rng.IntN(len(of))] }
	cfg := cache.Config{
		Pages: one(1, 2, 3, 4, 8, 16, 40), PageSize: one(64, 64, 128, 256, 1024, 4096), Ring: one(0, 1, 2, 5),
		DirectMin: one(0, 0, 20, 300, 2000, 1<<16), Policy: cache.Policy(rng.IntN(3)), NoReadahead: rng.IntN(4) == 0, NoBypass: rng.IntN(4) == 0,
	}
	cfg.LineSize = cfg.PageSize >> rng.IntN(7)
	cfg.LineSize = max(cfg.LineSize, 8)
	cfg.Dirty = one(0, 1, 2, cfg.Pages)
	cfg.Dirty = min(cfg.Dirty, cfg.Pages)
	return setup{name: "random", cfg: sized(cfg)}
}

// intrudes has another goroutine use the cache while this one waits in it.
func (w *worker) intrudes() {
	l, p, second := w.loc(0), w.e.Host().NewParker(), error(nil)
	w.e.Host().Go("intruder", func() {
		second = w.c.Get(w.ctx, l.rank, l.off, make([]byte, 8))
		p.Unpark()
	})
	w.verified("get", w.c.Get(w.ctx, l.rank, l.off, make([]byte, 8)))
	w.must("wait", p.Park(w.ctx))
	if !errors.Is(second, owner.ErrConcurrent) {
		w.fail("a second goroutine in the cache gets %v", second)
	}
}

const guarded = owner.Checked

// age has the cache's numbers begin anew soon.
func (w *worker) age() {
	if c, ok := w.c.(cached); ok {
		c.Age()
		w.verified("age", nil)
	}
}

// counted demands of the counters what they promise, and what the worker knows itself.
func (w *worker) counted() {
	c, ok := w.c.(cached)
	if !ok {
		return
	}
	s := c.Stats()
	if s.Gets != w.gets || s.Gets != s.GetHits+s.GetMisses+s.GetsDirect {
		w.fail("counters: %d gets: hits %d, misses %d, direct %d; counted %d", w.gets, s.GetHits, s.GetMisses, s.GetsDirect, s.Gets)
	}
	if s.Puts != w.puts || s.Puts != s.PutHits+s.PutMisses+s.PutsDirect {
		w.fail("counters: %d puts: hits %d, misses %d, direct %d; counted %d", w.puts, s.PutHits, s.PutMisses, s.PutsDirect, s.Puts)
	}
	if s.Prefetched != s.PrefetchUsed+s.PrefetchUnused+s.PrefetchResident || s.PrefetchLate > s.PrefetchUsed {
		w.fail("counters: prefetched %d lines: used %d, late %d, unused %d, resident %d", s.Prefetched, s.PrefetchUsed, s.PrefetchLate, s.PrefetchUnused, s.PrefetchResident)
	}
	if s.BytesUsed > s.BytesFetched {
		w.fail("counters: %d bytes fetched, %d used", s.BytesFetched, s.BytesUsed)
	}
	if n := w.lanes.To(w.home).Counters().Load(); w.apart && (n.Gets != s.Flights+s.GetsDirect || n.Puts != s.Runs+s.PutsDirect) {
		w.fail("counters: flights %d and direct gets %d, runs %d and direct puts %d; the network has %d gets and %d puts",
			s.Flights, s.GetsDirect, s.Runs, s.PutsDirect, n.Gets, n.Puts)
	}
}

// hint says how a range is used, to a cache.
func (w *worker) hint(l location, h cache.Hint) {
	if c, ok := w.c.(cached); ok {
		c.Hint(l.rank, l.off, uint64(l.n), h)
		w.verified("hint", nil)
	}
}

// harmlessHints may be given for all bytes.
var harmlessHints = []cache.Hint{cache.Default, cache.Sequential, cache.Random, cache.Bypass}

// bypass changes, half of the time, whether a place passes the cache by.
func (w *worker) bypass(l location) {
	if w.rng.IntN(2) == 0 {
		w.hint(l, harmlessHints[w.rng.IntN(len(harmlessHints))])
	}
}

// misses is how many gets the cache had not the bytes for.
func (w *worker) misses() uint64 {
	if c, ok := w.c.(cached); ok {
		return c.Stats().GetMisses + c.Stats().GetsDirect
	}
	return 0
}

// direct is how many gets have passed the cache by, which it learns to have them do.
func (w *worker) direct() uint64 {
	if c, ok := w.c.(cached); ok {
		return c.Stats().GetsDirect
	}
	return 0
}
