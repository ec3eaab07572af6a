package am

import (
	"fmt"
	"time"
)

// stalled returns a *StallError if w waits for too long.
func (g *progress) stalled(w *waiter) error {
	now := g.net.Now()
	if !g.overdue(w, now) {
		return nil
	}
	g.stats.stalls.Add(1)
	e := &StallError{Op: fmt.Sprintf("%s %q", w.op, w.h.name), Rank: w.rank, For: now - w.since}
	g.mu.Lock()
	g.explainLocked(e, w)
	g.mu.Unlock()
	g.report(w.rank, e)
	return e
}

// explainLocked says what w waits for, and which holders there are as far as this rank knows.
func (g *progress) explainLocked(e *StallError, w *waiter) {
	a, c, now := &g.acquirer, &w.claim, g.net.Now()
	if q := c.waiting.In(); q != nil {
		e.Queue = q.Len()
		switch c.next {
		case stagePlace:
			e.Resource, e.Holder = "a place among the calls to the rank",
				fmt.Sprintf("%d calls that it has not answered", c.p.calls)
		case stageReply:
			e.Resource, e.Holder = "a buffer for the reply", g.pool.Describe(now)
		case stageCredit:
			e.Resource, e.Holder = "a credit", c.p.credits.Explain(now).Error()
		case stageShare:
			e.Resource, e.Holder = "a connection", fmt.Sprintf("%d messages to ranks that are not connected yet", a.shared)
		case stageRoom:
			e.Resource, e.Holder = "room in the network's queue", "messages to this rank that are in flight"
		default:
			e.Resource, e.Holder = "a send buffer", fmt.Sprintf("the network, and %d prepared messages", a.prepared)
		}
		return
	}
	e.Queue = g.calls.awaits - g.calls.grants
	e.Resource, e.Holder = "the reply", "the handler there, or a rank that does not poll"
	switch w.op {
	case "post":
		e.Resource, e.Holder = "the end of a write", "the network"
	case opAnnounce:
		e.Resource, e.Holder = "a place among the payloads announced to the rank",
			fmt.Sprintf("%d that it has granted no memory, or that are being sent", maxAnnounced)
		e.Queue = g.known(w.rank).large.queued.Len()
	case opGrant:
		e.Resource, e.Holder, e.Queue = "a grant of memory", "the receiver there, or a rank that does not poll",
			g.calls.grants
	}
}

// overdue reports whether w waits for too long.
func (g *progress) overdue(w *waiter, now time.Duration) bool {
	return w.since != 0 && now-w.since >= g.cfg.StallAfter
}
