package flow

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// MemoryHolder is what holds bytes of a budget, to explain why others wait.
type MemoryHolder struct {
	Name    string // of the owner, or what it is
	Bytes   int64
	For     time.Duration // since it got them; 0 for Acquire
	Reserve bool          // beyond the limit
}

// Holders appends what holds bytes to dst, what holds most first.
func (b *Budget) Holders(dst []MemoryHolder) []MemoryHolder {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holdersLocked(dst, nil)
}

// holdersLocked appends what holds bytes; or, of a claim that has some, what has a place where it
// waits for one.
func (b *ledger) holdersLocked(dst []MemoryHolder, of *claim) []MemoryHolder {
	first, now := len(dst), b.cfg.Now()
	for c := b.holders.First(); c != nil; c = c.held.Next() {
		if of != nil && !b.inPlace(c, of) {
			continue
		}
		dst = append(dst, MemoryHolder{Name: c.name(), Bytes: c.left, For: now - c.since, Reserve: c.from == &b.reserve})
	}
	if n := b.plain.bulk + b.plain.small; n > 0 && of == nil {
		dst = append(dst, MemoryHolder{Name: "Acquire", Bytes: n})
	}
	if n := b.unscheduled.held; n > 0 && of == nil {
		dst = append(dst, MemoryHolder{Name: "payloads that came unasked", Bytes: n})
	}
	slices.SortStableFunc(dst[first:], func(x, y MemoryHolder) int { return cmp.Compare(y.Bytes, x.Bytes) })
	return dst
}

func (c *claim) name() string {
	switch {
	case c.offer != nil:
		return fmt.Sprintf("a payload of rank %d", c.offer.source.rank)
	case c.pending != nil && c.pending.abandoned:
		return "a set that was given up, in flight"
	case c.owner != nil:
		return c.owner.name
	case c.plain:
		return "Acquire"
	}
	return "a set of no owner"
}

// headLocked is the claim that is served next; nil: none waits.
func (b *ledger) headLocked() *claim {
	c := b.queue.First()
	if c != nil && c.place {
		return &b.offers.first().claim
	}
	return c
}

func (b *ledger) waitingLocked() int { return b.queue.Len() + b.nested.Len() + b.placing.Len() }

// headsLocked are the claims that are next: for bytes, for the reserve, for a place; nil: none.
func (b *ledger) headsLocked() [3]*claim {
	return [...]*claim{b.headLocked(), b.nested.First(), b.placing.First()}
}

// firstLocked is the one of them that has waited longest; nil: none waits.
func (b *ledger) firstLocked() (first *claim) {
	for _, c := range b.headsLocked() {
		if c != nil && (first == nil || c.since < first.since) {
			first = c
		}
	}
	return first
}

// stallLocked explains a wait.
func (b *ledger) stallLocked(c *claim, cause error) *MemoryStallError {
	heads := b.headsLocked()
	e := &MemoryStallError{Need: c.bytes, Owner: c.name(), Age: b.cfg.Now() - c.since, First: slices.Contains(heads[:], c),
		Limit: b.limit, Free: b.bulk.size - b.bulk.held, Waiting: b.waitingLocked(), Cause: cause}
	if e.Place = c.turn.In() == &b.placing; e.Place {
		e.Holders = b.holdersLocked(nil, c)
	} else {
		e.Holders = b.holdersLocked(nil, nil)
	}
	return e
}

// Watch returns a *MemoryStallError when the first in the queue, the first that waits for the
// reserve, or the first that waits for a place in a region, has waited for StallAfter: someone
// holds memory and does not get on, or waits for another that does. The caller of Observe calls it,
// too. It changes nothing.
func (b *Budget) Watch() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.firstLocked(); c != nil && b.cfg.Now()-c.since >= b.cfg.StallAfter {
		return b.stallLocked(c, nil)
	}
	return nil
}

// Interval is how often Observe is to be called; 0: the budget does not adapt.
func (b *Budget) Interval() time.Duration {
	if b.control == nil {
		return 0
	}
	return b.cfg.Adapt.Interval
}

// Observe changes the limit by what probes read just now, if Adapt was given. changed is false when
// it stays.
func (b *Budget) Observe(r Reading) (d Decision, changed bool) {
	if b.control == nil {
		return d, false
	}
	b.mu.Lock()
	held := b.bulk.held + b.small.held + b.unscheduled.held
	d = b.control.decide(budgetState{
		now: b.cfg.Now(), limit: b.limit, held: held, made: held - b.unmade, peak: max(b.recent, held),
		waited: b.waited || b.queue.Len()+b.nested.Len() > 0,
	}, r)
	b.waited, b.recent = false, held
	changed = d.To != d.From
	if changed {
		b.control.record(d)
		if d.To > d.From {
			b.stats.Increases++
		} else {
			b.stats.Decreases++
		}
		b.setLimitLocked(d.To)
	}
	b.unlock()
	if changed && b.cfg.Decided != nil {
		b.cfg.Decided(d)
	}
	return d, changed
}

// Decisions are the last changes of the limit, at most 256, the oldest first.
func (b *Budget) Decisions() []Decision {
	if b.control == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Decision(nil), b.control.log...)
}

// Check tests that no byte is lost or there twice; an error is a mistake in this package. It is for
// tests: it looks at everything.
func (b *Budget) Check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var unmade, tokens int64
	held := map[*pool]int64{&b.bulk: b.plain.bulk, &b.small: b.plain.small}
	owned := map[*Owner]int{}
	for c := b.holders.First(); c != nil; c = c.held.Next() {
		if c.state != claimGranted || c.left < 0 || c.open < 1 || c.open > c.messages || c.left > c.bytes ||
			c.turn.In() != nil && c.turn.In() != &b.placing || c.short.In() != nil {
			return fmt.Errorf("flow: a holder with %d of %d bytes in state %d", c.left, c.bytes, c.state)
		}
		held[c.from] += c.left
		if c.counted {
			tokens += int64(c.open)
		}
		if p := c.pending; p != nil && c.from != &b.reserve {
			for i := range p.parts {
				if p.parts[i].state == partNew {
					unmade += p.parts[i].bytes
				}
			}
		}
		if c.owner != nil && (c.placed || c.from != &b.small) {
			if owned[c.owner]++; c.own.In() != &c.owner.held {
				return fmt.Errorf("flow: a set of %s is not among what it holds", c.owner.name)
			}
		} else if c.own.In() != nil {
			return fmt.Errorf("flow: what nobody holds is among what someone does")
		}
	}
	for o, n := range owned {
		if o.held.Len() != n {
			return fmt.Errorf("flow: %s has %d sets, and holds %d", o.name, o.held.Len(), n)
		}
	}
	var unasked int64
	for _, u := range b.unasked {
		unasked += u.held
	}
	for _, p := range []struct {
		name      string
		got, want int64
	}{
		{"bulk held = sum of claims", b.bulk.held, held[&b.bulk]},
		{"small held = sum of claims", b.small.held, held[&b.small]},
		{"reserve held = sum of claims", b.reserve.held, held[&b.reserve]},
		{"tokens held = sum of claims", int64(b.tokens), tokens},
		{"tokens held within Messages", int64(b.tokens), int64(min(b.tokens, max(b.cfg.Messages, 0)))},
		{"unmade = sum of parts that are new", b.unmade, unmade},
		{"unscheduled held = sum of peers", b.unscheduled.held, unasked},
		{"bulk + small + unscheduled = limit", b.bulk.size + b.small.size + b.unscheduled.size, b.limit},
		{"small held in its size", b.small.held, min(b.small.held, b.small.size)},
		{"reserve held in its size", b.reserve.held, min(b.reserve.held, b.reserve.size)},
		{"unscheduled held in its size", b.unscheduled.held, min(b.unscheduled.held, b.unscheduled.size)},
	} {
		if p.got != p.want {
			return fmt.Errorf("flow: %s: %d, not %d", p.name, p.got, p.want)
		}
	}
	return b.checkQueuesLocked()
}

// checkQueuesLocked: what waits does so because it must, and in one place.
func (b *ledger) checkQueuesLocked() error {
	var places, short int
	for c := b.queue.First(); c != nil; c = c.turn.Next() {
		if c.place {
			places++
			continue
		}
		if c.state != claimWaiting || c.left != 0 || c.held.In() != nil {
			return fmt.Errorf("flow: a claim in the queue in state %d with %d bytes", c.state, c.left)
		}
		if c.short.In() != nil {
			short++
		}
	}
	if short != b.smalls.Len() {
		return fmt.Errorf("flow: %d small claims, of which %d are in the queue", b.smalls.Len(), short)
	}
	var offers int
	for _, r := range b.offers.ranks {
		offers += r.waiting.Len()
		if (r.waiting.Len() > 0) != (r.at > 0) {
			return fmt.Errorf("flow: rank %d with %d offers at %d of those that are ready", r.rank, r.waiting.Len(), r.at)
		}
	}
	if offers != places || places != b.offers.places.Len() {
		return fmt.Errorf("flow: %d offers wait, with %d places, of which %d are in the queue",
			offers, b.offers.places.Len(), places)
	}
	for c := b.placing.First(); c != nil; c = c.turn.Next() {
		if c.held.In() == nil {
			return fmt.Errorf("flow: what has no bytes waits for a place")
		}
	}
	if c := b.headLocked(); c != nil && b.fitsLocked(c.bytes, c.messages) {
		return fmt.Errorf("flow: the first in the queue waits for %d bytes, and %d are free",
			c.bytes, b.bulk.size-b.bulk.held)
	}
	return nil
}
