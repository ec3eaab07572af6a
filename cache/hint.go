package cache

import "fmt"

// Hint says how a program uses bytes of a rank.
type Hint uint8

// The hints. Those that keep bytes over an acquire are promises: where they are broken, gets return
// old bytes until the hint is taken back.
const (
	Default    Hint = iota
	Sequential      // in order: fetched ahead from the first miss on
	Random          // in no order: nothing is fetched ahead
	Bypass          // once: gets pass the cache by; puts are still combined
	ReadOnly        // nobody writes them: copies survive an acquire, a write is an error
	Private         // nobody but this cache's worker writes them: copies survive an acquire
	numHints
)

// hinted is an extent with a hint.
type hinted struct {
	extent
	hint Hint
}

// ErrReadOnly is wrapped by the error of a Put, or a Direct that writes, of bytes with the hint
// ReadOnly.
var ErrReadOnly = fmt.Errorf("cache: the bytes have the hint ReadOnly")

// Hint sets how n bytes at off of a rank are used, in place of what was said of them before, and
// forgets the copies that the cache has of their pages. Pages that have bytes with other hints too
// do not survive an acquire. What is outside of the rank's memory is left out. It takes time in
// proportion to the number of extents with hints, which requests that miss look through.
func (c *Cache) Hint(rank int, off, n uint64, h Hint) {
	p := &c.pages
	if p.closed || rank < 0 || rank >= len(p.sizes) || off >= p.sizes[rank] || n == 0 || h >= numHints {
		return
	}
	n = min(n, p.sizes[rank]-off)
	x := extent{rank, off, off + n}
	var rest []hinted
	for _, y := range p.hints {
		if y.rank != x.rank || y.end <= x.low || y.low >= x.end {
			rest = append(rest, y)
			continue
		}
		if y.low < x.low {
			rest = append(rest, hinted{extent{rank, y.low, x.low}, y.hint})
		}
		if y.end > x.end {
			rest = append(rest, hinted{extent{rank, x.end, y.end}, y.hint})
		}
	}
	if h != Default {
		rest = append(rest, hinted{x, h})
	}
	p.hints = rest
	p.countPuts()
	p.writes.len = 0 // the next put looks at the hints
	c.usage.heed()
	for _, i := range p.overlapped(rank, off, n) {
		p.drop(i, ^uint64(0))
		p.entries[i].epoch = p.epoch
		p.survive(i)
	}
}

// survive has an entry's lines survive an acquire, if its whole page may.
func (c *pages) survive(i uint16) {
	e := &c.entries[i]
	if e.keep = c.survives(e.key); e.keep {
		e.epoch = always
	} else {
		e.epoch = min(e.epoch, c.epoch)
	}
}

func (c *pages) survives(key uint64) bool {
	rank, low := keyRank(key), c.keyOff(key)
	end := min(low+c.pageMask+1, c.sizes[rank])
	for low < end {
		found := false
		for _, y := range c.hints {
			if y.rank == rank && y.low <= low && y.end > low && (y.hint == ReadOnly || y.hint == Private) {
				low, found = y.end, true
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// hintAt is the hint of a byte.
func (c *pages) hintAt(rank int, off uint64) Hint {
	for i := range c.hints {
		if y := &c.hints[i]; y.rank == rank && y.low <= off && off < y.end {
			return y.hint
		}
	}
	return Default
}

// survivesAt reports whether a copy of a byte may survive an acquire.
func (c *pages) survivesAt(rank int, off uint64) bool {
	return len(c.hints) > 0 && c.inside(rank, off, 1) && c.hintAt(rank, off) >= ReadOnly
}

// checkWrite refuses a write of bytes that are read-only.
func (c *pages) checkWrite(rank int, off, n uint64) error {
	if c.readOnly(rank, off, n) {
		return fmt.Errorf("cache: a write of %d bytes at offset %d of rank %d: %w", n, off, rank, ErrReadOnly)
	}
	return nil
}

// readOnly reports whether some of a range has the hint ReadOnly.
func (c *pages) readOnly(rank int, off, n uint64) bool {
	for i := range c.hints {
		if y := &c.hints[i]; y.hint == ReadOnly && y.rank == rank && off < y.end && y.low < off+n {
			return true
		}
	}
	return false
}
