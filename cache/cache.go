package cache

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
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
