package am

import "fmt"

// stalled returns a *StallError if w waits for too long.
func (l *Endpoint) stalled(w *waiter) error {
	now := l.port.Now()
	if !l.overdue(w, now) {
		return nil
	}
	l.stats.stalls.Add(1)
	e := &StallError{Op: fmt.Sprintf("%s %q", w.op, w.h.name), Rank: w.rank, For: now - w.since}
	switch {
	case w.waits(atPeer) && !w.waits(atLane) && !w.waits(atReplies):
		p := l.known(w.rank)
		p.mu.Lock()
		e.Queue = p.waiting.Len()
		e.Resource, e.Holder = "room in the network's queue", "messages to this rank that are under way"
		if err := p.purse.Explain(now); !p.full {
			e.Resource, e.Holder = "a credit", err.Error()
		}
		p.mu.Unlock()
	case w.waits(atLane):
		l.mu.Lock()
		e.Resource, e.Queue, e.Holder = "a send buffer", l.waiting.Len(), fmt.Sprintf("the network, and %d prepared messages", l.prepared.Load())
		l.mu.Unlock()
	case w.waits(atReplies):
		l.mu.Lock()
		e.Resource, e.Queue, e.Holder = "a buffer for the reply", l.replyless.Len(), l.pool.Describe(now)
		l.mu.Unlock()
	default:
		l.mu.Lock()
		e.Queue = l.calls.awaits
		e.Resource, e.Holder = "the reply", "the handler there, or a rank that does not poll"
		if w.op == "post" {
			e.Resource, e.Holder = "the end of a write", "the network"
		}
		l.mu.Unlock()
	}
	l.report(w.rank, e)
	return e
}
