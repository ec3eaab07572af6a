package am

import (
	"context"

	"github.com/ibconduit/conduit/internal/fabric"
)

// send sends a request as soon as it can. w waits, if need be; it is o.w for a call, which waits on
// from then. This and Prepare are the only places where a request waits for the acquirer.
func (l *Endpoint) send(ctx context.Context, p *peer, o *outgoing, args []uint64, w *waiter) error {
	began := o.at
	err := l.emitter.trySend(p, o, args, w)
	if err == nil && o.cat != long && len(o.payload) <= copiedSoon {
		w.began = began
	}
	if err == nil || !passing(err) {
		return err
	}
	for passing(err) {
		if err = l.awaitClaim(ctx, w, o.kind); err == nil {
			err = l.emitter.sendAcquired(p, o, args, &w.claim)
		}
	}
	if err != nil {
		l.abandon(w)
		return err
	}
	l.progress.beginAgain(w)
	return nil
}

// awaitClaim waits until the claim of w, for a message of a kind, is complete. On an error the
// caller abandons it.
func (l *Endpoint) awaitClaim(ctx context.Context, w *waiter, k kind) error {
	for {
		l.core.mu.Lock()
		complete := w.claim.next == acquired
		err := l.core.refusalLocked(k)
		if p := w.claim.p; err == nil && p.down != nil {
			err = &fabric.PeerDownError{Rank: p.rank, Op: "request", Cause: p.down}
		}
		l.core.mu.Unlock()
		if err != nil || complete {
			return err
		}
		if err := l.progress.stalled(w); err != nil {
			return err
		}
		if err := l.progress.await(ctx, w); err != nil {
			return err
		}
	}
}

// abandon gives back the resources of w's claim.
func (l *Endpoint) abandon(w *waiter) {
	l.core.mu.Lock()
	l.core.acquirer.abandon(&w.claim)
	l.core.mu.Unlock()
}

// passing reports whether an obstacle goes away by itself.
func passing(err error) bool {
	switch err {
	case ErrNoBuffer, ErrNotConnected, ErrNoCredit, ErrNoReply, ErrQueueFull:
		return true
	}
	return false
}
