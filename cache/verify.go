package cache

import (
	"fmt"
	"math/bits"
)

// Verify checks the cache's structure and counters, for tests: what is linked, counted and marked
// where. It takes time in proportion to the cache, and may be called between any two calls.
func (c *Cache) Verify() error {
	if c.pages.closed {
		return nil
	}
	for _, f := range []func() error{c.verifyTable, c.verifyEntries, c.verifyDirty, c.verifyOps, c.verifyStats} {
		if err := f(); err != nil {
			return fmt.Errorf("cache: verify: %w", err)
		}
	}
	return nil
}

func (c *Cache) verifyTable() error {
	p := &c.pages
	seen := 0
	for at, i := range p.table.slots {
		if i == none {
			continue
		}
		seen++
		if int(i) >= len(p.entries)+len(p.ghosts.keys) {
			return fmt.Errorf("slot %d of the table has entry %d", at, i)
		}
		if key := p.keyOf(i); key == 0 || p.find(key) != i {
			return fmt.Errorf("entry %d of key %#x is in slot %d of the table, and found is %d", i, key, at, p.find(key))
		}
	}
	keys := 0
	for i := range p.entries {
		if p.entries[i].key != 0 {
			keys++
		}
	}
	if n := p.policy.verify(); n != keys {
		return fmt.Errorf("%d entries have keys, the policy's queues %d", keys, n)
	}
	if keys+len(p.unused) != len(p.entries) {
		return fmt.Errorf("%d entries have keys and %d have none, of %d", keys, len(p.unused), len(p.entries))
	}
	for _, key := range p.ghosts.keys {
		if key != 0 {
			keys++
		}
	}
	if keys != seen {
		return fmt.Errorf("%d keys, and %d in the table", keys, seen)
	}
	return nil
}

func (c *Cache) verifyEntries() error {
	p := &c.pages
	all := span(0, (p.pageMask+1)>>p.lineShift)
	wanted := make([]uint64, len(p.entries))
	for s := range c.net.flights {
		f := &c.net.flights[s]
		if !f.used || f.entry == none || f.gen != p.entries[f.entry].gen {
			continue
		}
		if wanted[f.entry]&f.lines != 0 {
			return fmt.Errorf("entry %d has lines %#x in flight twice", f.entry, wanted[f.entry]&f.lines)
		}
		wanted[f.entry] |= f.lines
	}
	for i := range p.entries {
		e := &p.entries[i]
		switch {
		case e.key == 0 && (e.valid|e.ready|e.wanted != 0 || e.mask != none || e.op != none || e.queue != noQueue):
			return fmt.Errorf("entry %d is free, and has %+v", i, *e)
		case (e.valid|e.ready|e.wanted)&^all != 0:
			return fmt.Errorf("entry %d has lines that no page has: %+v", i, *e)
		case e.valid&e.ready != 0 || (e.valid|e.ready)&e.wanted != 0:
			return fmt.Errorf("entry %d has a line twice: %+v", i, *e)
		case e.pinned:
			return fmt.Errorf("entry %d is pinned between requests", i)
		case e.epoch > p.epoch && !e.keep:
			return fmt.Errorf("entry %d is of epoch %d, and it is %d", i, e.epoch, p.epoch)
		case e.op != none && (e.mask == none || c.net.ops[e.op].kind != opPut):
			return fmt.Errorf("entry %d is being written: %+v", i, *e)
		}
		if wanted[i] != e.wanted {
			return fmt.Errorf("entry %d wants lines %#x, in flight are %#x", i, e.wanted, wanted[i])
		}
	}
	if r := &p.reads; r.len > 0 {
		e, o := &p.entries[p.readOf], r.off&p.pageMask
		if l := p.lines(o, r.len); e.key != p.pageKey(r.rank, r.off) || e.epoch < p.epoch || e.valid&l != l {
			return fmt.Errorf("the window for reads is %+v, its entry %+v", *r, *e)
		}
	}
	if w := &p.writes; w.len > 0 {
		if e := &p.entries[p.writeOf]; e.key != p.pageKey(w.rank, w.off) || e.mask == none || e.op != none {
			return fmt.Errorf("the window for writes is %+v, its entry %+v", *w, *e)
		}
	}
	return nil
}

func (c *Cache) verifyDirty() error {
	p := &c.pages
	masks := make([]bool, p.cfg.Dirty)
	for _, m := range p.freeMasks {
		masks[m] = true
	}
	used, listed := 0, 0
	for i := range p.entries {
		e := &p.entries[i]
		if e.mask == none {
			continue
		}
		if masks[e.mask] {
			return fmt.Errorf("entry %d has a mask that is free, or another's", i)
		}
		masks[e.mask] = true
		if used++; e.op == none {
			listed++
		}
		size := p.sizes[keyRank(e.key)] - p.keyOff(e.key)
		if size <= p.pageMask && anyBits(p.maskOf(e), size, p.pageMask+1-size) {
			return fmt.Errorf("entry %d has dirty bytes behind the end of its rank", i)
		}
	}
	if p.n.Unsent != uint64(used) {
		return fmt.Errorf("%d pages are not sent, counted %d", used, p.n.Unsent)
	}
	if used+len(p.freeMasks) != p.cfg.Dirty {
		return fmt.Errorf("%d masks are used and %d free, of %d", used, len(p.freeMasks), p.cfg.Dirty)
	}
	n, before := 0, uint16(none)
	for i := p.oldest; i != none; i = p.entries[i].younger {
		e := &p.entries[i]
		if n++; n > len(p.entries) || e.older != before || e.mask == none || e.op != none {
			return fmt.Errorf("entry %d is not right in the list of the dirty: %+v", i, *e)
		}
		before = i
	}
	if before != p.youngest || n != p.dirty || n != listed {
		return fmt.Errorf("%d dirty entries are listed, %d counted, %d have a mask", n, p.dirty, listed)
	}
	return nil
}

func (c *Cache) verifyOps() error {
	p := &c.pages
	ring := make([]int, len(c.net.ring))
	count := [3]int{}
	slots := 0
	for k := range c.net.ops {
		o := &c.net.ops[k]
		count[o.kind]++
		if o.kind == opFree {
			continue
		}
		if o.done || o.held {
			return fmt.Errorf("operation %d was not ended: %+v", k, *o)
		}
		ring[o.peer]++
		if o.kind == opGet {
			for s := o.head; s != none; s = c.net.flights[s].next {
				if slots++; slots > len(c.net.flights) || !c.net.flights[s].used {
					return fmt.Errorf("operation %d has slot %d: %+v", k, s, c.net.flights[s])
				}
			}
			continue
		}
		for i, n := o.head, 0; i != none; i = p.entries[i].younger {
			if n++; n > len(p.entries) || int(p.entries[i].op) != k {
				return fmt.Errorf("operation %d writes entry %d: %+v", k, i, p.entries[i])
			}
		}
	}
	switch {
	case count[opFree] != len(c.net.freeOps) || count[opGet] != c.net.gets || count[opPut] != c.net.puts:
		return fmt.Errorf("operations free, gets and puts: %v, counted %d, %d, %d", count,
			len(c.net.freeOps), c.net.gets, c.net.puts)
	case slots+len(c.net.freeSlots) != len(c.net.flights):
		return fmt.Errorf("%d slots are used and %d free, of %d", slots, len(c.net.freeSlots), len(c.net.flights))
	}
	for r, n := range ring {
		if n != int(c.net.ring[r]) || n > p.cfg.Ring {
			return fmt.Errorf("%d operations to rank %d, counted %d, at most %d", n, r, c.net.ring[r], p.cfg.Ring)
		}
	}
	return nil
}

func (c *Cache) verifyStats() error {
	p := &c.pages
	resident := 0
	for i := range p.entries {
		resident += bits.OnesCount64(p.entries[i].ready)
	}
	for s := range c.net.flights {
		if f := &c.net.flights[s]; f.used && f.ahead {
			resident += bits.OnesCount64(f.lines)
		}
	}
	s := c.Stats()
	switch {
	case s.PrefetchResident != uint64(resident):
		return fmt.Errorf("%d lines are there that nobody asked for, counted %d", resident, s.PrefetchResident)
	case s.Prefetched != s.PrefetchUsed+s.PrefetchUnused+s.PrefetchResident:
		return fmt.Errorf("%d lines fetched ahead: used %d, unused %d, resident %d", s.Prefetched,
			s.PrefetchUsed, s.PrefetchUnused, s.PrefetchResident)
	case s.BytesUsed > s.BytesFetched:
		return fmt.Errorf("%d bytes fetched, %d used", s.BytesFetched, s.BytesUsed)
	}
	return nil
}
