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
// It is made of parts, each of which has those before it and calls nothing of those after it.
type Cache struct {
	pages  pages           // pages, their dirty bytes, and bytes that may not be kept
	usage  usage           // how regions and streams are used
	net    transfers       // operations in flight
	writer writer          // puts, and how room for a page is made
	reader reader          // gets, and lines that are fetched ahead
	begun  gets            // that do not wait
	ctx    context.Context // bounds what goes through lanes
}

// usage judges what a cache is good for.
type usage struct {
	pages *pages
	bypass
	streams   [streams]stream
	far       stream // the vote on distances of more than some lines
	maxWindow int    // pages that are fetched ahead of a stream; 0: none
	clock     uint64 // requests held against streams
	refused   uint64 // by thrifty
}

// transfers has lanes move data.
type transfers struct {
	pages     *pages
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
	taken     [8]fabric.Completion
	pieces    []piece // of the request in progress
	lost      fabric.Failures
}

type writer struct {
	pages  *pages
	usage  *usage
	net    *transfers
	guard  owner.Guard
	may    func(i uint16) bool // evictable, bound once
	chains fabric.Batch        // of puts
}

type reader struct {
	pages  *pages
	usage  *usage
	net    *transfers
	writer *writer
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
	p, t := &c.pages, &c.net
	p.cfg, t.env, t.lanes, c.ctx = cfg, e, lanes.All(), context.Background()
	c.begun = gets{c: c, first: 1, next: 1}
	p.epoch, p.oldest, p.youngest = 1, none, none
	n, free, err := offheap.Alloc[Stats]()
	if err != nil {
		return nil, err
	}
	p.n = n
	runtime.AddCleanup(c, func(free func()) { free() }, free) // Stats may be called after Close
	c.shape()
	slots := len(t.flights)
	if p.slab, err = newSlab(lanes, (cfg.Pages+slots)*cfg.PageSize); err != nil {
		return nil, err
	}
	p.base = unsafe.Pointer(unsafe.SliceData(p.slab.bytes))
	t.route = make([]uint8, e.Size())
	t.ring = make([]uint16, e.Size())
	p.sizes = make([]uint64, e.Size())
	most := uint64(0)
	for r := range t.route {
		if p.sizes[r] = cfg.Size(r); p.sizes[r] > 1<<rankShift {
			err := fmt.Errorf("cache: rank %d has %d bytes, want 2^%d at most", r, p.sizes[r], rankShift)
			return nil, errors.Join(err, p.slab.close())
		}
		for i, l := range t.lanes {
			if l == lanes.To(r) {
				t.route[r] = uint8(i)
			}
		}
		most = max(most, p.sizes[r])
	}
	c.usage.regionBits = uint8(max(bits.Len64(most), 16+regionShift) - regionShift)
	return c, nil
}

// shape joins the parts, and makes the arrays.
func (c *Cache) shape() {
	p, u, t, w := &c.pages, &c.usage, &c.net, &c.writer
	u.pages, t.pages = p, p
	w.pages, w.usage, w.net = p, u, t
	c.reader = reader{p, u, t, w}
	cfg := &p.cfg
	p.pageShift, p.lineShift = log2(cfg.PageSize), log2(cfg.LineSize)
	p.pageMask, p.lineMask = uint64(cfg.PageSize-1), uint64(cfg.LineSize-1)
	p.directory = newDirectory(cfg.Pages, cfg.Policy)
	if cfg.Policy == Duel {
		p.duel = newDuel(cfg.Pages)
	}
	w.may = p.evictable
	p.maskWords = cfg.PageSize / 64
	p.masks = make([]uint64, cfg.Dirty*p.maskWords)
	p.freeMasks = indexes(cfg.Dirty)
	p.work = make([]uint16, 0, cfg.Pages)
	u.bypass.init(cfg)
	p.exposed = make([]extent, 0, maxExposed)
	pieces := cfg.DirectMin/cfg.PageSize + 2
	t.pieces = make([]piece, 0, pieces)
	t.flights = make([]flight, max(2*pieces, slotBytes/max(cfg.PageSize, minSlot)))
	t.freeSlots = indexes(len(t.flights))
	if !cfg.NoReadahead {
		u.maxWindow = min(len(t.flights)-pieces, cfg.Pages/4)
	}
	t.ops = make([]op, len(t.flights)+cfg.Dirty)
	t.freeOps = indexes(len(t.ops))
}

// slotBytes is how much is fetched ahead at a time: 100 Gbit/s for 2 us are 25 KB. Pages below
// minSlot count as such.
const (
	slotBytes = 32 << 10
	minSlot   = 256
)

// Keeps reports whether the cache may have bytes of a rank.
func (c *Cache) Keeps(rank int) bool {
	return uint(rank) < uint(len(c.pages.sizes)) && c.pages.sizes[rank] != 0
}

// closeAfter bounds how long Close waits.
const closeAfter = 10 * time.Second

// Close is CloseWithin for 10 s.
func (c *Cache) Close() error {
	ctx, cancel := c.net.env.Host().WithTimeout(context.Background(), closeAfter)
	defer cancel()
	return c.CloseWithin(ctx)
}

// CloseWithin releases, and gives the memory back. It returns the errors that no Release has
// returned. With lanes that do not get done with what is in flight before ctx ends it fails, and
// keeps the memory, which belongs to the network then.
func (c *Cache) CloseWithin(ctx context.Context) error {
	p := &c.pages
	if p.closed {
		return nil
	}
	err := c.Release(ctx)
	for c.net.gets > 0 && ctx.Err() == nil {
		if e := c.net.awaitAny(ctx, opGet); e != nil {
			err = errors.Join(err, e)
			break
		}
	}
	if n := p.cfg.Dirty - len(p.freeMasks); n > 0 {
		err = errors.Join(err, fmt.Errorf("cache: close: the writes of %d pages may be lost", n))
	}
	p.closed, p.sizes, p.reads.len, p.writes.len = true, nil, 0, 0
	for i := range p.table.slots {
		p.table.slots[i] = none
	}
	err = errors.Join(err, p.slab.close())
	return err
}
