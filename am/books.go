package am

import (
	"fmt"

	"github.com/ibconduit/conduit/flow"
)

// CheckBooks compares a lane's books of credits and buffers with themselves. Tests call it
// when the lane is at rest.
func CheckBooks(l *Endpoint) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.pool.Check(); err != nil {
		return err
	}
	s := l.port.Stats()
	if n := l.cfg.Credits + l.cfg.Replies + l.cfg.Spares; s.Posted != n {
		return fmt.Errorf("am: %d receive buffers are posted, of %d", s.Posted, n)
	}
	if n := l.cfg.Sends + l.cfg.ReplySends; s.FreeSends != n {
		return fmt.Errorf("am: %d send buffers are free, of %d", s.FreeSends, n)
	}
	if l.waiting.Len()+l.replyless.Len()+l.parked.Len() > 1 { // the attendant may be
		return fmt.Errorf("am: %d wait for send buffers, %d for reply buffers, %d are parked", l.waiting.Len(), l.replyless.Len(), l.parked.Len())
	}
	return nil
}

// Reconcile compares the books of all pairs of a job with one another, when all lanes are at
// rest: every credit is in exactly one place.
func Reconcile(lanes []*Endpoint) error {
	for from, a := range lanes {
		for to, b := range lanes {
			at := a.peers.Find(to)
			if at == nil || at.Load() == nil || from == to {
				continue
			}
			p := at.Load()
			p.mu.Lock()
			purse := p.purse.Account()
			p.mu.Unlock()
			b.mu.Lock()
			pool := b.pool.Account(from)
			b.mu.Unlock()
			if purse.Epoch == 0 || pool.Epoch == 0 {
				continue // one end has not heard of the other
			}
			if err := flow.Reconcile(pool, purse, 0); err != nil {
				return fmt.Errorf("am: from rank %d to %d: %w (pool %+v, purse %+v)", from, to, err, pool, purse)
			}
		}
	}
	return nil
}
