package conduit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/arrays"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/transient"
)

// Worker is one line of communication: operations, their completions, and
// nothing that another worker shares. One goroutine uses it at a time.
type Worker struct {
	// What the hot path touches comes first.
	peers      []peer         // by rank; nil once closed
	begin      uint64         // of the user's region in every segment
	generation *atomic.Uint64 // the job's, of what it has learned
	seen       uint64         // of that
	direct     *fabric.Counters
	lines      *cache.Cache // whose lines a get may read: the worker's cache, unless there are checks
	fence      env.Fence    // nil: nothing keeps bytes of other ranks for the worker
	guard      owner.Guard
	routes     []route                  // the job's, by rank
	byNet      [maxNetworks]fabric.Lane // what operations go through: of a network, or what stands above that

	job        *Job
	number     int             // of those that the job has opened, from 1
	turn       int             // of the message endpoints
	ctx        context.Context // bounds blocking calls that take none
	lanes      []fabric.Lane   // one per network in use, in their order
	held       lanes           // the same, inside a call
	deaths     *atomic.Uint32  // the job's count of dead ranks
	deathsSeen uint32          // what peers reflects
	reported   uint32          // how many deaths WaitUntil has returned
	kept       keeping         // nothing without a cache
	inChain    bool
	chain      *chain // nil before the first Chain

	fetches *transient.Fetcher // nil before the first FetchSet

	waitStop func() error // stopWaiting, bound once: WaitUntil allocates nothing

	scratch   []byte // where values are laid for a lane to read or write
	slots     resultSlots
	transfers *arrays.Transfers // nil before the first

	freeDirect func()
	closeErr   error
}

func (w *Worker) open() (err error) {
	if w.direct, w.freeDirect, err = offheap.Alloc[fabric.Counters](); err != nil {
		return err
	}
	all, err := w.job.networks.newLanes()
	if err != nil {
		return err
	}
	w.job.latencies.timed(all)
	w.lanes, w.held = all, lanes{w.job, all}
	copy(w.byNet[:], all)
	w.SetContext(w.ctx)
	w.begin = w.job.layout.UserOffset()
	w.peers, w.routes = make([]peer, w.job.size), w.job.networks.routes
	w.seen = w.generation.Load()
	w.refresh()
	return openCache(w)
}

// SetContext bounds every following call that takes no context, Get and Put
// first of all. An operation whose context ends returns its cause; the
// operation itself may still take effect, and slices that were given to it are the
// network's until Flush returns. Without it nothing bounds them but the job: in
// RunLocal, its context.
//
// One wait looks at no context: over verbs, for room for the rest of an operation, or for a further
// one, when Config.QueueDepth requests to the rank or 256 KiB that are copied are in flight. It
// ends when one of them does, at the latest with the device's retries.
func (w *Worker) SetContext(ctx context.Context) {
	w.ctx = ctx
	for _, l := range w.lanes {
		if b, ok := l.(fabric.Bounded); ok {
			b.SetContext(ctx)
		}
	}
	for _, l := range w.kept.lanes {
		l.SetContext(ctx)
	}
}

// Job is the job that the worker belongs to.
func (w *Worker) Job() *Job { return w.job }

// Flush blocks until every operation of the worker is complete at its target.
// It returns the first error of an implicit operation to each rank since the last Flush, an
// *OpError or several of them joined.
func (w *Worker) Flush(ctx context.Context) error {
	if err := w.enter("flush"); err != nil {
		return err
	}
	defer w.exit()
	return w.flush(ctx)
}

func (w *Worker) flush(ctx context.Context) error {
	all := w.release(ctx)
	lost := func(err error) {
		if all == nil {
			all = err
		} else if err != nil {
			all = errors.Join(all, err)
		}
	}
	lost(w.chain.postOpen())
	for i := range w.lanes {
		if err := w.byNet[i].Flush(ctx); err != nil {
			lost(inRegion(err, w.begin))
		}
	}
	w.fetches.Flushed(ctx)
	return all
}

// inRegion has the errors of lanes count offsets from the begin of the user's region, as the
// program does.
func inRegion(err error, begin uint64) error {
	switch e := err.(type) {
	case *OpError:
		if e.Off >= begin {
			e.Off -= begin
		}
	case interface{ Unwrap() []error }:
		for _, e := range e.Unwrap() {
			_ = inRegion(e, begin)
		}
	}
	return err
}

// Poll makes progress without waiting. A worker that only computes for long
// need not poll: the device, or the memory, completes what was posted.
func (w *Worker) Poll() error {
	if err := w.enter("poll"); err != nil {
		return err
	}
	defer w.exit()
	if err := w.chain.postOpen(); err != nil {
		return err
	}
	for _, l := range w.lanes {
		if err := l.Poll(); err != nil {
			return err
		}
	}
	return nil
}

// Cond is a comparison for WaitUntil.
type Cond = fabric.Cond

// The comparisons: word <cond> value, unsigned.
const (
	Equal        = fabric.Equal
	NotEqual     = fabric.NotEqual
	GreaterEqual = fabric.GreaterEqual
	Greater      = fabric.Greater
	LessEqual    = fabric.LessEqual
	Less         = fabric.Less
)

// WaitUntil blocks until the aligned word at byte offset off of this rank's own
// segment fulfils the condition, because a peer's put or atomic changed it. What
// the same worker of that peer put before is then visible too.
//
// A rank that dies may be the one that was waited for: each death ends a
// worker's wait, or its next one, once, with a *PeerDownError; also the first wait of a
// worker that was opened later, as the program may not know of it. Wait again if the word
// can still come from another rank.
//
// A handler must not wait: it gets am.ErrInHandler unless the word fulfils the condition already.
func (w *Worker) WaitUntil(ctx context.Context, off uint64, c Cond, value uint64) error {
	if w.fence != nil || w.peers == nil {
		return waitFenced(ctx, w, off, c, value)
	}
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return err
		}
		defer w.guard.Exit()
	}
	return w.waitWord(ctx, off, c, value)
}

// waitFenced is WaitUntil with a fence, or of a closed worker: the rank waited for may need writes
// of this one.
func waitFenced(ctx context.Context, w *Worker, off uint64, c Cond, value uint64) error {
	if err := w.enter("wait-until"); err != nil {
		return err
	}
	defer w.exit()
	if err := w.release(ctx); err != nil {
		return err
	}
	defer w.acquire()
	err := w.waitWord(ctx, off, c, value)
	if err == nil && w.kept.told != nil {
		w.kept.told.Hear(w.job.rank, off, 8)
	}
	return err
}

// waitWord is WaitUntil inside a call of the worker, without a fence.
func (w *Worker) waitWord(ctx context.Context, off uint64, c Cond, value uint64) error {
	if !c.Valid() {
		return fmt.Errorf("conduit: wait-until: no condition %d", c)
	}
	seg := w.job.seg.User()
	if err := fabric.CheckWord("wait-until", w.job.rank, off, uint64(len(seg))); err != nil {
		return err
	}
	word := (*uint64)(unsafe.Pointer(&seg[off]))
	if c.Holds(atomic.LoadUint64(word), value) {
		return nil
	}
	lockrank.CheckCommunication("wait-until")
	if w.job.cfg.Handlers.InHandler() {
		return fmt.Errorf("conduit: wait-until: %w", am.ErrInHandler)
	}
	if err := w.chain.postOpen(); err != nil {
		return err
	}
	return w.held.Waiter().WaitWord(ctx, word, c, value, w.waitStop)
}

// stopWaiting says why a wait for a word is better ended.
func (w *Worker) stopWaiting() error {
	if err := w.job.checkOpen(); err != nil { // first: where the job was cancelled others leave for that
		return err
	}
	if n := w.deaths.Load(); n != w.reported {
		w.reported = n
		return w.job.members.latest("wait-until")
	}
	return nil
}

// enter guards a call: the worker is open, and no other goroutine is in it.
func (w *Worker) enter(op string) error {
	if w.peers == nil {
		return errClosed(op, "worker")
	}
	return w.guard.Enter()
}

// exit ends what enter began.
func (w *Worker) exit() { w.guard.Exit() }

// Close completes the worker's operations, bounded by Config.CloseTimeout, and
// gives its lanes back. It returns the errors that no Flush has reported;
// closing again returns the same.
func (w *Worker) Close() error {
	if w.peers == nil {
		return w.closeErr
	}
	if err := w.guard.Enter(); err != nil {
		return err
	}
	defer w.guard.Exit()
	ctx, cancel := context.WithTimeout(context.Background(), w.job.cfg.CloseTimeout)
	defer cancel()
	err := w.flush(ctx)
	if lost := w.kept.close(ctx); lost != nil {
		err = errors.Join(err, inRegion(lost, w.begin))
	}
	w.job.workers.mu.Lock()
	defer w.job.workers.mu.Unlock()
	delete(w.job.workers.open, w)
	w.job.workers.retired.merge(statsOf(w))
	w.job.workers.retiredCaches = w.job.workers.retiredCaches.Add(w.kept.stats())
	w.closeErr = errors.Join(err, w.giveBack())
	return w.closeErr
}

// giveBack gives back what open took, whether or not it finished.
func (w *Worker) giveBack() error {
	err := inRegion(closeLanes(w.lanes), w.begin)
	w.lanes, w.peers, w.routes, w.lines, w.fence, w.kept = nil, nil, nil, nil, nil, keeping{}
	w.byNet = [maxNetworks]fabric.Lane{}
	w.fetches.Close()
	if w.freeDirect != nil {
		w.freeDirect()
		w.direct, w.freeDirect = nil, nil
	}
	return err
}
