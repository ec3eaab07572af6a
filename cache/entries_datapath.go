package cache

import "math/bits"

// none is no entry, no mask, no slot, no operation.
const none = 1<<16 - 1

// entry is what is known of one page of the slab. It has no pointers, so that the collector skips
// the array, and the size of a processor's cache line.
type entry struct {
	key    uint64 // of the page of a rank, see pageKey; 0: the entry is free
	valid  uint64 // by line: the bytes are what epoch says
	ready  uint64 // by line: fetched ahead like that, and not asked for yet
	wanted uint64 // by line: flights of this generation will bring it
	epoch  uint64 // valid and ready count while this is at least the cache's
	gen    uint32 // flights of another generation bring nothing
	mask   uint16 // of dirty bytes, or none
	op     uint16 // that writes the dirty bytes, or none
	// A list each: of the policy's queue, and of the dirty, oldest first, or of those of op.
	prev, next     uint16
	older, younger uint16
	queue          uint8 // the policy's
	pinned         bool  // the request in progress needs it
	touched        bool  // asked for since the policy looked
	keep           bool  // survives an acquire: read-only or private
}

// always is the epoch of what survives an acquire.
const always = 1<<64 - 1

// rankShift leaves 40 bits for the number of a page. Ranks begin with 1, so that no key is 0.
const (
	rankShift = 40
	maxRanks  = 1 << (64 - rankShift)
)

func (c *Cache) pageKey(rank int, off uint64) uint64 {
	return uint64(rank+1)<<rankShift | off>>(c.pageShift&63)
}

func keyRank(key uint64) int { return int(key>>rankShift) - 1 }

// keyOff is the offset of a page.
func (c *Cache) keyOff(key uint64) uint64 { return key & (1<<rankShift - 1) << (c.pageShift & 63) }

// table finds entries and ghosts by key: open addressing, linear probing, at most a quarter full.
type table struct {
	slots []uint16 // of a power of two; entries, then ghosts; none is free
	shift uint8
}

func newTable(n int) table {
	size := max(8, 1<<bits.Len(uint(4*n-1)))
	t := table{slots: make([]uint16, size), shift: uint8(64 - bits.TrailingZeros(uint(size)))}
	for i := range t.slots {
		t.slots[i] = none
	}
	return t
}

// home is where the search for a key begins. The multiplication (by 2^64 over the golden ratio,
// Knuth vol 3 §6.4) spreads the strides of arrays; the shift before it brings the rank, whose bits
// would meet only its lowest ones, among those of the page.
func (t *table) home(key uint64) uint64 {
	return (key ^ key>>29) * 0x9E3779B97F4A7C15 >> (t.shift & 63)
}

// keyOf is the key of an entry or a ghost.
func (c *Cache) keyOf(i uint16) uint64 {
	if int(i) < len(c.entries) {
		return c.entries[i].key
	}
	return c.ghosts.keys[int(i)-len(c.entries)]
}

// find returns the entry or ghost of a key, or none.
func (c *Cache) find(key uint64) uint16 {
	mask := uint64(len(c.table.slots) - 1)
	for at := c.table.home(key); ; at++ {
		i := c.table.slots[at&mask]
		if i == none || c.keyOf(i) == key {
			return i
		}
	}
}

// entryOf returns the entry of a key, which is no ghost, or none.
func (c *Cache) entryOf(key uint64) uint16 {
	if i := c.find(key); int(i) < len(c.entries) {
		return i
	}
	return none
}

// enter has find find i, whose key is set and not in the table.
func (c *Cache) enter(i uint16) {
	mask := uint64(len(c.table.slots) - 1)
	at := c.table.home(c.keyOf(i))
	for c.table.slots[at&mask] != none {
		at++
	}
	c.table.slots[at&mask] = i
}

// leave takes i out, and moves back what was pushed on by it (Knuth vol 3 §6.4, algorithm R).
func (c *Cache) leave(i uint16) {
	mask := uint64(len(c.table.slots) - 1)
	at := c.table.home(c.keyOf(i)) & mask
	for c.table.slots[at] != i {
		at = (at + 1) & mask
	}
	for free, next := at, (at+1)&mask; ; next = (next + 1) & mask {
		j := c.table.slots[next]
		if j == none {
			c.table.slots[free] = none
			return
		}
		// j may move to the free slot unless its home lies behind that.
		if home := c.table.home(c.keyOf(j)); (next-home)&mask >= (next-free)&mask {
			c.table.slots[free], free = j, next
		}
	}
}

// span is n bits from the first on.
func span(first, n uint64) uint64 { return (1<<(n&63) - 1 + -(n >> 6)) << (first & 63) }

// lines are the bits of the lines that n bytes at o of a page lie in; n is positive.
func (c *Cache) lines(o, n uint64) uint64 {
	first := o >> (c.lineShift & 63)
	return span(first, (o+n-1)>>(c.lineShift&63)-first+1)
}

// maskOf is the dirty bytes of an entry that has some, a bit each.
func (c *Cache) maskOf(e *entry) []uint64 {
	at := int(e.mask) * c.maskWords
	return c.masks[at : at+c.maskWords : at+c.maskWords]
}

func setBits(m []uint64, o, n uint64) {
	for n > 0 {
		k := min(n, 64-o&63)
		m[o>>6] |= span(o&63, k)
		o, n = o+k, n-k
	}
}

// allBits reports whether n bits from o on are set, and anyBits whether one is.
func allBits(m []uint64, o, n uint64) bool {
	for n > 0 {
		k := min(n, 64-o&63)
		if b := span(o&63, k); m[o>>6]&b != b {
			return false
		}
		o, n = o+k, n-k
	}
	return true
}

func anyBits(m []uint64, o, n uint64) bool {
	for n > 0 {
		k := min(n, 64-o&63)
		if m[o>>6]&span(o&63, k) != 0 {
			return true
		}
		o, n = o+k, n-k
	}
	return false
}

// nextRun returns the first run of bits that equal set in [o, end), or n = 0.
func nextRun(m []uint64, set bool, o, end uint64) (at, n uint64) {
	for at = o; at < end; {
		w := m[at>>6]
		if !set {
			w = ^w
		}
		if w >>= at & 63; w != 0 {
			at += uint64(bits.TrailingZeros64(w))
			break
		}
		at = at&^63 + 64
	}
	if at >= end {
		return end, 0
	}
	stop := at
	for stop < end {
		w := m[stop>>6]
		if set {
			w = ^w
		}
		if w >>= stop & 63; w != 0 {
			stop += uint64(bits.TrailingZeros64(w))
			break
		}
		stop = stop&^63 + 64
	}
	return at, min(stop, end) - at
}
