//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/spin"
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
	if e.downSeen != e.net.deaths.N.Load() {
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
	if peer >= len(e.queues) {
		return true
	}
	q := e.queues[peer] // nil also of a rank that another network serves
	return q == nil || !e.busy(q)
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
	if e.downSeen != e.net.deaths.N.Load() {
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
	turn := 0
	return fabric.WaitWord(ctx, &spin.Waiter{Sharing: e.net.cfg.Sharing}, word, c, value, func() error {
		if turn++; turn%wordPolls == 0 && !e.idle() {
			if _, err := e.progress(1, 0); err != nil {
				return err
			}
		}
		if stop == nil {
			return nil
		}
		return stop()
	})
}

// Mapped is always nil: no loads and stores reach a peer through a device.
func (l *lane) Mapped(int) []byte { return nil }

// Counters are the lane's.
func (l *lane) Counters() *fabric.Counters { return l.counters }

// Close gives the queue set back. Operations in flight complete later; it serves no other lane
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
