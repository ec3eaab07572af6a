package cache

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/internal/owner"
)

// Cache keeps data of other ranks for one worker, see the package comment.
//
// It is made of parts, each of which has those before it and calls nothing of those after it:
//
//	pages     what is kept: pages, the bytes of them that are dirty, and what may not be kept
//	observer  how regions and streams are used
//	carrier   operations in flight, and what they bring
//	writer    puts, and how room for a page is made
//	reader    gets, and what is fetched ahead
//	Cache     fences
type Cache struct {
	reader
	begun gets            // that do not wait
	ctx   context.Context // bounds what goes through lanes
}

// pages is what a cache keeps.
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

	useful uint64 // lines fetched ahead that were asked for, of late
	wasted uint64 // that were not
	first  bool   // the request reads lines that nobody asked for before
}

// observer judges what a cache is good for.
type observer struct {
	pages
	bypass
	streams   [streams]stream
	far       stream // the vote on distances of more than some lines
	maxWindow int    // pages that are fetched ahead of a stream; 0: none
	clock     uint64 // requests held against streams
	refused   uint64 // by thrifty
}

// carrier has lanes move data.
type carrier struct {
	observer
	env       env.Env
	lanes     []fabric.Lane
	route     []uint8 // by rank: the lane for gets and puts
	ops       []op
	freeOps   []uint16
	flights   []flight // by slot
	freeSlots []uint16
	ring      []uint16     // by rank: operations in flight
	puts      int          // operations in flight that are chains of puts
	gets      int          // that are gets
	batch     fabric.Batch // of gets
	told      fabric.Completions
	taken     [16]fabric.Completion
	pieces    []piece // of the request in progress
	lost      fabric.Failures
}

type writer struct {
	carrier
	guard  owner.Guard
	may    func(i uint16) bool // evictable, bound once
	chains fabric.Batch        // of puts
}

type reader struct{ writer }

// window is bytes of a rank that are accessed without a look at their entry.
type window struct {
	rank int
	off  uint64
	len  uint64 // 0: none
	data unsafe.Pointer
}

var _ env.Fence = (*Cache)(nil)

// New makes a cache of what lanes reach. It allocates all that it will use: Pages times PageSize
// and some 15 % more, registered with each network of the lanes. The lanes must stay open until
// Close.
func New(e env.Env, lanes env.Lanes, cfg Config) (*Cache, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return nil, err
	}
	if err := cfg.place(e); err != nil {
		return nil, err
	}
	if e.Size() >= maxRanks {
		return nil, fmt.Errorf("cache: a job of %d ranks; want fewer than %d", e.Size(), maxRanks)
	}
	c := new(Cache)
	c.cfg, c.env, c.lanes, c.ctx = cfg, e, lanes.All(), context.Background()
	c.begun = gets{c: c, first: 1, next: 1}
	c.epoch, c.oldest, c.youngest = 1, none, none
	n, free, err := offheap.Alloc[Stats]()
	if err != nil {
		return nil, err
	}
	c.n = n
	runtime.AddCleanup(c, func(free func()) { free() }, free) // Stats may be called after Close
	c.shape()
	slots := len(c.flights)
	if c.slab, err = newSlab(lanes, (cfg.Pages+slots)*cfg.PageSize); err != nil {
		return nil, err
	}
	c.base = unsafe.Pointer(unsafe.SliceData(c.slab.bytes))
	c.route = make([]uint8, e.Size())
	c.ring = make([]uint16, e.Size())
	c.sizes = make([]uint64, e.Size())
	most := uint64(0)
	for r := range c.route {
		if c.sizes[r] = cfg.Size(r); c.sizes[r] > 1<<rankShift {
			err := fmt.Errorf("cache: rank %d has %d bytes, want 2^%d at most", r, c.sizes[r], rankShift)
			return nil, errors.Join(err, c.slab.close())
		}
		for i, l := range c.lanes {
			if l == lanes.To(r) {
				c.route[r] = uint8(i)
			}
		}
		most = max(most, c.sizes[r])
	}
	c.regionBits = uint8(max(bits.Len64(most), 16+regionShift) - regionShift)
	return c, nil
}

// shape makes the arrays.
func (c *Cache) shape() {
	cfg := &c.cfg
	c.pageShift, c.lineShift = log2(cfg.PageSize), log2(cfg.LineSize)
	c.pageMask, c.lineMask = uint64(cfg.PageSize-1), uint64(cfg.LineSize-1)
	c.directory = newDirectory(cfg.Pages, cfg.Policy)
	if cfg.Policy == Duel {
		c.duel = newDuel(cfg.Pages)
	}
	c.may = c.evictable
	c.maskWords = cfg.PageSize / 64
	c.masks = make([]uint64, cfg.Dirty*c.maskWords)
	c.freeMasks = indexes(cfg.Dirty)
	c.work = make([]uint16, 0, cfg.Pages)
	c.bypass.init(cfg)
	c.exposed = make([]extent, 0, maxExposed)
	pieces := cfg.DirectMin/cfg.PageSize + 2
	c.pieces = make([]piece, 0, pieces)
	c.flights = make([]flight, max(2*pieces, slotBytes/max(cfg.PageSize, minSlot)))
	c.freeSlots = indexes(len(c.flights))
	if !cfg.NoReadahead {
		c.maxWindow = min(len(c.flights)-pieces, cfg.Pages/4)
	}
	c.ops = make([]op, len(c.flights)+cfg.Dirty)
	c.freeOps = indexes(len(c.ops))
}

// slotBytes is how much is fetched ahead at a time: 100 Gbit/s for 2 us are 25 KB. Pages below
// minSlot count as such.
const (
	slotBytes = 32 << 10
	minSlot   = 256
)

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

// Keeps reports whether the cache may have bytes of a rank.
func (c *Cache) Keeps(rank int) bool { return uint(rank) < uint(len(c.sizes)) && c.sizes[rank] != 0 }

// closeAfter bounds how long Close waits.
const closeAfter = 10 * time.Second

// Close is CloseWithin for 10 s.
func (c *Cache) Close() error {
	ctx, cancel := c.env.Host().WithTimeout(context.Background(), closeAfter)
	defer cancel()
	return c.CloseWithin(ctx)
}

// CloseWithin releases, and gives the memory back. It returns the errors that no Release has
// returned. With lanes that do not get done with what is in flight before ctx ends it fails, and
// keeps the memory, which belongs to the network then.
func (c *Cache) CloseWithin(ctx context.Context) error {
	if c.closed {
		return nil
	}
	err := c.Release(ctx)
	for c.gets > 0 && ctx.Err() == nil {
		if e := c.awaitAny(ctx, opGet); e != nil {
			err = errors.Join(err, e)
			break
		}
	}
	if n := c.cfg.Dirty - len(c.freeMasks); n > 0 {
		err = errors.Join(err, fmt.Errorf("cache: close: the writes of %d pages may be lost", n))
	}
	c.closed, c.sizes, c.reads.len, c.writes.len = true, nil, 0, 0
	for i := range c.table.slots {
		c.table.slots[i] = none
	}
	err = errors.Join(err, c.slab.close())
	return err
}
