//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/spin"
	"github.com/ibconduit/conduit/verbs"
)

var errSpent = errors.New("ibv: no such operation: its handle was collected already, or is another lane's")

// room makes sure that one more work request to k can be posted.
func (e *endpoint) room(k *link) error {
	if len(e.pending) == chainSlots || e.runs >= verbs.MaxBatch-1 {
		if err := e.post(); err != nil {
			return err
		}
	}
	for k.outstanding >= int32(e.net.cfg.Depth) || e.outstanding >= e.limit {
		if err := e.stall(k); err != nil {
			return err
		}
	}
	return k.err
}

// stall waits for a completion because something is full. It ends: each
// request out completes or fails within the device's retries.
func (e *endpoint) stall(k *link) error {
	e.counters.Stalls++
	ended := e.ended
	for p := (pacer{}); e.ended == ended && k.err == nil; {
		if err := e.turn(context.Background(), &p); err != nil {
			return err
		}
	}
	return k.err
}

// turn is one turn of a wait for completions.
func (e *endpoint) turn(ctx context.Context, p *pacer) error {
	n, err := e.progress(1, pollBudget)
	if n == 0 && err == nil {
		return e.pause(ctx, p)
	}
	*p = pacer{}
	if err == nil && ctx.Err() != nil { // swaps may meet with completions without end
		err = context.Cause(ctx)
	}
	return err
}

// pacer paces one wait for completions.
type pacer struct{ since time.Time }

// pause is called after a polling budget without completions: it gives way, and
// parks once that has gone on for a while.
func (e *endpoint) pause(ctx context.Context, p *pacer) error {
	if e.downSeen != e.net.downSeq.Load() {
		e.noticeDowns()
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	if now.Sub(p.since) < spinFor {
		runtime.Gosched()
		return nil
	}
	p.since = time.Time{}
	return e.park(ctx)
}

// park sleeps until the completion queue has something, or parkFor is over, or the context's deadline. To be told of its
// cancellation at once would cost each sleep seven allocations; the next look at it tells.
func (e *endpoint) park(ctx context.Context) error {
	if err := e.cq.Arm(false); err != nil {
		return err
	}
	// What came between the last poll and the arming makes no event.
	if n, err := e.progress(1, 0); n > 0 || err != nil {
		return err
	}
	d := parkFor
	if end, ok := ctx.Deadline(); ok {
		// By its own clock the context may end later: do not spin until then.
		d = min(d, max(time.Until(end), time.Millisecond))
	}
	_, err := e.channel.WaitFor(d)
	return err
}

// Test makes progress and reports whether an operation is complete.
func (l *lane) Test(h fabric.Handle) (uint64, bool, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return 0, false, err
		}
		defer l.guard.Exit()
	}
	e := l.ep
	switch {
	case e == nil:
		return 0, false, errClosed("test")
	case h == fabric.Done:
		return 0, true, nil
	}
	o := e.find(h)
	if o == none {
		return 0, false, errSpent
	}
	if e.downSeen != e.net.downSeq.Load() {
		e.noticeDowns()
	}
	if e.ops[o].parts > 0 {
		if _, err := e.progress(1, 0); err != nil && e.ops[o].parts > 0 {
			return 0, false, err
		}
	}
	if e.ops[o].parts > 0 {
		return 0, false, nil
	}
	err := e.collect(o)
	return e.lastOld, true, err
}

// Wait blocks until an operation is complete.
func (l *lane) Wait(ctx context.Context, h fabric.Handle) (uint64, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return 0, err
		}
		defer l.guard.Exit()
	}
	e := l.ep
	switch {
	case e == nil:
		return 0, errClosed("wait")
	case h == fabric.Done:
		return 0, nil
	}
	o := e.find(h)
	if o == none {
		return 0, errSpent
	}
	for p := (pacer{}); e.ops[o].parts > 0; {
		if err := e.turn(ctx, &p); err != nil && e.ops[o].parts > 0 {
			return 0, err
		}
	}
	err := e.collect(o)
	return e.lastOld, err
}

// Abandon leaves an operation to itself: its record is given back with its last piece.
func (l *lane) Abandon(h fabric.Handle) {
	if owner.Checked {
		if l.guard.Enter() != nil {
			return
		}
		defer l.guard.Exit()
	}
	if l.ep == nil {
		return
	}
	if o := l.ep.find(h); o != none {
		l.ep.abandonOp(o)
	}
}

// Flush blocks until nothing of the lane is in flight.
func (l *lane) Flush(ctx context.Context) error {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return err
		}
		defer l.guard.Exit()
	}
	e := l.ep
	if e == nil {
		return errClosed("flush")
	}
	e.askAll()
	for p := (pacer{}); e.outstanding > 0; {
		if err := e.turn(ctx, &p); err != nil && e.outstanding > 0 {
			return err
		}
	}
	err := e.implicitErr
	e.implicitErr = nil
	return err
}

// askAll makes every link whose last requests are silent owe a completion.
func (e *endpoint) askAll() {
	for _, r := range e.active {
		if k := &e.links[r]; k.silent > 0 {
			e.owe(k)
		}
	}
}

// Poll makes progress without waiting.
func (l *lane) Poll() error {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return err
		}
		defer l.guard.Exit()
	}
	e := l.ep
	if e == nil {
		return errClosed("poll")
	}
	if e.downSeen != e.net.downSeq.Load() {
		e.noticeDowns()
	}
	if e.outstanding == 0 {
		return nil
	}
	_, err := e.progress(1, 0)
	return err
}

// WaitWord blocks until a word of the segment, which the device writes, fulfils
// the condition.
func (l *lane) WaitWord(ctx context.Context, word *uint64, c fabric.Cond, value uint64, stop func() error) error {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return err
		}
		defer l.guard.Exit()
	}
	e := l.ep
	if e == nil {
		return errClosed("wait-until")
	}
	if err := e.post(); err != nil {
		return err
	}
	var w spin.Waiter
	for turn := 0; !c.Holds(atomic.LoadUint64(word), value); {
		if !w.Pause() {
			continue
		}
		if turn++; turn%wordPolls == 0 && e.outstanding > 0 {
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

// overdue is why a context has ended. A goroutine that never schedules may keep the runtime from running
// the context's timer for milliseconds, so past its deadline it gets the chance.
func overdue(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(end) {
		runtime.Gosched()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Begin starts a batch.
func (l *lane) Begin() {
	if l.ep != nil {
		l.ep.batching = true
	}
}

// End posts the batch.
func (l *lane) End() error {
	if l.ep == nil {
		return errClosed("end of a batch")
	}
	l.ep.batching = false
	return l.ep.post()
}

// Mapped is always nil: no loads and stores reach a peer through a device.
func (l *lane) Mapped(int) []byte { return nil }

// Counters are the lane's.
func (l *lane) Counters() *fabric.Counters { return l.counters }

// Close gives the endpoint back. What is in flight completes later; the
// endpoint serves no other lane before.
func (l *lane) Close() error {
	e := l.ep
	if e == nil {
		return nil
	}
	l.ep = nil
	e.batching = false
	e.askAll()
	err := e.post()
	for i := range e.ops {
		if e.ops[i].live {
			e.abandonOp(int32(i))
		}
	}
	if err == nil {
		err = e.implicitErr
	}
	e.net.giveBack(e)
	if err != nil {
		return fmt.Errorf("ibv: close lane: %w", err)
	}
	return nil
}
