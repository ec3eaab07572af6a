package flow

// Owner is what waits and holds as one: a goroutine, a worker. Through it a Budget knows that a
// goroutine that is to wait for a set holds another, which breaks the condition of liveness. One
// goroutine uses it at a time, but leases may be released and handed over by others.
type Owner struct {
	b      *Budget
	name   string
	parker Parker

	// Under the budget's lock.
	bulk, reserve int64 // held, in bytes; small bytes block nobody
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

// Holds is how many bytes count as held when the owner is to wait: those of its sets that were
// granted and not given back, but for small ones.
func (o *Owner) Holds() int64 {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	return o.bulk + o.reserve
}

// others is how many bytes the owner holds of other claims. It and add are for no owner, too.
func (o *Owner) others(c *claim) int64 {
	switch {
	case o == nil:
		return 0
	case c.from == &o.b.bulk || c.from == &o.b.reserve:
		return o.bulk + o.reserve - c.left
	}
	return o.bulk + o.reserve
}

func (o *Owner) add(b *Budget, from *pool, n int64) {
	switch {
	case o == nil:
	case from == &b.bulk:
		o.bulk += n
	case from == &b.reserve:
		o.reserve += n
	}
}
