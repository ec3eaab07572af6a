package cache

import (
	"fmt"
	"math/bits"
)

// Verify checks the cache's structure and counters, for tests: what is linked, counted and marked
// where. It takes time in proportion to the cache, and may be called between any two calls.
func (c *Cache) Verify() error {
	if c.closed {
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
	seen := 0
	for at, i := range c.table.slots {
		if i == none {
			continue
		}
		seen++
		if int(i) >= len(c.entries)+len(c.ghosts.keys) {
			return fmt.Errorf("slot %d of the table has entry %d", at, i)
		}
		if key := c.keyOf(i); key == 0 || c.find(key) != i {
			return fmt.Errorf("entry %d of key %#x is in slot %d of the table, and found is %d", i, key, at, c.find(key))
		}
	}
	keys := 0
	for i := range c.entries {
		if c.entries[i].key != 0 {
			keys++
		}
	}
	if n := c.policy.verify(); n != keys {
		return fmt.Errorf("%d entries have keys, the policy's queues %d", keys, n)
	}
	if keys+len(c.unused) != len(c.entries) {
		return fmt.Errorf("%d entries have keys and %d have none, of %d", keys, len(c.unused), len(c.entries))
	}
	for _, key := range c.ghosts.keys {
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
	all := span(0, (c.pageMask+1)>>c.lineShift)
	wanted := make([]uint64, len(c.entries))
	for s := range c.flights {
		f := &c.flights[s]
		if !f.used || f.entry == none || f.gen != c.entries[f.entry].gen {
			continue
		}
		if wanted[f.entry]&f.lines != 0 {
			return fmt.Errorf("entry %d has lines %#x in flight twice", f.entry, wanted[f.entry]&f.lines)
		}
		wanted[f.entry] |= f.lines
	}
	for i := range c.entries {
		e := &c.entries[i]
		switch {
		case e.key == 0 && (e.valid|e.ready|e.wanted != 0 || e.mask != none || e.op != none || e.queue != noQueue):
			return fmt.Errorf("entry %d is free, and has %+v", i, *e)
		case (e.valid|e.ready|e.wanted)&^all != 0:
			return fmt.Errorf("entry %d has lines that no page has: %+v", i, *e)
		case e.valid&e.ready != 0 || (e.valid|e.ready)&e.wanted != 0:
			return fmt.Errorf("entry %d has a line twice: %+v", i, *e)
		case e.pinned:
			return fmt.Errorf("entry %d is pinned between requests", i)
		case e.epoch > c.epoch && !e.keep:
			return fmt.Errorf("entry %d is of epoch %d, and it is %d", i, e.epoch, c.epoch)
		case e.op != none && (e.mask == none || c.ops[e.op].kind != opPut):
			return fmt.Errorf("entry %d is being written: %+v", i, *e)
		}
		if wanted[i] != e.wanted {
			return fmt.Errorf("entry %d wants lines %#x, in flight are %#x", i, e.wanted, wanted[i])
		}
	}
	if r := &c.reads; r.len > 0 {
		e, o := &c.entries[c.readOf], r.off&c.pageMask
		if l := c.lines(o, r.len); e.key != c.pageKey(r.rank, r.off) || e.epoch < c.epoch || e.valid&l != l {
			return fmt.Errorf("the window for reads is %+v, its entry %+v", *r, *e)
		}
	}
	if w := &c.writes; w.len > 0 {
		if e := &c.entries[c.writeOf]; e.key != c.pageKey(w.rank, w.off) || e.mask == none || e.op != none {
			return fmt.Errorf("the window for writes is %+v, its entry %+v", *w, *e)
		}
	}
	return nil
}

func (c *Cache) verifyDirty() error {
	masks := make([]bool, c.cfg.Dirty)
	for _, m := range c.freeMasks {
		masks[m] = true
	}
	used, listed := 0, 0
	for i := range c.entries {
		e := &c.entries[i]
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
		size := c.sizes[keyRank(e.key)] - c.keyOff(e.key)
		if size <= c.pageMask && anyBits(c.maskOf(e), size, c.pageMask+1-size) {
			return fmt.Errorf("entry %d has dirty bytes behind the end of its rank", i)
		}
	}
	if c.n.Unsent != uint64(used) {
		return fmt.Errorf("%d pages are not sent, counted %d", used, c.n.Unsent)
	}
	if used+len(c.freeMasks) != c.cfg.Dirty {
		return fmt.Errorf("%d masks are used and %d free, of %d", used, len(c.freeMasks), c.cfg.Dirty)
	}
	n, before := 0, uint16(none)
	for i := c.oldest; i != none; i = c.entries[i].younger {
		e := &c.entries[i]
		if n++; n > len(c.entries) || e.older != before || e.mask == none || e.op != none {
			return fmt.Errorf("entry %d is not right in the list of the dirty: %+v", i, *e)
		}
		before = i
	}
	if before != c.youngest || n != c.dirty || n != listed {
		return fmt.Errorf("%d dirty entries are listed, %d counted, %d have a mask", n, c.dirty, listed)
	}
	return nil
}

func (c *Cache) verifyOps() error {
	ring := make([]int, len(c.ring))
	count := [3]int{}
	slots := 0
	for k := range c.ops {
		o := &c.ops[k]
		count[o.kind]++
		if o.kind == opFree {
			continue
		}
		if o.done || o.held {
			return fmt.Errorf("operation %d was not ended: %+v", k, *o)
		}
		ring[o.peer]++
		if o.kind == opGet {
			for s := o.head; s != none; s = c.flights[s].next {
				if slots++; slots > len(c.flights) || !c.flights[s].used {
					return fmt.Errorf("operation %d has slot %d: %+v", k, s, c.flights[s])
				}
			}
			continue
		}
		for i, n := o.head, 0; i != none; i = c.entries[i].younger {
			if n++; n > len(c.entries) || int(c.entries[i].op) != k {
				return fmt.Errorf("operation %d writes entry %d: %+v", k, i, c.entries[i])
			}
		}
	}
	switch {
	case count[opFree] != len(c.freeOps) || count[opGet] != c.gets || count[opPut] != c.puts:
		return fmt.Errorf("operations free, gets and puts: %v, counted %d, %d, %d", count, len(c.freeOps), c.gets, c.puts)
	case slots+len(c.freeSlots) != len(c.flights):
		return fmt.Errorf("%d slots are used and %d free, of %d", slots, len(c.freeSlots), len(c.flights))
	}
	for r, n := range ring {
		if n != int(c.ring[r]) || n > c.cfg.Ring {
			return fmt.Errorf("%d operations to rank %d, counted %d, at most %d", n, r, c.ring[r], c.cfg.Ring)
		}
	}
	return nil
}

func (c *Cache) verifyStats() error {
	resident := 0
	for i := range c.entries {
		resident += bits.OnesCount64(c.entries[i].ready)
	}
	for s := range c.flights {
		if f := &c.flights[s]; f.used && f.ahead {
			resident += bits.OnesCount64(f.lines)
		}
	}
	s := c.Stats()
	switch {
	case s.PrefetchResident != uint64(resident):
		return fmt.Errorf("%d lines are there that nobody asked for, counted %d", resident, s.PrefetchResident)
	case s.Prefetched != s.PrefetchUsed+s.PrefetchUnused+s.PrefetchResident:
		return fmt.Errorf("%d lines fetched ahead: used %d, unused %d, resident %d", s.Prefetched, s.PrefetchUsed, s.PrefetchUnused, s.PrefetchResident)
	case s.BytesUsed > s.BytesFetched:
		return fmt.Errorf("%d bytes fetched, %d used", s.BytesFetched, s.BytesUsed)
	}
	return nil
}
