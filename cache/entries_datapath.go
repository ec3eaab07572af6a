package cache

import "math/bits"

// directory is which pages there are, in which entries, and which leaves first.
type directory struct {
	entries []entry
	table   table
	lru     *twoQueues // the policy, if that is one
	policy  policy
	sketch  *sketch  // nil: the policy does not want to know what is asked for
	unused  []uint16 // entries without a page
	ghosts  ghosts
}

// newDirectory has no pages yet.
func newDirectory(pages int, p Policy) (d directory) {
	ghosts := pages / 2
	d.ghosts.keys = make([]uint64, ghosts)
	d.entries = make([]entry, pages)
	d.table = newTable(pages + ghosts)
	if p != TwoQueues {
		d.sketch = newSketch(pages)
	}
	d.follow(newPolicy(p, d.entries, d.sketch))
	d.unused = make([]uint16, 0, pages)
	for i := pages - 1; i >= 0; i-- {
		d.entries[i].mask, d.entries[i].op = none, none
		d.unused = append(d.unused, uint16(i))
	}
	return d
}

// place gives a page an entry that is unused; again: it was remembered as a ghost.
func (d *directory) place(i uint16, key uint64, again bool) {
	d.entries[i].key = key
	d.enter(i)
	d.policy.insert(i, again)
}

// displace takes the page out of an entry, which is unused then.
func (d *directory) displace(i uint16) {
	ghost := d.policy.remove(i)
	d.leave(i)
	e := &d.entries[i]
	key := e.key
	e.key = 0
	d.unused = append(d.unused, i)
	if ghost {
		d.remember(key)
	}
}

// see has the directory of a cache without data know that a page is asked for, and returns its
// entry and whether it was there.
func (d *directory) see(key uint64) (i uint16, had bool) {
	if d.sketch != nil {
		d.sketch.add(key)
	}
	if i = d.entryOf(key); i != none {
		d.touch(i)
		return i, true
	}
	again := false
	if len(d.unused) == 0 {
		i = d.policy.victim(anyEntry)
		again = d.recall(key)
		d.displace(i)
	} else {
		again = d.recall(key)
	}
	i = pop(&d.unused)
	d.place(i, key, again)
	return i, false
}

func anyEntry(uint16) bool { return true }

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
	puts           uint16 // since the dirty bytes were written last
	queue          uint8  // the policy's
	region         uint8  // see bypass
	pinned         bool   // the request in progress needs it
	keep           bool   // survives an acquire: read-only or private
}

// always is the epoch of what survives an acquire.
const always = 1<<64 - 1

// rankShift leaves 40 bits for the number of a page. Ranks begin with 1, so that no key is 0.
const (
	rankShift = 40
	maxRanks  = 1 << (64 - rankShift)
)

func keyRank(key uint64) int { return int(key>>rankShift) - 1 }

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
func (d *directory) keyOf(i uint16) uint64 {
	if int(i) < len(d.entries) {
		return d.entries[i].key
	}
	return d.ghosts.keys[int(i)-len(d.entries)]
}

// find returns the entry or ghost of a key, or none.
func (d *directory) find(key uint64) uint16 {
	mask := uint64(len(d.table.slots) - 1)
	for at := d.table.home(key); ; at++ {
		i := d.table.slots[at&mask]
		if i == none || d.keyOf(i) == key {
			return i
		}
	}
}

// entryOf returns the entry of a key, which is no ghost, or none.
func (d *directory) entryOf(key uint64) uint16 {
	if i := d.find(key); int(i) < len(d.entries) {
		return i
	}
	return none
}

// enter has find find i, whose key is set and not in the table.
func (d *directory) enter(i uint16) {
	mask := uint64(len(d.table.slots) - 1)
	at := d.table.home(d.keyOf(i))
	for d.table.slots[at&mask] != none {
		at++
	}
	d.table.slots[at&mask] = i
}

// leave takes i out, and moves back what was pushed on by it (Knuth vol 3 §6.4, algorithm R).
func (d *directory) leave(i uint16) {
	mask := uint64(len(d.table.slots) - 1)
	at := d.table.home(d.keyOf(i)) & mask
	for d.table.slots[at] != i {
		at = (at + 1) & mask
	}
	for free, next := at, (at+1)&mask; ; next = (next + 1) & mask {
		j := d.table.slots[next]
		if j == none {
			d.table.slots[free] = none
			return
		}
		// j may move to the free slot unless its home lies behind that.
		if home := d.table.home(d.keyOf(j)); (next-home)&mask >= (next-free)&mask {
			d.table.slots[free], free = j, next
		}
	}
}

// remember makes a page that left a ghost, in the place of the oldest.
func (d *directory) remember(key uint64) {
	g := &d.ghosts
	if len(g.keys) == 0 {
		return
	}
	i := uint16(len(d.entries) + g.next)
	if g.keys[g.next] != 0 {
		d.leave(i)
	}
	g.keys[g.next] = key
	d.enter(i)
	g.next = (g.next + 1) % len(g.keys)
}

// recall forgets the ghost of a page, and says whether there was one.
func (d *directory) recall(key uint64) bool {
	i := d.find(key)
	if int(i) < len(d.entries) || i == none {
		return false
	}
	d.leave(i)
	d.ghosts.keys[int(i)-len(d.entries)] = 0
	return true
}

// span is n bits from the first on.
func span(first, n uint64) uint64 { return (1<<(n&63) - 1 + -(n >> 6)) << (first & 63) }

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
