package conduit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// fences are what a worker asks of the part that keeps bytes of other ranks for it. Without one
// they are nil and do nothing; see "Fences and parts" in the package comment.
type fences struct {
	part  env.Fences
	cache *cache.Cache // that is the part, or nil: puts and gets go through it
	w     *Worker
	job   *Job
	begun bool         // an atomic that returns a value, since the last flush
	epoch uint64       // of the job, when the worker acquired last
	offs  []uint64     // of a prefetch
	kept  *cache.Cache // the cache, also where a fence checker is in front of it
	gets  *cache.Gets  // that do not wait; nil without a cache
	check *checks      // nil: there is no fence checker
}

// openFences makes the fences of a worker whose lanes are open.
func openFences(w *Worker) (*fences, error) {
	if w.job.needs.fences == nil {
		return nil, nil
	}
	f := &fences{w: w, job: w.job, epoch: w.job.epoch.Load()}
	var err error
	if f.part, err = w.job.needs.fences(view{w.job}, w); err != nil {
		return nil, err
	}
	f.cache, _ = f.part.(*cache.Cache)
	if f.kept = f.cache; f.kept != nil {
		f.gets = cache.NewGets(f.kept)
	}
	f.openChecks()
	return f, nil
}

func (f *fences) close(ctx context.Context) error {
	if f == nil {
		return nil
	}
	f.check.close()
	if f.kept != nil {
		return f.kept.CloseWithin(ctx)
	}
	return f.part.Close()
}

// release is the first half of an operation that fences, and acquire the second. Writes that a
// chain has collected, of which the part was told, are posted before.
func (f *fences) release(ctx context.Context) error {
	if f == nil {
		return nil
	}
	if err := f.w.chain.postOpen(); err != nil {
		return err
	}
	err := f.part.Release(ctx)
	if err == nil {
		f.check.released()
	}
	return err
}

// deliver is the release before an atomic: of what the part keeps. What the worker has begun
// without waiting an atomic does not complete, with a part as without.
func (f *fences) deliver(ctx context.Context) error {
	if f == nil || f.kept == nil {
		return f.release(ctx)
	}
	if err := f.w.chain.postOpen(); err != nil {
		return err
	}
	err := f.kept.Deliver(ctx)
	if err == nil {
		f.check.delivered()
	}
	return err
}

func (f *fences) acquire() {
	if f != nil {
		f.epoch = f.job.epoch.Load()
		f.part.Acquire()
		f.check.acquired()
	}
}

// fetches is called when an atomic is begun whose value comes later: its word is not told of, as an
// acquire follows, in Wait or Test; or in flushed, after which the atomic is complete as well.
func (f *fences) fetches() {
	if f != nil {
		f.begun = true
	}
}

// finish ends the gets that the cache has begun.
func (f *fences) finish(ctx context.Context) error {
	if f == nil || f.gets == nil {
		return nil
	}
	return inRegion(f.gets.Flush(ctx), f.w.begin)
}

func (f *fences) flushed(err error) {
	if f != nil && f.begun {
		f.begun = err != nil
		f.acquire()
	}
}

// catchUp acquires if the job has learned something since the worker did.
func (f *fences) catchUp() {
	if f.epoch != f.job.epoch.Load() {
		f.acquire()
	}
}

// passPut and passGet are called before an operation that passes the part by, and was found to be
// in order.
func (f *fences) passPut(ctx context.Context, rank int, off uint64, n int, flag fabric.Flag) error {
	if f == nil {
		return nil
	}
	f.catchUp()
	f.check.writes(rank, off, n, flag)
	return f.direct(ctx, rank, off, n, true)
}

func (f *fences) passGet(ctx context.Context, rank int, off uint64, n int) error {
	if f == nil {
		return nil
	}
	f.catchUp()
	f.check.reads(rank, off, n)
	return f.direct(ctx, rank, off, n, false)
}

// pass is passPut of what the fence checker is told of otherwise.
func (f *fences) pass(ctx context.Context, rank int, off uint64, n int) error {
	if f == nil {
		return nil
	}
	f.catchUp()
	return f.direct(ctx, rank, off, n, true)
}

// direct tells the part, but not a cache of this rank's own memory, of which it has nothing.
func (f *fences) direct(ctx context.Context, rank int, off uint64, n int, write bool) error {
	if f.kept != nil && rank == f.job.rank {
		return nil
	}
	return f.part.Direct(ctx, rank, off, n, write)
}

// learned has every worker acquire before it passes its part by, or asks it, for the next time:
// what this rank has learned reaches a worker by ways of the program's own.
func (j *Job) learned() {
	if j.needs.fences != nil {
		j.epoch.Add(1)
	}
}

// unsent is the error of a collective operation of the job for the workers whose caches have writes
// that were not sent: only who uses a worker may send them.
func unsent(j *Job) error {
	if j.needs.fences == nil {
		return nil
	}
	var numbers []int
	j.workers.mu.Lock()
	for w := range j.workers.open {
		switch f := w.fences; {
		case f == nil || f.kept == nil:
		case f.kept.Unsent() > 0:
			numbers = append(numbers, w.number)
		default:
			f.check.delivered()
		}
	}
	j.workers.mu.Unlock()
	var errs []error
	slices.Sort(numbers)
	for _, n := range numbers {
		errs = append(errs, fmt.Errorf("conduit: worker %d has %w", n, ErrUnsent))
	}
	return errors.Join(errs...)
}

// fencer is what the message endpoints of a job whose workers have fences tell: am.Fencer.
type fencer struct{ j *Job }

// Request releases the worker that a request goes through. A job has nothing to release.
func (f fencer) Request(ctx context.Context, v am.Via, rank int, off uint64, n int) error {
	w, ok := v.(*Worker)
	if !ok {
		return nil
	}
	if err := w.enter("request"); err != nil {
		return err
	}
	defer w.exit()
	if err := w.fences.release(ctx); err != nil || n == 0 {
		return err
	}
	w.fences.check.deposit(rank, off, n)
	if err := w.fences.pass(ctx, rank, off, n); err != nil {
		return err
	}
	if k := w.fences.kept; k != nil {
		k.Linger() // a message is none of the worker's lanes
	}
	return nil
}

// Reply has workers acquire at their next access, that which the call went through among them: any
// goroutine may learn that a call that was started has ended.
func (f fencer) Reply(v am.Via, rank int, err error) {
	word(f).Reply(v, rank, err)
	if _, ok := v.(*Worker); ok {
		f.j.learned()
	}
}

// Handler is called when one begins, which knows what its sender had released, and when it has
// ended: meanwhile it may have learned more from its segment.
func (f fencer) Handler(from int) {
	word(f).Handler(from)
	f.j.learned()
}

// Barrier is [Job.Barrier] with a fence: what the worker wrote before is complete when other ranks
// return, and what it reads afterwards is what they wrote before. As Flush it returns the first
// error of an implicit operation; the rank has met the others nevertheless. It waits with the
// worker's lanes.
func (w *Worker) Barrier(ctx context.Context) error {
	return meet(ctx, w, "barrier", func() error { return w.job.collective(w.job.Team().Through(&w.held).Barrier(ctx)) })
}

// Broadcast is [Job.Broadcast] with a fence, as Barrier has.
func (w *Worker) Broadcast(ctx context.Context, root int, buf []byte) error {
	return meet(ctx, w, "broadcast", func() error { return w.job.collective(w.job.Team().Through(&w.held).Broadcast(ctx, root, buf)) })
}

// AllGather is [Job.AllGather] with a fence, as Barrier has.
func (w *Worker) AllGather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	err = meet(ctx, w, "all-gather", func() (err error) {
		all, err = w.job.Team().Through(&w.held).AllGather(ctx, mine)
		return w.job.collective(err)
	})
	return all, err
}

// meet has the job do a collective operation between the halves of a fence. It does it also
// where the first half fails: the other ranks wait for this one.
func meet(ctx context.Context, w *Worker, op string, do func() error) error {
	if err := w.enter(op); err != nil {
		return err
	}
	defer w.exit()
	lost := w.flush(ctx)
	err := do()
	w.fences.acquire()
	if lost != nil {
		return errors.Join(lost, err)
	}
	return err
}
