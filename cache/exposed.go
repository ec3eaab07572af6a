package cache

import "slices"

// Where an operation passes the cache by, it keeps no copies until that is complete.

// extent is bytes of a rank.
type extent struct {
	rank     int
	low, end uint64
}

// maxExposed is how many extents are told apart. One more grows the nearest of its rank, from
// fewExposed on; of a rank that has none everything is taken for exposed. Few are quick to look
// through, which each access does that passes by.
const (
	maxExposed = 16
	fewExposed = 4
)

// Linger says that what Direct was told of last is no operation of the lanes: that these are
// complete does not tell when it is. Until the next Release all that passes by is exposed.
func (c *Cache) Linger() { c.pages.lingers = true }

// expose has the cache keep no copy of a range until what passes it by there is complete.
func (c *transfers) expose(rank int, off, n uint64) {
	p := c.pages
	p.passed = true
	if p.allExposed {
		return
	}
	if len(p.exposed) >= fewExposed {
		c.forget()
	}
	x := extent{rank, off &^ p.pageMask, (off + n + p.pageMask) &^ p.pageMask}
	for {
		i, gap := p.nearest(x)
		switch {
		case gap > 0 && len(p.exposed) < fewExposed, i < 0 && len(p.exposed) < maxExposed:
			p.exposed = append(p.exposed, x)
			return
		case i < 0:
			p.allExposed = true
			return
		}
		y := p.exposed[i]
		if y.low <= x.low && x.end <= y.end {
			p.exposed[0], p.exposed[i] = y, p.exposed[0] // where it is looked for first
			return
		}
		x.low, x.end = min(x.low, y.low), max(x.end, y.end)
		last := len(p.exposed) - 1
		p.exposed[i] = p.exposed[last]
		p.exposed = p.exposed[:last]
	}
}

// nearest is the extent of the same rank that is nearest to one, or -1, and what lies between them:
// 0 if they touch.
func (c *pages) nearest(x extent) (at int, gap uint64) {
	at, gap = -1, ^uint64(0)
	for i := range c.exposed {
		y := &c.exposed[i]
		if y.rank != x.rank {
			continue
		}
		if x.low <= y.end && y.low <= x.end {
			return i, 0
		}
		if d := max(x.low, y.low) - min(x.end, y.end); d < gap {
			at, gap = i, d
		}
	}
	return at, gap
}

// forget has no extent any more in which all that passed by is complete. Get and prefetch begin
// nothing in one before, so what they bring afterwards is no older.
func (c *transfers) forget() {
	p := c.pages
	if p.lingers {
		return
	}
	if p.allExposed && c.isQuiet(-1) {
		p.exposed, p.allExposed = p.exposed[:0], false
	}
	p.exposed = slices.DeleteFunc(p.exposed, func(x extent) bool { return c.isQuiet(x.rank) })
}

// isQuiet reports whether no lane has an operation in flight to a rank, or with -1 to any.
func (c *transfers) isQuiet(rank int) bool {
	for _, l := range c.lanes {
		if !l.Quiet(rank) {
			return false
		}
	}
	return true
}

// isExposed reports whether a page of a range may not be kept.
func (c *transfers) isExposed(rank int, off, n uint64) bool {
	p := c.pages
	if !p.hasExposed(rank, off, n) {
		return false
	}
	c.forget()
	return p.hasExposed(rank, off, n)
}

// hasExposed reports whether a page of a range is in an extent.
func (c *pages) hasExposed(rank int, off, n uint64) bool {
	if len(c.exposed) == 0 {
		return false
	}
	if c.allExposed {
		return true
	}
	for _, x := range c.exposed {
		if x.rank == rank && off < x.end && x.low < (off+n+c.pageMask)&^c.pageMask {
			return true
		}
	}
	return false
}
