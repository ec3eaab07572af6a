package cache

import (
	"fmt"
	"math/bits"
	"os"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// pages are the bytes that a cache keeps.
type pages struct {
	// What a hit touches comes first.
	reads     window // lines that can be read, of the page that was read last
	n         *Stats
	pageShift uint8
	lineShift uint8
	pageMask  uint64 // of the offset in a page
	lineMask  uint64 // of the offset in a line
	epoch     uint64 // the number of acquires, from 1
	base      unsafe.Pointer
	directory
	sizes    []uint64 // by rank, in bytes
	writes   window   // of the page that was written last, while it is dirty and not being written
	mask     []uint64 // of that page
	readOf   uint16   // the entry of reads, if that has a length
	writeOf  uint16   // of writes, likewise
	putsSeen uint64   // puts that pages have counted

	cfg    Config
	slab   slab
	closed bool
	duel   *duel

	masks      []uint64 // of dirty bytes, maskWords each
	maskWords  int
	freeMasks  []uint16
	oldest     uint16 // of the dirty that are not being written
	youngest   uint16
	dirty      int
	work       []uint16 // entries to write, or that a range has
	exposed    []extent // in which puts and atomics that passed by are in flight
	allExposed bool
	passed     bool // something has passed by since the last Release
	lingers    bool // of that, something that the lanes do not complete
	hints      []hinted

	useful uint64 // lines fetched ahead that were used, of late
	wasted uint64 // that were not
	first  bool   // the request reads lines that no other has read before
}

// page is the bytes of an entry's page, slot those of a flight's slot.
func (c *pages) page(i uint16) []byte {
	at := int(i) << (c.pageShift & 63)
	return c.slab.bytes[at : at+c.cfg.PageSize : at+c.cfg.PageSize]
}

func (c *pages) slotAt(s uint16) int { return (len(c.entries) + int(s)) << (c.pageShift & 63) }

func (c *pages) slot(s uint16) []byte {
	at := c.slotAt(s)
	return c.slab.bytes[at : at+c.cfg.PageSize : at+c.cfg.PageSize]
}

// check is what keeps a request of n bytes from being begun.
func (c *pages) check(name string, rank int, off uint64, n int) error {
	switch {
	case c.closed:
		return fmt.Errorf("cache: %s: %w", name, os.ErrClosed)
	case rank < 0 || rank >= len(c.sizes):
		return &fabric.RankError{Op: name, Rank: rank, Size: len(c.sizes)}
	}
	return fabric.CheckRange(name, rank, off, uint64(n), c.sizes[rank])
}

// inside is check without a reason, and without a call.
func (c *pages) inside(rank int, off, n uint64) bool {
	return uint(rank) < uint(len(c.sizes)) && n <= c.sizes[rank] && off <= c.sizes[rank]-n
}

// window is bytes of a rank that are accessed without a look at their entry.
type window struct {
	rank int
	off  uint64
	len  uint64 // 0: none
	data unsafe.Pointer
}

// indexes are n-1 down to 0, a stack of all.
func indexes(n int) []uint16 {
	s := make([]uint16, n)
	for i := range s {
		s[i] = uint16(n - 1 - i)
	}
	return s
}

func pop(s *[]uint16) uint16 {
	k := len(*s) - 1
	i := (*s)[k]
	*s = (*s)[:k]
	return i
}

func log2(n int) (k uint8) {
	for ; n > 1; n >>= 1 {
		k++
	}
	return k
}

// overlapped are the entries of the pages of a range that is not empty, in c.work.
func (c *pages) overlapped(rank int, off, n uint64) []uint16 {
	c.work = c.work[:0]
	first, last := c.pageKey(rank, off), c.pageKey(rank, off+n-1)
	if last-first >= uint64(len(c.entries)) {
		for i := range c.entries {
			if key := c.entries[i].key; key >= first && key <= last {
				c.work = append(c.work, uint16(i))
			}
		}
		return c.work
	}
	for key := first; key <= last; key++ {
		if i := c.entryOf(key); i != none {
			c.work = append(c.work, i)
		}
	}
	return c.work
}

// within is the part of a range that lies in a page: n bytes at o of the page, and at of the range.
func (c *pages) within(key, off, n uint64) (o, k uint64, at int) {
	page := c.keyOff(key)
	low, high := max(page, off), min(page+c.pageMask+1, off+n)
	return low - page, high - low, int(low - off)
}

// missing are the lines of a range of a page that cannot be read from it.
func (c *pages) missing(e *entry, o, n uint64) uint64 {
	miss := c.lines(o, n) &^ (e.valid | e.ready)
	if miss == 0 || e.mask == none {
		return miss
	}
	m := c.maskOf(e)
	for left := miss; left != 0; left &= left - 1 {
		k := uint64(bits.TrailingZeros64(left))
		low := max(k<<(c.lineShift&63), o)
		high := min((k+1)<<(c.lineShift&63), o+n)
		if allBits(m, low, high-low) {
			miss &^= 1 << k
		}
	}
	return miss
}

// lineBytes is how many bytes lines of a page have: the last of a rank may have less than others.
func (c *pages) lineBytes(key, lines uint64) uint64 {
	n := uint64(bits.OnesCount64(lines)) << (c.lineShift & 63)
	high := uint64(64-bits.LeadingZeros64(lines))<<(c.lineShift&63) + c.keyOff(key)
	if size := c.sizes[keyRank(key)]; high > size {
		n -= high - size
	}
	return n
}

// unread counts lines that were fetched ahead for nothing.
func (c *pages) unread(lines uint64) {
	n := uint64(bits.OnesCount64(lines))
	c.n.PrefetchUnused += n
	c.wasted += n
	c.n.PrefetchResident -= n
}

// drop forgets lines of an entry, and flights to it.
func (c *pages) drop(i uint16, lines uint64) {
	e := &c.entries[i]
	if i == c.readOf && e.valid&lines != 0 {
		c.reads.len = 0
	}
	e.valid &^= lines
	c.dropAhead(e, lines)
}

// dropAhead is drop of lines that nobody could read yet.
func (c *pages) dropAhead(e *entry, lines uint64) {
	if r := e.ready & lines; r != 0 {
		c.unread(r)
		e.ready &^= r
	}
	if e.wanted&lines != 0 {
		c.cancel(e)
	}
}

// cancel has what is in flight to the entry be dropped when it arrives.
func (c *pages) cancel(e *entry) {
	e.gen++
	e.wanted = 0
}

// refresh forgets what an acquire has made old.
func (c *pages) refresh(i uint16) {
	if e := &c.entries[i]; e.epoch < c.epoch {
		c.drop(i, ^uint64(0))
		e.epoch = c.epoch
	}
}

func (c *pages) pageKey(rank int, off uint64) uint64 {
	return uint64(rank+1)<<rankShift | off>>(c.pageShift&63)
}

// keyOff is the offset of a page.
func (c *pages) keyOff(key uint64) uint64 { return key & (1<<rankShift - 1) << (c.pageShift & 63) }

// lines are the bits of the lines that n bytes at o of a page lie in; n is positive.
func (c *pages) lines(o, n uint64) uint64 {
	first := o >> (c.lineShift & 63)
	return span(first, (o+n-1)>>(c.lineShift&63)-first+1)
}

// maskOf is the dirty bytes of an entry that has some, a bit each.
func (c *pages) maskOf(e *entry) []uint64 {
	at := int(e.mask) * c.maskWords
	return c.masks[at : at+c.maskWords : at+c.maskWords]
}
