package am

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/lockrank"
)

// engine is who makes progress: one goroutine leads, which means that it polls; the others
// park until their own business is done or the lead is free. Who leaves the lead
// and goes wakes one of them.
//
// No wake-up is lost: whoever parks is in the list first, and then tries for the lead and looks
// at its signal once more; whoever leaves gives up the lead first, and then looks at
// the list.
type engine struct {
	lead      atomic.Bool
	parked    atomic.Int32 // length of Endpoint.parked
	unclaimed atomic.Int32 // requests of Endpoint.active whose handlers nobody has begun
	armed     atomic.Int64 // the time given to the port's After last

	// Of who leads.
	event    time.Duration // when the last event came
	taken    int           // events of the last poll
	waits    uint64        // that settle has not counted yet
	patience patience      // for how long to poll without one before sleeping
	spare    *batch        // the last one, if nothing came with it

	attends   atomic.Bool // the attendant leads
	attendant *waiter     // nil: there is none
	closing   atomic.Bool
	gone      atomic.Bool // the attendant
	closed    atomic.Bool
}

func (l *Endpoint) tryLead() bool { return l.engine.lead.CompareAndSwap(false, true) }
func (l *Endpoint) leave()        { l.engine.lead.Store(false) }

// handOver wakes one of those who are parked, if nobody leads.
func (l *Endpoint) handOver() {
	if planted == noHandOver || l.engine.parked.Load() == 0 || l.engine.lead.Load() {
		return
	}
	l.mu.Lock()
	if w := l.parked.First(); w != nil {
		l.unpark(w)
		w.wake(l)
		l.stats.handOvers.Add(1)
	}
	l.mu.Unlock()
}

// unpark takes w out of the list of those who are parked, with the lane's lock.
func (l *Endpoint) unpark(w *waiter) {
	w.leave(parked)
	l.engine.parked.Store(int32(l.parked.Len()))
}

// await makes progress until w is signalled, ctx ends, w waits for too long or the lane
// is closed. Without an error the caller looks for itself whether it has what it waited for.
func (l *Endpoint) await(ctx context.Context, w *waiter) error {
	lockrank.MustHoldNone("wait for a lane")
	defer l.handOver()
	began, counted := w.began, false
	w.began = 0
	for again := false; !w.hear(); again = true {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if l.engine.closing.Load() {
			return l.ended()
		}
		if again {
			if err := l.stalled(w); err != nil {
				return err
			}
		}
		if l.help() {
			began = 0 // it may have taken long
			continue
		}
		if planted != noPoll && l.tryLead() {
			if !counted {
				l.engine.waits++
			}
			l.run(l.collect(ctx, w, began, false))
		} else if err := l.park(ctx, w, !counted); err != nil {
			return err
		}
		began, counted = 0, true
	}
	return nil
}

// park sleeps until somebody wakes w. It is a wait of its own if it is the first.
func (l *Endpoint) park(ctx context.Context, w *waiter, first bool) error {
	l.mu.Lock()
	if first {
		l.stats.waits++
	}
	l.parked.add(w, parked)
	l.engine.parked.Store(int32(l.parked.Len()))
	if w.since != 0 {
		if at := w.since + l.cfg.StallAfter; l.stallDue == 0 || at < l.stallDue {
			l.stallDue = at
			l.arm(at)
		}
	}
	l.mu.Unlock()
	w.mode.Store(parks)
	var err error
	if !w.told() && !l.engine.closing.Load() && (l.engine.lead.Load() || planted == noPoll) {
		if l.engine.attends.Load() {
			l.engine.attendant.wake(l)
		}
		l.stats.parks.Add(1)
		err = w.parker.Park(ctx)
	}
	w.mode.Store(runs)
	l.mu.Lock()
	l.unpark(w)
	l.mu.Unlock()
	return err
}

// collect polls until there are handlers to run, which it returns, or w has reason to look. The caller
// leads, and does not any more when it returns. known is the time, if that is known; else 0.
func (l *Endpoint) collect(ctx context.Context, w *waiter, known time.Duration, sleep bool) *batch {
	b, e := l.leaderBatch(), &l.engine
	from, slept := time.Duration(-1), time.Duration(0) // of the wait for the next event, which begins with a poll in vain
	for {
		now := l.round(b, l.budget(sleep), known)
		known = 0
		done := b.n > 0 || w.told() || e.unclaimed.Load() > 0 || ctx.Err() != nil || e.closing.Load() || l.overdue(w, now)
		if !sleep && (e.taken > 0 || done && from >= 0) {
			if from < 0 {
				from = now
			}
			if e.patience.waited(now-from, slept, e.taken) {
				l.stats.trials.Add(1)
			}
			from, slept = -1, 0
		}
		if done {
			break
		}
		if from < 0 {
			from = now
		}
		if sleep || now-from >= e.patience.now {
			if sleep && e.parked.Load() > 0 { // somebody polls better than the attendant
				break
			}
			d := l.sleep(ctx, w)
			if slept += d; !sleep {
				e.patience.slept(d)
			}
			continue
		}
		l.cfg.Host.Yield()
	}
	b = l.leaveWith(b)
	if b != nil && (e.attendant == nil || sleep) {
		l.handOver() // handlers may take their time
	}
	return b
}

func (l *Endpoint) budget(sleep bool) time.Duration {
	if sleep || l.cfg.SpinFor == 0 {
		return 0
	}
	return pollBudget
}

// round polls once and takes what there is. It returns the time: what was known when it began, if that is not 0 and something comes within
// the budget. Then the time is behind by that much and no more, which recalls of credits and the like do not mind; a clock costs as much as two locks.
func (l *Endpoint) round(b *batch, budget, known time.Duration) time.Duration {
	n, err := l.port.Poll(b.events[:], budget)
	now := known
	if now == 0 || n == 0 {
		now = l.port.Now()
	}
	l.engine.taken = n
	if err != nil {
		l.fail(err)
		return now
	}
	if n > 0 {
		l.engine.event = now
	}
	due, err := l.process(b, n, now)
	if err != nil {
		l.fail(err)
	}
	if l.bury() || due {
		l.serve(now)
	}
	return now
}

// sleep waits in the port until something arrives, and returns for how long it did. w is told by the port's Wake.
func (l *Endpoint) sleep(ctx context.Context, w *waiter) time.Duration {
	began := l.port.Now()
	if old := l.engine.armed.Load(); time.Duration(old) <= began { // it has rung: who knows an earlier time would rely on it
		l.engine.armed.CompareAndSwap(old, 0)
	}
	at := l.due(began)
	if w.since != 0 {
		at = sooner(at, w.since+l.cfg.StallAfter)
	}
	l.arm(at)
	w.mode.Store(sleeps)
	if !w.told() && !l.engine.closing.Load() {
		l.stats.sleeps.Add(1)
		if err := l.port.Wait(ctx); err != nil && ctx.Err() == nil {
			l.fail(err)
		}
	}
	w.mode.Store(runs)
	return l.port.Now() - began
}

// overdue reports whether w waits for too long.
func (l *Endpoint) overdue(w *waiter, now time.Duration) bool {
	return w.since != 0 && now-w.since >= l.cfg.StallAfter
}

// begin says what a goroutine is about to wait for, from now on. It returns the time.
func (l *Endpoint) begin(w *waiter, op string, h *Handler, rank int) time.Duration {
	w.op, w.h, w.rank = op, h, rank
	return l.beginAgain(w)
}

// beginAgain is begin for the next part of the same wait. Only since changes, which is the waiting goroutine's own:
// whoever brings the answer reads the rest.
func (l *Endpoint) beginAgain(w *waiter) time.Duration {
	now := max(1, l.port.Now())
	w.since, w.began = 0, 0
	if l.cfg.StallAfter > 0 {
		w.since = now
	}
	return now
}

// rounds counts the polls.
func (l *Endpoint) rounds() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats.polls
}

// attend leads when nobody else has for a while, so that handlers run while the program computes.
func (l *Endpoint) attend() {
	e := &l.engine
	defer e.gone.Store(true)
	pause := l.cfg.AttendAfter
	for !e.closing.Load() {
		seen := l.rounds()
		for rest := pause; rest > 0 && !e.closing.Load(); rest -= attendStep {
			l.cfg.Host.Sleep(min(rest, attendStep))
		}
		if l.help() || l.rounds() != seen {
			pause = l.cfg.AttendAfter
			continue
		}
		if !l.tryLead() { // somebody sleeps who will be woken by what arrives
			pause = min(2*pause, max(attendMost, l.cfg.AttendAfter))
			continue
		}
		pause = l.cfg.AttendAfter
		l.attendNow()
	}
}

// attendNow leads until somebody else wants to. The caller leads.
func (l *Endpoint) attendNow() {
	e := &l.engine
	w := e.attendant
	e.attends.Store(true)
	for {
		w.state.Store(0)
		l.run(l.collect(context.Background(), w, 0, true))
		l.help()
		if e.closing.Load() || e.parked.Load() > 0 || !l.tryLead() {
			break
		}
	}
	e.attends.Store(false)
	l.handOver()
}

// Test makes progress once, unless another goroutine does, and reports whether a handler ran. It does not wait. Errors: ErrInHandler,
// ErrClosed, or what made the network fail.
func (l *Endpoint) Test() (bool, error) {
	if err := l.mayUse("test"); err != nil {
		return false, err
	}
	lockrank.MustHoldNone("poll a lane")
	if !l.tryLead() {
		if l.engine.closing.Load() {
			return false, l.ended()
		}
		return false, nil // somebody else does
	}
	b := l.leaderBatch()
	l.round(b, 0, 0)
	b = l.leaveWith(b)
	some := b != nil // nobody else's after run
	l.run(b)
	l.handOver()
	return some, l.ended()
}

// Serve makes progress until ctx ends, whose cause it returns, or the lane is closed. A rank
// that does nothing but serve others calls it.
func (l *Endpoint) Serve(ctx context.Context) error {
	if err := l.mayUse("serve"); err != nil {
		return err
	}
	w := l.waiter()
	defer l.recycle(w)
	for {
		if err := l.await(ctx, w); err != nil {
			return err
		}
	}
}

// Poke has whoever sleeps for the lane look at once.
func (l *Endpoint) Poke() { l.port.Wake() }

// mayUse is at the head of whatever communicates.
func (l *Endpoint) mayUse(op string) error {
	lockrank.CheckCommunication(op)
	if running.here() {
		return ErrInHandler
	}
	return nil
}
