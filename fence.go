package conduit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/am"
)

// release is the first half of an operation that fences, and acquire the second. Writes that a
// chain has collected are posted before. Without a fence they do nothing.
func (w *Worker) release(ctx context.Context) error { return releaseFor(ctx, w, 0, 0, 0) }

// releaseFor is release before a message that writes n bytes at off of a rank.
func releaseFor(ctx context.Context, w *Worker, rank int, off uint64, n int) error {
	if w.fence == nil {
		return nil
	}
	if err := w.chain.postOpen(); err != nil {
		return err
	}
	return inRegion(w.fence.ReleaseFor(ctx, rank, off, n), w.begin)
}

func (w *Worker) acquire() {
	if w.fence != nil && !w.catchUp() {
		w.fence.Acquire()
	}
}

// catchUp has the worker know what its job has learned since it looked last: which ranks are dead,
// and that others have written something. It reports whether there was anything.
func (w *Worker) catchUp() bool {
	now := w.generation.Load()
	if w.seen == now {
		return false
	}
	if w.deathsSeen != w.deaths.Load() {
		w.refresh()
	}
	w.seen = now
	if w.fence != nil {
		w.fence.Acquire()
	}
	return true
}

// learned has every worker acquire before its next access: what this rank has learned reaches a
// worker by ways of the program's own.
func (j *Job) learned() {
	if j.cfg.Cache != nil {
		j.members.generation.Add(1)
	}
}

// unsent is the error of a collective operation of the job for the workers whose caches have writes
// that were not sent: only who uses a worker may send them.
func unsent(j *Job) error {
	if j.cfg.Cache == nil {
		return nil
	}
	var numbers []int
	j.workers.mu.Lock()
	for w := range j.workers.open {
		if w.kept.cache.Unsent() > 0 {
			numbers = append(numbers, w.number)
		} else if w.kept.told != nil {
			w.kept.told.Deliver()
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

// fencer learns of the messages of a job whose workers have caches: am.Fencer.
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
	w.catchUp()
	return releaseFor(ctx, w, rank, off, n)
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
	w.acquire()
	if lost != nil {
		return errors.Join(lost, err)
	}
	return err
}
