package conduit

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit/am"
)

// The fences of a worker are those of the part that keeps bytes of other ranks for it, if there is
// one; see "Fences and parts" in the package comment. Without it w.fences is nil everywhere, and
// the job has no fencer.

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
	defer w.guard.Exit()
	if err := w.fences.Release(ctx); err != nil || n == 0 {
		return err
	}
	return w.fences.Direct(ctx, rank, off, n, true)
}

// Reply acquires for the worker that the call went through.
func (f fencer) Reply(v am.Via) {
	if w, ok := v.(*Worker); ok && w.peers != nil {
		w.acquire()
	}
}

// Handler is called when one begins, which knows what its sender had released, and when it has
// ended: meanwhile it may have learned more from its segment.
func (f fencer) Handler() { f.j.learned() }

// learned has every worker acquire before it passes its fences by, or asks them, for the next time:
// what this rank has learned reaches a worker by ways of the program's own.
func (j *Job) learned() {
	if j.needs.fences != nil {
		j.epoch.Add(1)
	}
}

// openFences makes the fences of a worker whose lanes are open.
func (w *Worker) openFences() (err error) {
	if w.job.needs.fences != nil {
		w.epoch = w.job.epoch.Load()
		w.fences, err = w.job.needs.fences(view{w.job}, w)
	}
	return err
}

func (w *Worker) closeFences() error {
	if w.fences == nil {
		return nil
	}
	return w.fences.Close()
}

// releaseWrites is the first half of an operation that fences, and acquire the second.
func (w *Worker) releaseWrites(ctx context.Context) error {
	if w.fences == nil {
		return nil
	}
	return w.fences.Release(ctx)
}

func (w *Worker) acquire() {
	if w.fences != nil {
		w.epoch = w.job.epoch.Load()
		w.fences.Acquire()
	}
}

// catchUp acquires if the job has learned something since the worker did.
func (w *Worker) catchUp() {
	if w.epoch != w.job.epoch.Load() {
		w.acquire()
	}
}

// passBy is called before an operation that passes the fences by, which was found to be in order.
func (w *Worker) passBy(rank int, off uint64, n int, write bool) error {
	if w.fences == nil {
		return nil
	}
	w.catchUp()
	return w.fences.Direct(w.ctx, rank, off, n, write)
}

// beforeAtomic is called before an atomic that returns a value, which acquires when it is there.
func (w *Worker) beforeAtomic(op string, node uint32, off uint64) error {
	if w.fences == nil {
		return nil
	}
	if _, err := w.check(op, node, off, 8); err != nil {
		return err
	}
	return w.fences.Release(w.ctx)
}

// Barrier is [Job.Barrier] with a fence: what the worker wrote before is complete when other ranks
// return, and what it reads afterwards is what they wrote before. As Flush it returns the first
// error of an implicit operation; the rank has met the others nevertheless.
func (w *Worker) Barrier(ctx context.Context) error {
	return w.collective(ctx, "barrier", func() error { return w.job.Barrier(ctx) })
}

// Broadcast is [Job.Broadcast] with a fence, as Barrier has.
func (w *Worker) Broadcast(ctx context.Context, root int, buf []byte) error {
	return w.collective(ctx, "broadcast", func() error { return w.job.Broadcast(ctx, root, buf) })
}

// AllGather is [Job.AllGather] with a fence, as Barrier has.
func (w *Worker) AllGather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	err = w.collective(ctx, "all-gather", func() (err error) {
		all, err = w.job.AllGather(ctx, mine)
		return err
	})
	return all, err
}

// collective has the job do a collective operation between the halves of a fence. It does it also
// where the first half fails: the other ranks wait for this one.
func (w *Worker) collective(ctx context.Context, op string, do func() error) error {
	if err := w.enter(op); err != nil {
		return err
	}
	defer w.guard.Exit()
	lost := w.flush(ctx)
	err := do()
	w.acquire()
	if lost != nil {
		return errors.Join(lost, err)
	}
	return err
}
