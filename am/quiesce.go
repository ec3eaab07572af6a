package am

import (
	"context"
	"time"

	"github.com/ibconduit/conduit/internal/lockrank"
)

// Quiesce waits until no call, write or owed reply of this rank, and no large payload from or to it
// that was announced, is in flight, the network has brought all requests of this rank to their
// targets, and what had arrived here is handled; it may run these handlers itself. It does not keep
// goroutines from beginning some; a request that waits for a credit or a buffer has not begun. A
// reply that is just being handed to the network may be missed: its caller has not returned from
// its own Quiesce. When ctx ends first it returns an *InFlightError.
//
// Ranks that send nothing any more leave in good order by Quiesce, a barrier, Drain,
// Close. Where some may still send there are two barriers: Quiesce, a barrier, EndRequests,
// Quiesce, a barrier, Drain, Close. The barrier must not need the endpoints.
func (l *Endpoint) Quiesce(ctx context.Context) error {
	return l.calm(ctx, "quiesce", l.unfinished, l.stillSince)
}

// EndRequests has all requests of this rank refused with ErrClosed from now on, those that wait for
// a credit or a buffer included, and waits until the network has brought those that were sent to
// their targets. It does not wait for the answers, which come as before; handlers run and reply. No
// other rank is pinged from now on, so bound a Quiesce behind it: it may wait for one that died
// silently. When ctx ends first it returns an *InFlightError; requests stay refused.
func (l *Endpoint) EndRequests(ctx context.Context) error {
	if err := l.mayUse("end requests"); err != nil {
		return err
	}
	lockrank.MustHoldNone("end requests")
	l.core.mu.Lock()
	l.core.sealed, l.core.mute = true, true
	l.core.acquirer.unparkAll(nil)
	l.core.mu.Unlock()
	l.core.eachPeer(func(p *peer) {
		l.core.mu.Lock()
		l.core.acquirer.unparkAll(p)
		if p.large != nil {
			p.large.unparkQueued()
		}
		l.core.mu.Unlock()
	})
	return l.calm(ctx, "end requests", func() (e InFlightError) { e.Messages = l.unsent(); return e }, nil)
}

// Drain polls until what has arrived here is handled, by itself if need be, the functions of
// receivers have returned, and nothing more comes.
// It waits for nothing that this rank has in flight, and from now on pings no other rank: behind a
// barrier behind Quiesce the others may close their endpoints meanwhile. When ctx ends first it
// returns an *InFlightError, which cannot count what has not been looked at.
func (l *Endpoint) Drain(ctx context.Context) error {
	if err := l.mayUse("drain"); err != nil {
		return err
	}
	lockrank.MustHoldNone("drain")
	l.core.mu.Lock()
	l.core.mute = true // else one that has closed would be found dead, and Close not count the calls to it
	l.core.mu.Unlock()
	return l.calm(ctx, "drain", func() InFlightError {
		return InFlightError{Handlers: l.arrivals().running, Transfers: l.receiving()}
	}, l.stillSince)
}

// calm polls until nothing is left, and nothing arrives any more.
func (l *Endpoint) calm(ctx context.Context, op string, left func() InFlightError, still func(*arrivals) bool) error {
	if err := l.mayUse(op); err != nil {
		return err
	}
	lockrank.MustHoldNone(op)
	for look := l.arrivals(); ; {
		rest := left()
		none := rest == InFlightError{}
		if end := l.core.ended(); end != nil {
			return end
		}
		if none && (still == nil || still(&look)) {
			return nil
		}
		if ctx.Err() != nil {
			rest.Op, rest.Cause = op, context.Cause(ctx)
			return &rest
		}
		before := l.progress.rounds()
		if _, err := l.Test(); err != nil {
			return err
		}
		if !none || l.progress.rounds() == before {
			// Handlers and deferred replies end without an event: look again soon.
			l.core.net.Wake()
			l.core.cfg.Host.Sleep(time.Millisecond)
		}
	}
}

// unfinished is what Quiesce waits for beside arrivals.
func (l *Endpoint) unfinished() InFlightError {
	l.core.mu.Lock()
	rest, owes := l.core.inFlightLocked(), l.owesLocked()
	l.core.mu.Unlock()
	if rest == (InFlightError{}) {
		rest.Unsent = owes
	}
	rest.Messages = l.unsent()
	return rest
}

// unsent counts the messages that the network may not have brought to their targets: those with a
// send buffer, and those that it has copied, about which Kick has it find out.
func (l *Endpoint) unsent() int {
	l.core.mu.Lock() // no buffer changes from one count to the other
	s, prepared := l.core.net.Stats(), l.core.acquirer.prepared-l.core.acquirer.reserving()
	l.core.mu.Unlock()
	if s.Unconfirmed > 0 {
		_ = l.core.net.Kick() // Poll reports a network that is lost
	}
	return l.core.cfg.Sends + l.core.cfg.ReplySends - prepared - s.FreeSends + s.Unconfirmed
}

// owes counts the replies that the network does not have yet, also those that are being made or
// sent, and in no list then. The endpoint's lock is held.
func (l *Endpoint) owesLocked() int {
	return int(l.core.stats.wanted - l.core.stats.answered - l.core.stats.nowhere.Load())
}

func (l *Endpoint) arrivals() arrivals {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	s := &l.core.stats
	return arrivals{arrived: s.requests + s.replies + s.pinged + s.broken + s.ignored + s.large.StepsArrived,
		empty: s.empty, running: l.core.handlingLocked()}
}

// stillSince reports whether nothing has arrived since a look, which is renewed if something has,
// and whatever arrived is handled. Three polls that bring nothing are enough: one may have been
// under way at the look, and arrivals from before the second come with the third at the latest.
// What lies behind a message that is still being written has not arrived.
func (l *Endpoint) stillSince(look *arrivals) bool {
	now := l.arrivals()
	if now.arrived != look.arrived {
		*look = now
		return false
	}
	return now.empty >= look.empty+3 && now.running == 0
}

// arrivals is how much had arrived at some time, and how many of the handlers run.
type arrivals struct {
	arrived, empty uint64
	running        int
}
