package am

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// of says whose message it was.
func of(rank int, err error) error {
	if e, ok := err.(*MessageError); ok {
		e.Peer = rank
	}
	return err
}

// cut ends what there is with a peer that broke the protocol: its books cannot be trusted any
// more. What still arrives from it is counted and dropped.
func (l *Lane) cut(p *peer, why error) { l.down(p, of(p.rank, why), false) }

// down ends everything that has to do with a peer, once. dead says that the network knows of
// it, and has ended its writes.
func (l *Lane) down(p *peer, cause error, dead bool) {
	if cause == nil {
		cause = errors.New("the network gave no cause")
	}
	p.mu.Lock()
	if p.down != nil {
		p.mu.Unlock()
		return
	}
	p.down = cause
	now := l.port.Now()
	p.purse.Close()
	for w := p.waiting.head; w != nil; w = w.links[atPeer].next {
		w.wake(l)
	}
	l.mu.Lock()
	l.pool.Close(p.rank, now)
	needs := needReply
	if dead {
		needs |= needSent
	}
	l.endCalls(p.rank, needs, &fabric.PeerDownError{Rank: p.rank, Op: "call", Cause: cause}, &l.stats.dead)
	if f := l.calls.free; planted == doubleReturn && f != 0 {
		l.calls.e[f-1].next = f
	}
	l.dropOwed(p.rank)
	l.replyless.wake(l)
	l.mu.Unlock()
	p.mu.Unlock()
	l.stats.closed.Add(1)
	l.report(p.rank, fmt.Errorf("am: rank %d is closed: %w", p.rank, cause))
	if f := l.cfg.OnClosed; f != nil {
		f(p.rank, cause)
	}
}

// endCalls ends what is in flight to a rank, or to all, with the lane's lock.
func (l *Lane) endCalls(rank int, n need, cause error, count *atomic.Uint64) {
	for i := range l.calls.e {
		e := &l.calls.e[i]
		n := n & e.needs
		if n == 0 || rank >= 0 && int(e.peer) != rank {
			continue
		}
		if n&needReply != 0 {
			count.Add(1)
		}
		if n&needSent != 0 {
			l.stats.written.Add(1)
		}
		if e.w != nil && e.w.err == nil {
			e.w.err = cause
		}
		if w := l.calls.settle(int32(i+1), n); w != nil {
			w.wake(l)
		}
	}
}

// fail ends the lane because its port does not work.
func (l *Lane) fail(err error) {
	l.report(-1, err)
	l.shut(fmt.Errorf("am: the lane's port failed: %w", err))
}

// ended is why the lane is of no use any more, or nil.
func (l *Lane) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// shut wakes everybody with an error, once, and returns what was in flight.
func (l *Lane) shut(cause error) *InFlightError {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		return nil
	}
	l.end = cause
	rest := l.inFlight("close")
	l.engine.closing.Store(true)
	l.endCalls(-1, needReply|needSent, cause, &l.stats.ended)
	l.dropOwed(-1)
	l.stats.nowhere.Add(uint64(len(l.late)))
	l.late = nil
	for w := l.parked.head; w != nil; w = w.links[parked].next {
		w.wake(l)
	}
	if w := l.engine.attendant; w != nil {
		w.wake(l)
	}
	l.port.Wake()
	return rest
}

// inFlight counts what has not ended, with the lane's lock; nil: nothing.
func (l *Lane) inFlight(op string) *InFlightError {
	e := &InFlightError{Op: op, Calls: l.calls.awaits, Writes: l.calls.writes, Owed: len(l.owed), Unsent: len(l.late), Handlers: int(l.handling.Load())}
	if *e == (InFlightError{Op: op}) {
		return nil
	}
	return e
}

// Quiesce waits until no call, write or owed reply of this rank is in flight. It does not
// keep others from beginning some. When ctx ends first it returns an *InFlightError.
func (l *Lane) Quiesce(ctx context.Context) error {
	if err := l.mayUse("quiesce"); err != nil {
		return err
	}
	w := l.waiter()
	defer l.recycle(w)
	for {
		l.mu.Lock()
		rest, end := l.inFlight("quiesce"), l.end
		l.mu.Unlock()
		if rest == nil || end != nil {
			return end
		}
		if err := ctx.Err(); err != nil {
			rest.Cause = context.Cause(ctx)
			return rest
		}
		if _, err := l.Test(); err != nil {
			return err
		}
		// Handlers and deferred replies end without an event: look again soon.
		l.cfg.Host.Sleep(time.Millisecond)
	}
}

// Close ends the lane. Everything pending gets ErrClosed. It returns an
// *InFlightError if that was something, which is for the caller to judge: a lane is closed
// in good order after Quiesce and a barrier. With handlers that do not end, or memory lent by Prepare, it
// wraps ErrBusy, and the port stays open: call it again. A second Close is nil.
func (l *Lane) Close() error {
	if err := l.mayUse("close"); err != nil {
		return err
	}
	rest := l.shut(ErrClosed)
	e := &l.engine
	const step = time.Millisecond
	for waited := time.Duration(0); ; waited += step {
		attended := e.attendant == nil || e.gone.Load()
		if attended && e.parked.Load() == 0 && l.handling.Load() == 0 && l.lent.Load() == 0 && l.prepared.Load() == 0 && l.tryLead() {
			break // for good
		}
		if e.closed.Load() {
			return nil
		}
		if waited >= l.cfg.CloseAfter {
			return fmt.Errorf("am: %d handlers run and %d messages are prepared, after %v: %w", l.handling.Load(), l.prepared.Load(), waited, ErrBusy)
		}
		l.port.Wake()
		l.cfg.Host.Sleep(step)
	}
	e.closed.Store(true)
	if err := l.port.Close(); err != nil {
		return err
	}
	if rest != nil {
		return rest
	}
	return nil
}
