//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/spin"
	"github.com/ibconduit/conduit/verbs"
)

var errSpent = errors.New("ibv: no such operation: its handle was collected already, or is another lane's")

// enter returns the queue set for a call, and holds the guard until Exit.
func (l *lane) enter(op string) (*queueSet, error) {
	if err := l.guard.Enter(); err != nil {
		return nil, err
	}
	if l.set == nil {
		l.guard.Exit()
		return nil, errClosed(op)
	}
	return l.set, nil
}

// Test makes progress and reports whether an operation is complete.
func (l *lane) Test(h fabric.Handle) (uint64, bool, error) {
	e, err := l.enter("test")
	if err != nil {
		return 0, false, err
	}
	defer l.guard.Exit()
	if h == fabric.Done {
		return 0, true, nil
	}
	o := e.ops.find(h)
	if o == none {
		return 0, false, errSpent
	}
	if e.downSeen != e.net.downSeq.Load() {
		e.noticeDowns()
	}
	if e.ops.all[o].parts > 0 {
		if _, err := e.progress(1, 0); err != nil && e.ops.all[o].parts > 0 {
			return 0, false, err
		}
	}
	if e.ops.all[o].parts > 0 {
		return 0, false, nil
	}
	err = l.set.collect(o)
	return e.lastOld, true, err
}

// Wait blocks until an operation is complete.
func (l *lane) Wait(ctx context.Context, h fabric.Handle) (uint64, error) {
	e, err := l.enter("wait")
	if err != nil {
		return 0, err
	}
	defer l.guard.Exit()
	if h == fabric.Done {
		return 0, nil
	}
	o := e.ops.find(h)
	if o == none {
		return 0, errSpent
	}
	for p := (pacer{}); e.ops.all[o].parts > 0; {
		if err := e.turn(ctx, &p); err != nil && e.ops.all[o].parts > 0 {
			return 0, err
		}
	}
	err = l.set.collect(o)
	return e.lastOld, err
}

// Abandon leaves an operation to itself: its record is given back with its last work request.
func (l *lane) Abandon(h fabric.Handle) {
	e, err := l.enter("abandon")
	if err != nil {
		return
	}
	defer l.guard.Exit()
	if o := e.ops.find(h); o != none {
		e.ops.abandon(o)
	}
}

// Flush blocks until nothing of the lane is in flight.
func (l *lane) Flush(ctx context.Context) error {
	e, err := l.enter("flush")
	if err != nil {
		return err
	}
	defer l.guard.Exit()
	e.tx.probeSilent()
	if err := e.drain(ctx); err != nil {
		return err
	}
	return e.failed.Take()
}

// FlushPeer blocks until nothing of the lane to a peer is in flight.
func (l *lane) FlushPeer(ctx context.Context, peer int) error {
	e, err := l.enter("flush")
	if err != nil {
		return err
	}
	defer l.guard.Exit()
	q, err := e.served("flush", peer)
	if err != nil {
		return err
	}
	if q != nil {
		if err := e.drainPeer(ctx, q); err != nil {
			return err
		}
	}
	return e.failed.TakePeer(peer)
}

// Quiet reports whether nothing of the lane to a peer is in flight.
func (l *lane) Quiet(peer int) bool {
	e, err := l.enter("quiet")
	if err != nil {
		return false
	}
	defer l.guard.Exit()
	if peer < 0 {
		return e.idle()
	}
	q, _ := e.served("quiet", peer) // nil also of a rank that another network serves
	return q == nil || !e.busy(q)
}

// Fence has the device work on later requests to a peer after those that are in flight. The old
// value of an atomic that is a loop of requests decides whether there is another: it is waited for.
func (l *lane) Fence(ctx context.Context, peer int) error {
	e, err := l.enter("fence")
	if err != nil {
		return err
	}
	defer l.guard.Exit()
	q, err := e.served("fence", peer)
	switch {
	case err != nil || q == nil: // nothing is in flight to a rank that the lane is not connected to
		return err
	case e.loops.n > 0:
		return e.drainPeer(ctx, q)
	case q.flight.n > 0:
		q.order = uint8(verbs.Fence)
	}
	return nil
}

// Await blocks until a group of a batch is complete.
func (l *lane) Await(ctx context.Context, q *fabric.Completions) error {
	e, err := l.enter("await")
	if err != nil {
		return err
	}
	defer l.guard.Exit()
	for p := (pacer{}); q.Len() == 0; {
		if q.InFlight() == 0 || e.idle() {
			return fmt.Errorf("ibv: await: %w", fabric.ErrIdle)
		}
		if err := e.turn(ctx, &p); err != nil && q.Len() == 0 {
			return err
		}
	}
	return nil
}

// Poll makes progress without waiting.
func (l *lane) Poll() error {
	e, err := l.enter("poll")
	if err != nil {
		return err
	}
	defer l.guard.Exit()
	if e.downSeen != e.net.downSeq.Load() {
		e.noticeDowns()
	}
	if e.idle() {
		return nil
	}
	_, err = e.progress(1, 0)
	return err
}

// WaitWord blocks until a word of the segment, which the device writes, fulfils
// the condition.
func (l *lane) WaitWord(ctx context.Context, word *uint64, c fabric.Cond, value uint64, stop func() error) error {
	e, err := l.enter("wait-until")
	if err != nil {
		return err
	}
	defer l.guard.Exit()
	if err := e.post(); err != nil {
		return err
	}
	w := spin.Waiter{Sharing: e.net.cfg.Sharing}
	defer func() { w.Done(c.Holds(atomic.LoadUint64(word), value)) }()
	for turn := 0; !c.Holds(atomic.LoadUint64(word), value); {
		if !w.Pause() {
			continue
		}
		if turn++; turn%wordPolls == 0 && !e.idle() {
			if _, err := e.progress(1, 0); err != nil {
				return err
			}
		}
		if err := overdue(ctx); err != nil {
			return err
		}
		if stop != nil {
			if err := stop(); err != nil {
				return err
			}
		}
	}
	return nil
}

// overdue is why a context has ended. A goroutine that never schedules may keep the runtime from
// running the context's timer for milliseconds, so past its deadline it gets the chance.
func overdue(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(end) {
		runtime.Gosched()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Mapped is always nil: no loads and stores reach a peer through a device.
func (l *lane) Mapped(int) []byte { return nil }

// Counters are the lane's.
func (l *lane) Counters() *fabric.Counters { return l.counters }

// Close gives the queue set back. What is in flight completes later; it serves no other lane
// before.
func (l *lane) Close() error {
	e := l.set
	if e == nil {
		return nil
	}
	l.set = nil
	e.tx.probeSilent()
	err := e.post()
	for i := range e.ops.all {
		if e.ops.all[i].live {
			e.ops.all[i].loop = false // the attempt in flight is the last
			e.ops.abandon(int32(i))
		}
	}
	for _, o := range e.loops.again {
		e.endPart(o, 0, os.ErrClosed)
	}
	e.loops.again, e.loops.n = e.loops.again[:0], 0
	lost := e.failed.Take()
	e.net.giveBack(e)
	if err != nil {
		return errors.Join(fmt.Errorf("ibv: close lane: %w", err), lost)
	}
	return lost
}
