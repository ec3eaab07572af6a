package am

import (
	"fmt"

	"github.com/ibconduit/conduit/flow"
)

// CheckAccounts checks an endpoint's accounts of credits and buffers. Tests call it when the
// endpoint is at rest.
func CheckAccounts(l *Endpoint) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.pool.Check(); err != nil {
		return err
	}
	s := l.net.Stats()
	if n := l.cfg.Credits + l.cfg.Replies + l.cfg.Spares; s.Posted+len(l.bare) != n || len(l.bare) > l.cfg.Spares {
		return fmt.Errorf("am: %d receive buffers are posted and %d bare, of %d with %d spares", s.Posted, len(l.bare), n, l.cfg.Spares)
	}
	if n := l.cfg.Sends + l.cfg.ReplySends; s.FreeSends != n {
		return fmt.Errorf("am: %d send buffers are free, of %d", s.FreeSends, n)
	}
	if n := l.parked.Len(); n > 1 { // the attendant may be
		return fmt.Errorf("am: %d goroutines are parked", n)
	}
	a := &l.acquirer
	if n := a.replies.Len() + a.shareless.Len() + a.unprepared.Len() + a.buffers.Len() + a.shared + a.prepared + a.committing; n > 0 {
		return fmt.Errorf("am: at rest requests wait or hold something: %+v", *a)
	}
	for _, at := range l.peers.All() {
		if p := at.Load(); p != nil && (p.calls != 0 || p.shares != 0 || p.place.Len()+p.credit.Len()+p.room.Len() > 0) {
			return fmt.Errorf("am: at rest %d calls to rank %d have a place, %d messages wait for its connection, %d requests wait", p.calls, p.rank, p.shares, p.place.Len()+p.credit.Len()+p.room.Len())
		}
	}
	return nil
}

// Reconcile compares the accounts of all pairs of a job with one another, when all endpoints are at
// rest: every credit is in exactly one place.
func Reconcile(endpoints []*Endpoint) error {
	for from, a := range endpoints {
		for to, b := range endpoints {
			at := a.peers.Find(to)
			if at == nil || at.Load() == nil || from == to {
				continue
			}
			p := at.Load()
			a.mu.Lock()
			sender := p.credits.Account()
			a.mu.Unlock()
			b.mu.Lock()
			pool := b.pool.Account(from)
			b.mu.Unlock()
			if sender.Epoch == 0 || pool.Epoch == 0 {
				continue // one end has not heard of the other
			}
			if err := flow.Reconcile(pool, sender, 0); err != nil {
				return fmt.Errorf("am: from rank %d to %d: %w (pool %+v, sender %+v)", from, to, err, pool, sender)
			}
		}
	}
	return nil
}
