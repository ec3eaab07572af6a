package flow

import "github.com/ibconduit/conduit/internal/queue"

// Owner is what waits and holds as one: a goroutine, a worker. Through it a Budget knows that a
// goroutine that is to wait for a set holds another, which breaks the condition of liveness. One
// goroutine uses it at a time, but leases may be released and handed over by others.
type Owner struct {
	b      *Budget
	name   string
	parker Parker

	held queue.List[claim] // under the budget's lock: its sets that hold bytes, but for small ones that are not placed
}

// NewOwner names an owner; the name is for errors. The parker is what its waits wait with, such as
// one that polls the owner's lane meanwhile; nil: one of BudgetConfig.NewParker.
func (b *Budget) NewOwner(name string, p Parker) *Owner {
	if p == nil {
		p = b.cfg.NewParker()
	}
	return &Owner{b: b, name: name, parker: p}
}

// Name is what NewOwner was given.
func (o *Owner) Name() string { return o.name }

// Holds is how many bytes count as held when the owner is to wait: the bytes of its sets that were
// granted and not given back. Small sets that passed the queue block no claim, and do not count,
// unless they are placed.
func (o *Owner) Holds() (bytes int64) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	for c := o.held.First(); c != nil; c = c.own.Next() {
		bytes += c.left
	}
	return bytes
}

// before is how many bytes the owner holds of claims that were posted before c, or of the reserve,
// and how many of these are the reserve's; with later also of others that have a place in a region,
// or will before c. It and take are for no owner, too.
func (o *Owner) before(c *claim, later bool) (bytes, reserved int64) {
	if o == nil {
		return 0, 0
	}
	for h := o.held.First(); h != nil; h = h.own.Next() {
		switch reserve := h.from == &o.b.reserve; {
		case h == c:
		case reserve:
			reserved += h.left
			bytes += h.left
		case h.seq < c.seq || later && h.placed && h.pending.starting && !c.waitsForPlace(h):
			bytes += h.left
		}
	}
	return bytes, reserved
}

// waitsForPlace reports whether another waits for a place behind c.
func (c *claim) waitsForPlace(other *claim) bool {
	for n := c.turn.Next(); n != nil; n = n.turn.Next() {
		if n == other {
			return true
		}
	}
	return false
}

// take adds what a claim holds to the owner's.
func (o *Owner) take(c *claim) {
	c.own.Leave()
	if o != nil && (c.placed || c.from != &o.b.small) {
		o.held.Add(&c.own, c)
	}
}
