package conduit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fencecheck"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/heap"
)

// keeping is what a worker has in a job with Config.Cache: its cache, and lanes that go through it.
// With a fence checker these are checked.
type keeping struct {
	cache  *cache.Cache
	lanes  []*cache.Lane      // by network
	checks *cache.Checks      // nil: there is no checker
	told   *fencecheck.Worker // the worker in a checker that hears of all ranks, or nil
	offs   []uint64           // of a prefetch
}

// openCache puts a cache above the worker's lanes, and the checks above that.
func openCache(w *Worker) (err error) {
	if w.job.cfg.Cache == nil {
		return nil
	}
	cfg := *w.job.cfg.Cache
	cfg.Begin = w.begin
	cfg.Size = func(rank int) uint64 {
		if rank == w.job.rank || !cfg.Mapped && w.To(rank).Mapped(rank) != nil {
			return 0 // a load is faster
		}
		return w.routes[rank].user
	}
	if w.kept.cache, err = cache.New(view{w.job}, w, cfg); err != nil {
		return err
	}
	w.fence, w.lines, w.kept.lanes = w.kept.cache, w.kept.cache, w.kept.cache.Lanes()
	for i, l := range w.kept.lanes {
		l.SetContext(w.ctx)
		w.byNet[i] = l
	}
	if w.job.checker == nil {
		return nil
	}
	told, exact := w.job.checker.Rank(w.job.rank).NewWorker(), knowsAll(w.job) != nil
	w.kept.checks = w.kept.cache.Check(told, exact)
	w.fence, w.lines = w.kept.checks, nil
	for i, l := range w.kept.lanes {
		w.byNet[i] = w.kept.checks.Lane(l)
	}
	if exact {
		w.kept.told = told
	}
	return nil
}

func (k *keeping) close(ctx context.Context) error {
	if k.cache == nil {
		return nil
	}
	if k.checks != nil {
		k.checks.Close()
	}
	return k.cache.CloseWithin(ctx)
}

const wantCache = `0, 1, or a list such as "pages=1024,page=1024,line=64,dirty=128,ring=32,direct=1024,policy=2q,mapped"`

// cacheDefaults reads IBCONDUIT_CACHE and IBCONDUIT_CACHE_CHECK.
func (c *Config) cacheDefaults(env *environment) {
	c.cacheFrom(env)
	if env.bit("IBCONDUIT_CACHE_CHECK") {
		var checked cache.Config
		if c.Cache != nil {
			checked = *c.Cache
		}
		checked.Check = true
		c.Cache = &checked
	}
}

func (c *Config) cacheFrom(env *environment) {
	v := env.str("IBCONDUIT_CACHE", "")
	if c.Cache != nil || v == "" || v == "0" {
		return
	}
	cfg, ok := parseCache(v)
	if !ok {
		env.fail("IBCONDUIT_CACHE", v, wantCache)
		return
	}
	if _, err := cfg.WithDefaults(); err != nil {
		env.fail("IBCONDUIT_CACHE", v, err.Error())
		return
	}
	c.Cache = &cfg
}

// parseCache reads a list of what differs from the defaults.
func parseCache(v string) (cfg cache.Config, ok bool) {
	if v == "1" {
		return cfg, true
	}
	numbers := map[string]*int{"pages": &cfg.Pages, "page": &cfg.PageSize, "line": &cfg.LineSize, "dirty": &cfg.Dirty, "ring": &cfg.Ring, "direct": &cfg.DirectMin}
	switches := map[string]*bool{"mapped": &cfg.Mapped, "noreadahead": &cfg.NoReadahead, "nobypass": &cfg.NoBypass}
	for _, f := range strings.Split(v, ",") {
		name, value, has := strings.Cut(strings.TrimSpace(f), "=")
		switch at, on := numbers[name], switches[name]; {
		case at != nil && has:
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return cfg, false
			}
			*at = n
		case on != nil && !has:
			*on = true
		case name == "policy" && has:
			if cfg.Policy, ok = cache.ParsePolicy(value); !ok {
				return cfg, false
			}
		default:
			return cfg, false
		}
	}
	return cfg, true
}

func (c *Config) validateCache() error {
	if c.Cache == nil {
		return nil
	}
	if c.Cache.Region != "" || c.Cache.Size != nil || c.Cache.Begin != 0 {
		return &ConfigError{Field: "Cache", Value: "set in Region, Size or Begin", Want: "these unset: Join fills them in"}
	}
	_, err := c.Cache.WithDefaults()
	if wrong, ok := err.(*cache.ConfigError); ok {
		return &ConfigError{Field: "Cache." + wrong.Field, Value: fmt.Sprint(wrong.Value), Want: wrong.Want}
	}
	return err
}

// Acquire has what the worker reads from now on be no older than now, where it has a cache
// (Config.Cache). It takes some nanoseconds. Most programs need no call: what tells them that data
// are there acquires, see "Fences" in the package comment.
func (w *Worker) Acquire() error {
	if err := w.enter("acquire"); err != nil {
		return err
	}
	defer w.exit()
	w.acquire()
	return nil
}

// Fence is Flush and then Acquire, the latter also with an error.
func (w *Worker) Fence(ctx context.Context) error {
	if err := w.enter("fence"); err != nil {
		return err
	}
	defer w.exit()
	defer w.acquire()
	return w.flush(ctx)
}

// CacheStats are the counters of the worker's cache; zero without one. It may be called from any
// goroutine, until Close.
func (w *Worker) CacheStats() cache.Stats {
	w.job.workers.mu.Lock()
	defer w.job.workers.mu.Unlock()
	return w.kept.stats()
}

// CacheStats sums the counters of the caches of all workers, open and closed.
func (j *Job) CacheStats() cache.Stats {
	j.workers.mu.Lock()
	defer j.workers.mu.Unlock()
	s := j.workers.retiredCaches
	for w := range j.workers.open {
		s = s.Add(w.kept.stats())
	}
	return s
}

// stats are the counters of the cache.
func (k *keeping) stats() cache.Stats {
	if k.cache == nil {
		return cache.Stats{}
	}
	return k.cache.Stats()
}

// Prefetch has the worker's cache begin to fetch n elements from p on, and returns at once: a Get
// that follows finds them, or waits for the rest of their way. It is a hint, as far as the cache
// has room (32 KiB in flight), and nothing without a cache. Elements outside of the rank's segment
// are left out. Errors: those of a wrong pointer, and a *PeerDownError.
func Prefetch[T any](w *Worker, p Ptr[T], n int) error {
	var v T
	return prefetch(w, global.Node(p), []uint64{p.Offset()}, n*int(unsafe.Sizeof(v)))
}

// PrefetchIndexed is Prefetch of the elements p.Add(offs[k]) for all k, by one doorbell.
func PrefetchIndexed[T any](w *Worker, p Ptr[T], offs []int) error {
	var v T
	if w.lines == nil {
		return nil
	}
	w.kept.offs = w.kept.offs[:0]
	for _, k := range offs {
		w.kept.offs = append(w.kept.offs, p.Add(k).Offset())
	}
	return prefetch(w, global.Node(p), w.kept.offs, int(unsafe.Sizeof(v)))
}

// prefetch begins to fetch n bytes at each of offs.
func prefetch(w *Worker, node uint32, offs []uint64, n int) error {
	if w.lines == nil {
		return nil
	}
	if err := w.enter("prefetch"); err != nil {
		return err
	}
	defer w.exit()
	_, rank, err := w.check("prefetch", node, 0, 0)
	if err != nil || w.inChain || !w.lines.Keeps(rank) {
		return err
	}
	return inRegion(w.lines.PrefetchEach(w.ctx, rank, offs, n), w.begin)
}

// Hints for the cache of a worker, see SetHint.
type Hint = cache.Hint

// How a program uses data.
const (
	HintDefault    = cache.Default
	HintSequential = cache.Sequential // in order: fetched ahead from the first miss on
	HintRandom     = cache.Random     // in no order: nothing is fetched ahead
	HintBypass     = cache.Bypass     // once: gets pass the cache by; puts are still combined
	HintReadOnly   = cache.ReadOnly   // nobody writes them: copies survive an acquire, a write is an error
	HintPrivate    = cache.Private    // nobody but this worker writes them: copies survive an acquire
)

// SetHint tells the worker's cache how the n elements from p on are used, in place of an earlier
// hint for them, and has it forget its copies of their pages. HintReadOnly and HintPrivate are
// promises: a get returns old elements where they are broken. Without a cache it does nothing.
// Errors are those of a wrong pointer.
func SetHint[T any](w *Worker, p Ptr[T], n int, h Hint) error {
	size, _, err := heap.SizeOf[T]("hint", n)
	if err != nil {
		return err
	}
	_, rank, err := w.check("hint", global.Node(p), p.Offset(), size)
	if err != nil || w.kept.cache == nil {
		return err
	}
	if err := w.enter("hint"); err != nil {
		return err
	}
	defer w.exit()
	w.kept.cache.Hint(rank, p.Offset(), size, h)
	return nil
}
