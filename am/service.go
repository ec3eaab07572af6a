package am

import (
	"fmt"
	"slices"
	"time"
)

// service does the work that is due: replies without a buffer, questions and grants, deadlines.
// The caller leads, and has seen that something is.
func (g *progress) service(now time.Duration) {
	g.replier.sendLate() // replies carry credits, too
	for _, p := range slices.Concat(g.emitter.controlsDue(now), g.emitter.askAll(now)) {
		g.cut(p, fmt.Errorf("am: rank %d answers no question since %v (Config.SilentAfter)", p.rank, g.cfg.SilentAfter))
	}
	g.replier.expire(now)
	g.watch(now)
	g.pingAll(now)
	g.mu.Lock()
	g.acquirer.serve(&g.acquirer.buffers) // no event tells that one has come free
	g.mu.Unlock()
}

// nothingDueLocked reports whether nothing of what service does is due.
func (g *progress) nothingDueLocked(now time.Duration) bool {
	return g.pool.Idle() && len(g.asking) == 0 && len(g.late) == 0 && g.acquirer.buffers.Len() == 0 &&
		(g.owedDue == 0 || now < g.owedDue) && (g.stallDue == 0 || now < g.stallDue) && !g.pingIsDueLocked(now)
}

// due is when service has something to do by the passing of time alone; 0: never.
func (g *progress) due(now time.Duration) (at time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t, ok := g.pool.Due(); ok {
		at = t
	}
	if g.acquirer.buffers.Len() > 0 || len(g.late) > 0 {
		at = sooner(at, now+retryAfter)
	}
	at = sooner(sooner(at, g.owedDue), g.stallDue)
	if g.calls.awaits > 0 {
		at = sooner(at, g.pingDue)
	}
	return sooner(at, g.emitter.askDueLocked(now))
}

// watch wakes the waiters that are parked for too long.
func (g *progress) watch(now time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stallDue == 0 || now < g.stallDue {
		return
	}
	g.stallDue = 0
	for w := g.parked.First(); w != nil; w = w.place.Next() {
		if w.since == 0 {
			continue
		}
		if at := w.since + g.cfg.StallAfter; at <= now {
			w.unpark()
		} else {
			g.stallDue = sooner(g.stallDue, at)
		}
	}
}

// pingIsDueLocked keeps the time of the next look at peers that owe replies.
func (g *progress) pingIsDueLocked(now time.Duration) bool {
	if g.calls.awaits == 0 || g.cfg.PingAfter < 0 || g.mute {
		g.pingDue = 0
		return false
	}
	if g.pingDue == 0 {
		g.pingDue = now + g.cfg.PingAfter
	}
	return now >= g.pingDue
}

// pingAll pings peers that owe a reply for long: a connection on which nothing moves shows nothing
// of the death of the other end. A ping tries once; without a credit the connection is closed
// instead, which shows as much, and the next message opens another.
func (g *progress) pingAll(now time.Duration) {
	g.mu.Lock()
	if !g.pingIsDueLocked(now) {
		g.mu.Unlock()
		return
	}
	g.pingDue = now + g.cfg.PingAfter
	ranks := g.calls.silent(g.cfg.Rank, now-g.cfg.PingAfter)
	g.mu.Unlock()
	for _, rank := range ranks {
		if err := g.emitter.trySend(g.known(rank), &outgoing{kind: ping}, nil, nil); passing(err) {
			_ = g.net.Disconnect(rank)
		}
	}
}
