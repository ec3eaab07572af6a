package regcache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"weak"

	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/memevents"
)

// Cache keeps registrations of one Registrar. See the package documentation.
type Cache struct{ holdings }

// holdings are the registrations of a cache, and how they end.
type holdings struct {
	cfg    Config
	origin Origin
	w      *memevents.Watcher
	handle *handle.Handle
	frames *frameReader // nil: no verifying

	age     atomic.Uint64 // goes up by 2 at each miss
	singles atomic.Int64  // registrations for one operation
	watched [numOrigins]atomic.Bool
	pid     int

	closing sync.Mutex // one Close at a time
	mu      sync.Mutex
	closed  bool
	over    bool // closed for good: the watcher's place is another's
	getting int  // Gets that register
	index   index
	lru     lru
	slots   []*entry        // by tag
	tags    []uint32        // free ones
	dying   []*entry        // drained or evicted, and in use
	ending  int             // about to be deregistered
	ended   sync.Cond       // ending or getting has become less
	drained []memevents.Ref // scratch of sweep
	flights []*flight
	regions int   // registered or about to be, and not yet deregistered
	bytes   int64 // of them
	stats   counters

	stop context.CancelFunc
	done chan struct{}

	hints hints
}

// New makes a cache.
func New(cfg Config) (*Cache, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w, err := memevents.NewWatcher(memevents.WatcherConfig{MaxDeadBytes: cfg.MaxDeadBytes})
	if err != nil {
		return nil, &Error{Op: "new cache", Err: err}
	}
	c := new(Cache)
	c.cfg, c.origin, c.w, c.pid, c.done = cfg, cfg.Origin, w, os.Getpid(), make(chan struct{})
	c.ended.L = &c.mu
	if c.frames, err = newFrameReader(cfg.Verify); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	c.look(memevents.Status())
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.handle = handle.New(c, "registration cache", "")
	go reclaim(ctx, weak.Make(c), w, c.done)
	return c, nil
}

// reclaim deregisters invalidated entries when they become many, without a call. It does not keep a
// forgotten cache alive.
func reclaim(ctx context.Context, wc weak.Pointer[Cache], w *memevents.Watcher, done chan struct{}) {
	defer close(done)
	for w.Wait(ctx) == nil {
		c := wc.Value()
		if c == nil {
			return
		}
		c.reap()
	}
}

// look takes note of which origins are watched.
func (c *holdings) look(r memevents.Report) {
	_, somewhere := r.Covered()
	for o := range numOrigins {
		c.watched[o].Store(!c.cfg.Uncached && somewhere.Has(origins[o].need))
	}
	if !c.cfg.Uncached && somewhere.Has(keptAliveNeed) {
		c.watched[GoHeap].Store(true)
	}
}

// Retest tests again whether all changes are noticed: another library may have replaced the hooks
// since. Memory no longer watched is no longer cached from then on, and entries that relied on it
// are dropped.
func (c *Cache) Retest() Status {
	if c.forked() {
		return c.Status()
	}
	r := memevents.Retest()
	_, somewhere := r.Covered()
	c.look(r)
	c.mu.Lock()
	for _, i := range c.index.items {
		if !somewhere.Has(i.e.need) {
			c.evictLocked(i.e)
		}
	}
	c.index.prune()
	dead := c.sweepLocked()
	c.mu.Unlock()
	c.deregister(dead)
	return c.Status()
}

// Close deregisters everything. It refuses with ErrBusy while regions are in use, and the cache
// goes on; a Get that comes while it makes sure may fail with os.ErrClosed all the same. It is
// idempotent.
func (c *Cache) Close() error {
	if c.forked() {
		return errForked("close")
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true // nothing new comes in
	defer c.stayOpen()
	for c.getting > 0 {
		c.ended.Wait()
	}
	c.mu.Unlock()
	c.clear()
	c.mu.Lock()
	for c.ending > 0 { // by another goroutine
		c.ended.Wait()
	}
	busy := c.regions + int(c.singles.Load())
	c.over = busy == 0
	c.mu.Unlock()
	if busy > 0 {
		return &Error{Op: "close", Err: ErrBusy, Detail: fmt.Sprintf("%d regions were not given to Put", busy),
			Remedy: "complete their operations first"}
	}
	c.stop()
	<-c.done
	c.handle.Close()
	err := c.w.Close()
	if err != nil {
		err = &Error{Op: "close", Err: err}
	}
	if failed := c.stats.deregErr.Load(); failed != nil {
		err = errors.Join(err, *failed)
	}
	return errors.Join(err, c.frames.Close())
}

// stayOpen lets the cache go on after a Close that refused, or that a registration's Close ended
// with a panic.
func (c *Cache) stayOpen() {
	c.mu.Lock()
	c.closed = c.over
	c.mu.Unlock()
}

// clear evicts all that is idle.
func (c *Cache) clear() {
	if c.forked() {
		return
	}
	c.w.Settle() // an entry whose event is being dealt with can neither be evicted nor drained
	c.mu.Lock()
	c.lru.oldest(func(e *entry) bool { c.evictLocked(e); return true })
	c.index.prune()
	dead := c.sweepLocked()
	c.mu.Unlock()
	c.deregister(dead)
}

// Clear deregisters all that is idle, and returns how many registrations are left.
func (c *Cache) Clear() (left int) {
	if c.forked() { // before the lock, as in search
		return 0
	}
	c.clear()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.ending > 0 { // by another goroutine
		c.ended.Wait()
	}
	return c.regions
}

// forked: this is the child of a fork. The registrations are the parent's, which calls of the child
// would affect by the descriptor that both have.
func (c *holdings) forked() bool { return os.Getpid() != c.pid }

func errForked(op string) error {
	return &Error{Op: op, Err: memevents.ErrForked, Remedy: "start the program anew with exec"}
}

func errClosed(op string) error { return &Error{Op: op, Err: os.ErrClosed} }

func exhausted(err error) bool {
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN)
}
