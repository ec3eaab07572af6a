package am

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/credit"
)

// CheckAccounts checks an endpoint's accounts of credits and buffers. Tests call it when the
// endpoint is at rest.
func CheckAccounts(l *Endpoint) error {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if err := l.core.pool.Check(); err != nil {
		return err
	}
	s := l.core.net.Stats()
	if n := l.core.cfg.Credits + l.core.cfg.Replies + l.core.cfg.Spares; s.Posted+len(l.inbox.bare) != n ||
		len(l.inbox.bare) > l.core.cfg.Spares {
		return fmt.Errorf("am: %d receive buffers are posted and %d bare, of %d with %d spares", s.Posted,
			len(l.inbox.bare), n, l.core.cfg.Spares)
	}
	if n := l.core.cfg.Sends + l.core.cfg.ReplySends; s.FreeSends != n {
		return fmt.Errorf("am: %d send buffers are free, of %d", s.FreeSends, n)
	}
	if n := l.core.parked.Len(); n > 1 { // the attendant may be
		return fmt.Errorf("am: %d goroutines are parked", n)
	}
	a := &l.core.acquirer
	if n := a.replies.Len() + a.shareless.Len() + a.unprepared.Len() + a.buffers.Len() + a.shared + a.prepared +
		a.committing; n > 0 {
		return fmt.Errorf("am: at rest requests wait or hold something: %+v", *a)
	}
	for _, at := range l.core.peers.All() {
		if p := at.Load(); p != nil && (p.calls != 0 || p.shares != 0 || p.place.Len()+p.credit.Len()+p.room.Len() > 0) {
			return fmt.Errorf("am: at rest %d calls to rank %d have a place, %d messages wait for its connection, %d "+
				"requests wait", p.calls, p.rank, p.shares, p.place.Len()+p.credit.Len()+p.room.Len())
		}
	}
	return nil
}

// Reconcile compares the accounts of all pairs of a job with one another, when all endpoints are at
// rest: every credit is in exactly one place.
func Reconcile(endpoints []*Endpoint) error {
	for from, a := range endpoints {
		for to, b := range endpoints {
			at := a.core.peers.Find(to)
			if at == nil || at.Load() == nil || from == to {
				continue
			}
			p := at.Load()
			a.core.mu.Lock()
			sender := p.credits.Account()
			a.core.mu.Unlock()
			b.core.mu.Lock()
			pool := b.core.pool.Account(from)
			b.core.mu.Unlock()
			if sender.Epoch == 0 || pool.Epoch == 0 {
				continue // one end has not heard of the other
			}
			if err := credit.Reconcile(pool, sender, 0); err != nil {
				return fmt.Errorf("am: from rank %d to %d: %w (pool %+v, sender %+v)", from, to, err, pool, sender)
			}
		}
	}
	return nil
}
