package flow

import (
	"context"
	"errors"
)

// Places in regions (FetchSet.Placed): a granted set may have to wait for one, which a Budget
// does not give. It learns of the wait, so that it has an age and the holders of places are known.

// Placed says that the memory of the set is in a region of a fixed size, where free memory may lie
// apart: its memory can keep another set from its memory though bytes are granted. So it counts
// as held however small it is; and with a reserve, a holder that waits for a placed set is
// served from there, whether or not there are other bytes.
func (s *FetchSet) Placed() { s.placed = true }

// WaitsForPlace says that a set that starts its fetches waits for its memory in a region,
// until it is said that it does not.
func (p *Pending) WaitsForPlace(waits bool) { p.b.waitsForPlace(&p.claim, waits) }

// WaitsForPlace is Pending.WaitsForPlace of an offer.
func (o *Offer) WaitsForPlace(waits bool) { o.b.waitsForPlace(&o.claim, waits) }

func (b *Budget) waitsForPlace(c *claim, waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.held.In() == nil {
		return // it is over
	}
	c.turn.Leave()
	if c.since = b.cfg.Now(); waits {
		b.placing.Add(&c.turn, c)
	}
}

// inPlace reports whether a claim has a place in a region that another waits for.
func (b *ledger) inPlace(c, other *claim) bool {
	placed := c.offer != nil || c.placed && c.pending.starting
	return placed && c.turn.In() == nil && (c.from == &b.reserve) == (other.from == &b.reserve)
}

// HoldAndWait is why Wait must not wait for a place in a region, though bytes are granted: the
// owner holds others, and the granted bytes are not the reserve's; nil: it may.
func (p *Pending) HoldAndWait() error {
	b := p.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if holds, reserved := p.owner.before(&p.claim, true); holds > 0 && p.from != &b.reserve {
		return b.heldLocked(&p.claim, holds, reserved)
	}
	return nil
}

// unplaced is the error of a wait that ended: it names the holders of places, if it was for one
// until ctx did.
func (p *Pending) unplaced(ctx context.Context, err error) error {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.turn.In() == &p.b.placing && errors.Is(err, context.Cause(ctx)) {
		return p.b.stallLocked(&p.claim, err)
	}
	return err
}

// placingDownLocked ends the sets that wait for a place and have fetches from a rank that is dead.
func (b *ledger) placingDownLocked(rank int, cause error) {
	for c := b.placing.First(); c != nil; c = c.turn.Next() {
		if p := c.pending; p != nil && p.failed == nil && p.fetchesFrom(rank) {
			p.failed = cause
			p.parker.Unpark()
		}
	}
}
