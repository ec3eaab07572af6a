package fencecheck

import "slices"

// clock is up to which epoch one knows of the writes of each actor and of the reads of each rank.
type clock struct{ writes, reads []uint32 }

func joined(c, o []uint32) []uint32 {
	for len(c) < len(o) {
		c = append(c, 0)
	}
	for i, v := range o {
		c[i] = max(c[i], v)
	}
	return c
}

// join has c know all that o does.
func (c *clock) join(o *clock) {
	if o != nil {
		c.writes, c.reads = joined(c.writes, o.writes), joined(c.reads, o.reads)
	}
}

func at(c []uint32, i int) uint32 {
	if i < len(c) {
		return c[i]
	}
	return 0
}

// knows reports whether an access is known, or of the rank itself.
func (c *clock) knows(x *access, r *Rank) bool {
	switch {
	case x.rank == r.id:
		return true
	case x.by == nil:
		return at(c.reads, x.rank) >= x.epoch
	}
	return at(c.writes, x.by.number) >= x.epoch || slices.ContainsFunc(x.found, func(f find) bool {
		return f.by == r.host || at(c.writes, f.by.number) >= f.epoch
	})
}

func set(c []uint32, i int, v uint32) []uint32 {
	for len(c) <= i {
		c = append(c, 0)
	}
	c[i] = max(c[i], v)
	return c
}
