package am

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/racesync"
)

// progress polls: one goroutine leads, the others park until their own business is done or the lead
// is free. A leader that goes unparks one of them.
//
// No wake-up is lost: a goroutine that parks is in the list first, and then tries for the lead and
// looks at its signal once more; a leader gives up the lead first, and then looks at the list.
type progress struct {
	*core
	emitter *emitter
	replier *replier
	inbox   *inbox
	lead    atomic.Bool
	waiting atomic.Int32 // length of core.parked

	// Of the leader.
	taken int    // events of the last poll
	waits uint64 // that are not in stats.waits yet
	spare *batch // the last one, if nothing came with it

	attends atomic.Bool // the attendant leads
	gone    atomic.Bool // the attendant has ended
	closed  atomic.Bool
}

func (g *progress) tryLead() bool { return g.lead.CompareAndSwap(false, true) }
func (g *progress) leave()        { g.lead.Store(false) }

// handOver unparks one waiter, if no goroutine leads.
func (g *progress) handOver() {
	if g.waiting.Load() != 0 && !g.lead.Load() {
		g.unparkOne()
	}
}

func (g *progress) unparkOne() {
	g.mu.Lock()
	if w := g.parked.First(); w != nil {
		g.leaveParkedLocked(w)
		w.unpark()
		g.stats.handOvers.Add(1)
	}
	g.mu.Unlock()
}

// leaveParkedLocked takes w out of the list of parked waiters.
func (g *progress) leaveParkedLocked(w *waiter) {
	w.place.Leave()
	g.waiting.Store(int32(g.parked.Len()))
}

// await makes progress until w is signaled, ctx ends, w waits for too long or the endpoint is
// closed. Without an error the caller looks for itself whether it has what it waited for.
func (g *progress) await(ctx context.Context, w *waiter) error {
	lockrank.MustHoldNone("wait for an endpoint")
	err := g.waitFor(ctx, w)
	if g.waiting.Load() != 0 {
		g.handOver()
	}
	return err
}

// waitFor is await, but for the hand-over that ends it.
func (g *progress) waitFor(ctx context.Context, w *waiter) error {
	began, counted := w.began, false
	w.began = 0
	for again := false; !w.consume(); again = true {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if g.closing.Load() {
			return g.ended()
		}
		if again && w.since != 0 {
			if err := g.stalled(w); err != nil {
				return err
			}
		}
		if g.inbox.unclaimed.Load() > 0 && g.inbox.help() {
			began = 0 // it may have taken long
			continue
		}
		if g.tryLead() {
			if !counted {
				g.waits++
			}
			if b := g.collect(ctx, w, began, false); b != nil {
				g.inbox.run(b)
			}
		} else if err := g.park(ctx, w, !counted); err != nil {
			return err
		}
		began, counted = 0, true
	}
	return nil
}

// park sleeps until w is unparked. It is a wait of its own if it is the first.
func (g *progress) park(ctx context.Context, w *waiter, first bool) error {
	g.mu.Lock()
	if first {
		g.stats.waits++
	}
	if w.place.In() == nil {
		g.parked.Add(&w.place, w)
	}
	g.waiting.Store(int32(g.parked.Len()))
	if w.since != 0 {
		if at := w.since + g.cfg.StallAfter; g.stallDue == 0 || at < g.stallDue {
			g.stallDue = at
			g.arm(at)
		}
	}
	g.mu.Unlock()
	w.mode.Store(parking)
	var err error
	if !w.pending() && !g.closing.Load() && g.lead.Load() {
		if g.attends.Load() {
			g.attendant.unpark()
		}
		g.stats.parks.Add(1)
		err = w.parker.Park(ctx)
	}
	w.mode.Store(awake)
	g.mu.Lock()
	g.leaveParkedLocked(w)
	g.mu.Unlock()
	return err
}

// collect polls until there are handlers to run, which it returns, or w has reason to look. The
// caller leads, and does not any more when it returns. known is the time, if that is known; else 0.
func (g *progress) collect(ctx context.Context, w *waiter, known time.Duration, sleep bool) *batch {
	b := g.leaderBatch()
	gave := time.Duration(0) // how long the processor was given away before this round
	for from := time.Duration(0); ; {
		now := g.round(b, g.budget(sleep), known)
		known = 0
		if gave > 0 {
			g.cfg.Sharing.Learn(gave, g.taken > 0 || w.pending())
			gave = 0
		}
		if b.n > 0 || w.pending() || g.inbox.unclaimed.Load() > 0 || ctx.Err() != nil || g.closing.Load() ||
			g.overdue(w, now) {
			break
		}
		if from == 0 || g.taken > 0 {
			from = now
		}
		if sleep && g.waiting.Load() > 0 { // a parked goroutine polls better than the attendant
			break
		}
		switch idle := now - from; {
		case sleep || idle >= g.cfg.SpinFor:
			g.sleep(ctx, w)
			from = 0
		case g.cfg.Sharing != nil && g.cfg.Sharing.Probe(idle):
			gave = g.cfg.Sharing.Yield(idle)
		default:
			g.cfg.Host.Yield()
		}
	}
	b = g.leaveWith(b)
	if b != nil && (g.attendant == nil || sleep) {
		g.handOver() // handlers may take their time
	}
	return b
}

// leaderBatch is batch for the leader.
func (g *progress) leaderBatch() *batch {
	b := g.spare
	g.spare = nil
	if b == nil {
		b = g.inbox.batch()
	}
	return b
}

// leaveWith gives the lead up with the result of the last round: a batch that is offered, or nil if
// nothing is to be done.
func (g *progress) leaveWith(b *batch) *batch {
	if b.n == 0 && b.taken == 0 {
		g.spare, b = b, nil
	} else {
		g.inbox.offer(b)
	}
	g.leave()
	return b
}

func (g *progress) budget(sleep bool) time.Duration {
	if sleep || g.cfg.SpinFor == 0 {
		return 0
	}
	if s := g.cfg.Sharing; s != nil {
		return min(pollBudget, s.After())
	}
	return pollBudget
}

// round polls once and takes what there is. It returns the time: what was known when it began, if
// that is not 0 and something comes within the budget. Then the time is behind by that much and no
// more, which recalls of credits and the like do not mind; a clock costs as much as two locks.
func (g *progress) round(b *batch, budget, known time.Duration) time.Duration {
	c := g.core
	n, err := c.net.Poll(b.events[:], budget)
	now := known
	if now == 0 || n == 0 {
		now = c.net.Now()
	}
	g.taken = n
	if n > 0 {
		racesync.Acquire()
	}
	if err != nil {
		g.fail(err)
		return now
	}
	c.mu.Lock()
	c.rounding = true
	g.inbox.processLocked(b, n, now)
	err = g.inbox.settleLocked(b, n, now)
	c.rounding = false
	var quick []func()
	if len(c.quick) > 0 {
		quick, c.quick = c.quick, nil
	}
	c.stats.waits += g.waits
	g.waits = 0
	due := !g.nothingDueLocked(now)
	c.mu.Unlock()
	for _, f := range quick {
		f()
	}
	if err != nil {
		g.fail(err)
	}
	if c.deaths.Load() != nil && g.takeDeaths() || due {
		g.service(now)
	}
	return now
}

// sleep waits in the network until something arrives. The network's Wake ends it for w.
func (g *progress) sleep(ctx context.Context, w *waiter) {
	began := g.net.Now()
	if old := g.armed.Load(); time.Duration(old) <= began { // it has rung: a later arm must not rely on it
		g.armed.CompareAndSwap(old, 0)
	}
	at := g.due(began)
	if w.since != 0 {
		at = sooner(at, w.since+g.cfg.StallAfter)
	}
	g.arm(at)
	w.mode.Store(sleeping)
	if !w.pending() && !g.closing.Load() {
		g.stats.sleeps.Add(1)
		if err := g.net.Wait(ctx); err != nil && ctx.Err() == nil {
			g.fail(err)
		}
	}
	w.mode.Store(awake)
}

// rounds counts the polls.
func (g *progress) rounds() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stats.polls
}

// attend leads when no other goroutine has for a while, so that handlers run while the program
// computes.
func (g *progress) attend() {
	defer g.gone.Store(true)
	pause := g.cfg.AttendAfter
	for !g.closing.Load() {
		seen := g.rounds()
		for rest := pause; rest > 0 && !g.closing.Load(); rest -= attendStep {
			g.cfg.Host.Sleep(min(rest, attendStep))
		}
		if g.inbox.help() || g.rounds() != seen {
			pause = g.cfg.AttendAfter
			continue
		}
		if !g.tryLead() { // the leader sleeps, and what arrives wakes it
			pause = min(2*pause, max(attendMost, g.cfg.AttendAfter))
			continue
		}
		pause = g.cfg.AttendAfter
		g.attendNow()
	}
}

// attendNow leads until another goroutine wants to. The caller leads.
func (g *progress) attendNow() {
	w := g.attendant
	g.attends.Store(true)
	for {
		w.state.Store(0)
		g.inbox.run(g.collect(context.Background(), w, 0, true))
		g.inbox.help()
		if g.closing.Load() || g.waiting.Load() > 0 || !g.tryLead() {
			break
		}
	}
	g.attends.Store(false)
	g.handOver()
}
