package cache

import (
	"context"
	"math/bits"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// Prefetch begins to fetch what the cache does not have of n bytes at off of a rank, and returns
// without waiting: a later Get finds it, or waits for the rest of its way. It is a hint. What is
// outside of the rank's memory is left out, and what would not fit: as many pages as there are
// slots (32 KiB), operations in the rank's ring, and entries to be had. An acquire makes what is in
// flight old, as what is there.
func (c *Cache) Prefetch(ctx context.Context, rank int, off uint64, n int) error {
	return c.PrefetchEach(ctx, rank, []uint64{off}, n)
}

// PrefetchEach is Prefetch of n bytes at each of several offsets, posted together.
func (c *Cache) PrefetchEach(_ context.Context, rank int, offs []uint64, n int) error {
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return err
		}
		defer c.writer.guard.Exit()
	}
	if err := c.pages.check("prefetch", rank, 0, 0); err != nil {
		return err
	}
	if c.net.gets > 0 {
		c.net.poll()
	}
	for _, off := range offs {
		if !c.reader.aheadOf(rank, off, n) {
			break
		}
	}
	return c.net.launch(c.net.route[rank])
}

// aheadOf adds flights for a range to the batch, and reports whether there is room for more.
func (c *reader) aheadOf(rank int, off uint64, n int) bool {
	p := c.pages
	size := p.sizes[rank]
	if n <= 0 || off >= size {
		return true
	}
	for left := min(uint64(n), size-off); left > 0; {
		o := off & p.pageMask
		k := min(left, p.pageMask+1-o)
		if !c.aheadIn(rank, off, k) {
			return false
		}
		off, left = off+k, left-k
	}
	return true
}

// aheadIn is aheadOf for a part of a page. Slots that a request may need are left.
func (c *reader) aheadIn(rank int, off, n uint64) bool {
	p := c.pages
	if len(c.net.freeSlots) <= cap(c.net.pieces) || int(c.net.ring[rank]) >= p.cfg.Ring {
		return false
	}
	if c.net.isExposed(rank, off, n) {
		return true
	}
	key := p.pageKey(rank, off)
	i := p.entryOf(key)
	if i != none {
		p.refresh(i)
	} else if i = c.writer.allocate(key); i == none || int(c.net.ring[rank]) >= p.cfg.Ring { // to write what was there
		return false
	}
	e := &p.entries[i]
	need := p.missing(e, off&p.pageMask, n) &^ e.wanted
	if need == 0 {
		return true
	}
	all := span(uint64(bits.TrailingZeros64(need)), uint64(bits.Len64(need)-bits.TrailingZeros64(need)))
	k := c.net.begin(opGet, rank)
	s := c.net.takeSlot(&c.net.ops[k], all&^(e.valid|e.ready|e.wanted), true)
	c.net.fetch(rank, p.keyOff(key), c.net.flights[s].lines, s)
	c.net.bind(s, i)
	c.net.batch.Tag(fabric.Tag(k))
	c.net.posted(k)
	c.net.ahead(c.net.flights[s].lines)
	return true
}

// launch posts the flights that were added.
func (c *transfers) launch(lane uint8) error {
	if c.batch.Len() == 0 {
		return nil
	}
	err := c.lanes[lane].Post(&c.batch, &c.told, 0)
	if err != nil {
		for _, g := range c.batch.Groups() {
			c.complete(uint16(g.Tag), err)
		}
	}
	c.batch.Reset()
	return err
}
