//go:build linux && cgo

package ibv

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// room makes sure that one more work request to a peer can be posted. After an error nothing is in
// flight to it.
func (e *queueSet) room(q *sendQueue) error {
	if e.tx.full() {
		if err := e.post(); err != nil {
			return err
		}
	}
	for !e.tx.room(q, 1) {
		if err := e.stall(q); err != nil {
			return err
		}
	}
	return q.err
}

// stall waits for a completion because something is full. It ends: each request in flight completes
// or fails within the device's retries.
func (e *queueSet) stall(q *sendQueue) error {
	e.counters.Stalls++
	retired := e.retired
	for p := (pacer{}); e.retired == retired && q.err == nil; {
		if err := e.turn(context.Background(), &p); err != nil {
			return e.lose(err)
		}
	}
	return q.err
}

// turn is one turn of a wait for completions.
func (e *queueSet) turn(ctx context.Context, p *pacer) error {
	n, err := e.progress(1, pollBudget)
	if n == 0 && err == nil {
		return e.pause(ctx, p)
	}
	*p = pacer{}
	if err == nil && ctx.Err() != nil { // loops may meet with completions without end
		err = context.Cause(ctx)
	}
	return err
}

// pacer paces one wait for completions.
type pacer struct{ since time.Time }

// pause is called after a polling budget without completions: it gives way, and parks once that has
// gone on for a while.
func (e *queueSet) pause(ctx context.Context, p *pacer) error {
	if e.downSeen != e.net.deaths.N.Load() {
		e.noticeDowns()
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	now := time.Now()
	if p.since.IsZero() {
		p.since = now
	}
	if now.Sub(p.since) < spinFor || len(e.loops.again) > 0 { // a loop pauses for less than a sleep
		runtime.Gosched()
		return nil
	}
	p.since = time.Time{}
	return e.park(ctx)
}

// park sleeps until the completion queue has something, or parkFor is over, or the context's
// deadline. Waking at once when it is cancelled would cost each sleep seven allocations; the next
// turn sees it.
func (e *queueSet) park(ctx context.Context) error {
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

// post rings the doorbell for staged requests.
func (e *queueSet) post() error {
	if !e.tx.staged() && len(e.tx.probes) == 0 {
		return nil
	}
	_, err := e.progress(0, 0)
	return err
}

// progress posts staged requests and polls within a budget, as Doorbell.Ring does, and completes
// what came. The count is of completions. An error means that polling failed and that nothing is in
// flight any more.
func (e *queueSet) progress(want int, budget time.Duration) (int, error) {
	if len(e.tx.probes) > 0 {
		e.tx.postProbes()
	}
	if len(e.loops.again) > 0 && e.loops.retry() {
		budget = min(budget, backoffMin) // or a loop would be late for its next attempt
	}
	c := e.counters
	if e.tx.staged() {
		c.Doorbells++
	}
	if want > 0 {
		c.Polls++
	}
	n, err := e.tx.ring(want, budget)
	return n, e.answered(n, err)
}

// answered deals with what a ring brought.
func (e *queueSet) answered(n int, err error) error {
	e.counters.Requests += uint64(e.tx.bell.Posted())
	if n > 0 {
		e.reap(e.tx.bell.Completions())
	}
	if err != nil {
		err = e.lose(err)
	}
	if len(e.loops.again)+len(e.tx.failed) > 0 {
		e.endFailed()
		e.loops.endDown()
	}
	if e.rings++; e.rings%ringsPerClock == 0 {
		e.yieldNowAndThen()
	}
	return err
}

// yieldNowAndThen lets the scheduler see this goroutine once in yieldEvery.
func (e *queueSet) yieldNowAndThen() {
	if now := time.Now(); now.Sub(e.yielded) >= yieldEvery {
		runtime.Gosched()
		e.yielded = now
	}
}

func (e *queueSet) reap(wcs []verbs.WC) {
	for i := range wcs {
		e.tx.completed(&wcs[i])
	}
}

// block waits until a list has a block. There is room for a work request then.
func (e *queueSet) block(q *sendQueue, list *blockList) error {
	for list.empty() {
		if err := e.stall(q); err != nil {
			return err
		}
		if err := e.room(q); err != nil { // what there was may be gone
			return err
		}
	}
	return nil
}

// endFailed ends the send queues that failed; their peers are down. Each is taken from the device
// first, which then works on its requests no more: their memory is the callers' again. What had
// completed before, ends with success; of other requests that were posted nothing is known.
func (e *queueSet) endFailed() {
	for len(e.tx.failed) > 0 {
		q := e.tx.failed[len(e.tx.failed)-1]
		e.tx.failed = e.tx.failed[:len(e.tx.failed)-1]
		cause, op := q.err, "operation"
		if q.flight.n > 0 && !q.probing {
			op = e.parts[q.flight.head].kind.String()
		}
		e.net.found(int(q.rank), cause)
		q.err = &fabric.PeerDownError{Rank: int(q.rank), Op: op, Cause: cause}
		if err := e.reset(q); err != nil {
			_ = e.lose(err) // each request has the error
			return
		}
		for n, err := 1, error(nil); n > 0; {
			if n, err = e.tx.ring(1, 0); err != nil {
				_ = e.lose(err)
				return
			}
			e.reap(e.tx.bell.Completions())
		}
		e.tx.endAll(q, q.err)
	}
}

// reset takes a queue pair from the device. One that cannot be may still write into blocks that
// other operations would get, and its registrations and registered memory stay in use until the
// queue set is released.
func (e *queueSet) reset(q *sendQueue) error {
	err := q.qp.Reset()
	if err == nil {
		return nil
	}
	e.net.log.Warn("ibv: a failed queue pair cannot be reset", "rank", q.rank, "err", err)
	for i, n := q.flight.head, q.flight.n; n > 0; i, n = e.tx.requests[i].next, n-1 {
		if !e.parts[i].bare {
			e.parts[i].hold, e.parts[i].memory = none, nil
		}
	}
	return err
}

// lose ends all send queues of this lane: its completion queue is of no more use. The peers may
// well live, and are not reported: when the device has gone, each lane finds out by itself.
func (e *queueSet) lose(err error) error {
	if e.lost == nil {
		e.lost = fmt.Errorf("ibv: the lane is lost, close it and open another: %w", err)
		e.net.log.Warn("ibv: a lane is lost", "lane", e.index, "err", err)
	}
	for _, q := range e.tx.failed {
		q.err = e.lost
	}
	e.tx.failed = e.tx.failed[:0]
	for _, q := range e.queues {
		if q == nil {
			continue
		}
		if q.err == nil {
			q.err = e.lost
		}
		if q.flight.n > 0 {
			_ = e.reset(q) // it has warned
			e.tx.endAll(q, q.err)
		}
	}
	return e.lost
}

// noticeDowns ends the send queues to ranks that were found down elsewhere.
func (e *queueSet) noticeDowns() {
	e.downSeen = e.net.deaths.N.Load()
	e.net.deaths.Each(func(rank int, cause error) {
		if q := e.queues[rank]; q != nil {
			e.tx.fail(q, cause)
		}
	})
	_, _ = e.progress(0, 0) // operations have the error
}

// idle reports that nothing is in flight, and no loop waits for its next attempt.
func (e *queueSet) idle() bool { return e.tx.out == 0 && len(e.loops.again) == 0 }

// drain waits until nothing is in flight.
func (e *queueSet) drain(ctx context.Context) error {
	for p := (pacer{}); !e.idle(); {
		if err := e.turn(ctx, &p); err != nil && !e.idle() {
			return err
		}
	}
	return nil
}

// busy reports that something is in flight to a peer, or a loop waits for its next attempt.
func (e *queueSet) busy(q *sendQueue) bool {
	return q.flight.n > 0 || slices.ContainsFunc(e.loops.again, func(o int32) bool { return e.ops.all[o].rank == q.rank })
}

// drainPeer waits until nothing is in flight to a peer.
func (e *queueSet) drainPeer(q *sendQueue) error {
	e.tx.probeLater(q)
	for p := (pacer{}); e.busy(q); {
		if err := e.turn(e.ctx, &p); err != nil && e.busy(q) {
			return err
		}
	}
	return nil
}
