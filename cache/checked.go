package cache

import (
	"bytes"
	"context"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fencecheck"
)

// Checks report to a fence checker all that goes through the lanes of a cache. Where the checker
// does not hear of all ranks they read hits again now and then, and compare.
type Checks struct {
	c       *Cache
	w       *fencecheck.Worker
	exact   bool // the checker hears of all ranks
	ops     map[fabric.Handle]checkedOp
	last    fabric.Handle
	fetches bool // atomics that return a value were begun since the last Flush
	turn    uint64
	again   []byte
}

// checkedOp is an operation in flight. It has a handle also where it is there at once: the checker
// hears of it when the program does.
type checkedOp struct {
	h       fabric.Handle
	old     uint64 // if h is Done
	arrived func() // nil: the checker need not hear of it
}

// CheckedLane is a lane above one of a cache.
type CheckedLane struct {
	fabric.Lane
	k *Checks
}

// Check makes the checks of a cache. exact: the checker hears of all ranks.
func (c *Cache) Check(w *fencecheck.Worker, exact bool) *Checks {
	return &Checks{c: c, w: w, exact: exact, ops: map[fabric.Handle]checkedOp{}}
}

// Lane is a lane of the cache with the checks above it.
func (k *Checks) Lane(l *Lane) *CheckedLane { return &CheckedLane{l, k} }

// SetContext bounds the operations on the lanes (fabric.Bounded).
func (l *CheckedLane) SetContext(ctx context.Context) { l.k.c.ctx = ctx }

// Close has the checker know that the worker has ended, after a release.
func (k *Checks) Close() { k.w.Close() }

// ReleaseFor is the cache's, with a report to the checker.
func (k *Checks) ReleaseFor(ctx context.Context, rank int, off uint64, n int) error {
	err := k.c.ReleaseFor(ctx, rank, off, n)
	if err != nil {
		return err
	}
	if k.w.Release(); n > 0 && k.exact {
		k.w.Deposit(rank, off, n)
	}
	return nil
}

// Acquire is the cache's, with a report to the checker.
func (k *Checks) Acquire() {
	k.c.Acquire()
	k.w.Acquire()
}

// Put implements fabric.Lane.
func (l *CheckedLane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	k, at, arrived := l.k, off-l.k.c.pages.cfg.Begin, func() {}
	switch {
	case !k.exact:
	case f == fabric.Blocking:
		k.w.Write(peer, at, len(src))
	default:
		arrived = k.w.WriteLater(peer, at, len(src))
	}
	h, err := l.Lane.Put(peer, off, src, f)
	_, h, err = l.begun(0, h, err, f, arrived)
	return h, err
}

// Get implements fabric.Lane.
func (l *CheckedLane) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	k, at := l.k, off-l.k.c.pages.cfg.Begin
	ordered := !k.exact || k.w.Read(peer, at, len(dst))
	hits := k.c.pages.n.GetHits
	h, err := l.Lane.Get(peer, off, dst, f)
	_, h, err = l.begun(0, h, err, f, func() {})
	if err == nil && f == fabric.Blocking && ordered && k.c.pages.n.GetHits != hits {
		err = k.compare(peer, at, dst)
	}
	return h, err
}

// Atomic implements fabric.Lane.
func (l *CheckedLane) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, fabric.Handle, error) {
	k, at, n, fetches := l.k, off-l.k.c.pages.cfg.Begin, int(a.Type.Size()), f&fabric.Implicit == 0
	if fetches {
		k.w.Deliver()
		k.fetches = true
	}
	arrived := func() {}
	if k.exact {
		arrived = k.w.Update(peer, at, n, fetches)
	}
	old, h, err := l.Lane.Atomic(peer, off, a, f)
	return l.begun(old, h, err, f, func() {
		arrived()
		if k.exact {
			k.w.Hear(peer, at, n)
		}
		k.w.Acquire()
	})
}

// begun ends an operation that its caller waits for, or gives it a handle. arrived is called when
// the program knows that it is there.
func (l *CheckedLane) begun(old uint64, h fabric.Handle, err error, f fabric.Flag,
	arrived func()) (uint64, fabric.Handle, error) {
	if err != nil || f&fabric.Implicit != 0 {
		return old, h, err
	}
	k := l.k
	if f != fabric.Blocking {
		k.last++
		k.ops[k.last] = checkedOp{h, old, arrived}
		return 0, k.last, nil
	}
	if h != fabric.Done {
		if old, err = l.Lane.Wait(k.c.ctx, h); err != nil {
			l.Lane.Abandon(h)
			return 0, fabric.Done, err
		}
	}
	arrived()
	return old, fabric.Done, nil
}

// Wait implements fabric.Lane.
func (l *CheckedLane) Wait(ctx context.Context, h fabric.Handle) (old uint64, err error) {
	op := l.k.ops[h]
	if old = op.old; op.h != fabric.Done {
		old, err = l.Lane.Wait(ctx, op.h)
	}
	l.ended(h, err == nil)
	return old, err
}

// Test implements fabric.Lane.
func (l *CheckedLane) Test(h fabric.Handle) (old uint64, done bool, err error) {
	op := l.k.ops[h]
	if old, done = op.old, op.h == fabric.Done; !done {
		old, done, err = l.Lane.Test(op.h)
	}
	l.ended(h, done && err == nil)
	return old, done, err
}

// ended reports an operation that is complete.
func (l *CheckedLane) ended(h fabric.Handle, complete bool) {
	if op, ok := l.k.ops[h]; ok && complete {
		delete(l.k.ops, h)
		op.arrived()
	}
}

// Abandon implements fabric.Lane.
func (l *CheckedLane) Abandon(h fabric.Handle) {
	if op := l.k.ops[h]; op.h != fabric.Done {
		l.Lane.Abandon(op.h)
	}
	delete(l.k.ops, h)
}

// Flush implements fabric.Lane. It completes atomics too.
func (l *CheckedLane) Flush(ctx context.Context) error {
	err := l.Lane.Flush(ctx)
	if l.k.fetches {
		l.k.fetches = err != nil
		l.k.w.Acquire()
	}
	return err
}

// compareEvery is of how many hits one is read again, at random.
const compareEvery = 8

// compare reads a hit again. Where the bytes are others by now they have been written since the
// worker acquired, and so without an order; unless the worker has done that itself, by an atomic.
func (k *Checks) compare(rank int, off uint64, had []byte) error {
	k.turn = k.turn*6364136223846793005 + 1442695040888963407 // Knuth, TAOCP vol. 2, 3.3.4
	if k.turn>>33%compareEvery != 0 || k.fetches || k.c.own(rank, off, len(had)) {
		return nil
	}
	if len(k.again) < len(had) {
		k.again = make([]byte, len(had))
	}
	now := k.again[:len(had)]
	err := k.c.net.getAround(k.c.ctx, rank, off, now)
	if err != nil {
		k.again = nil // the network's
	} else if !bytes.Equal(had, now) {
		k.w.Stale(rank, off, len(had))
	}
	return err
}

// own reports whether some of n bytes of a rank are this cache's puts, and may not be at their
// target yet. The bytes must be in the rank's memory.
func (c *Cache) own(rank int, off uint64, n int) bool {
	p := &c.pages
	if n == 0 {
		return false
	}
	for _, i := range p.overlapped(rank, off, uint64(n)) {
		e := &p.entries[i]
		if o, k, _ := p.within(e.key, off, uint64(n)); e.mask != none && anyBits(p.maskOf(e), o, k) {
			return true
		}
	}
	return false
}
