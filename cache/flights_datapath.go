package cache

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/ibconduit/conduit/internal/fabric"
)

type opKind uint8

const (
	opFree opKind = iota
	opGet
	opPut
)

// op is a group of gets or of puts to one rank, whose completion is told as one.
type op struct {
	kind opKind
	lane uint8
	held bool // a request waits for it, and frees it
	done bool
	head uint16 // of gets: the first slot; of puts: the first entry
	peer int32
	err  error
}

// flight is a get into the slot of the same number.
type flight struct {
	lines uint64 // of the page, that it brings
	entry uint16 // where they go, or none
	next  uint16 // of the same op
	gen   uint32 // of the entry
	used  bool   // the slot is not free
	ahead bool   // the lines were not asked for
}

// begin makes an operation; there must be a free one.
func (c *transfers) begin(kind opKind, rank int) uint16 {
	k := pop(&c.freeOps)
	c.ops[k] = op{kind: kind, lane: c.route[rank], head: none, peer: int32(rank)}
	return k
}

// posted counts an operation that the network has.
func (c *transfers) posted(k uint16) {
	o := &c.ops[k]
	c.ring[o.peer]++
	if o.kind == opPut {
		c.puts++
	} else {
		c.gets++
	}
}

// end frees an operation, and the slots of its flights.
func (c *transfers) end(k uint16) {
	o := &c.ops[k]
	if o.kind == opGet {
		for s := o.head; s != none; s = c.flights[s].next {
			c.flights[s].used = false
			c.freeSlots = append(c.freeSlots, s)
		}
	}
	*o = op{}
	c.freeOps = append(c.freeOps, k)
}

// leave has an operation that was held end by itself.
func (c *transfers) leave(k uint16) {
	o := &c.ops[k]
	if o.held = false; o.done {
		c.end(k)
	}
}

// takeSlot takes a slot for lines of a page; there must be a free one.
func (c *transfers) takeSlot(o *op, lines uint64, ahead bool) uint16 {
	s := pop(&c.freeSlots)
	c.flights[s] = flight{lines: lines, entry: none, next: o.head, used: true, ahead: ahead}
	o.head = s
	return s
}

// fetch adds a get of the lines, from the first to the last of them, to the batch.
func (c *transfers) fetch(rank int, page uint64, lines uint64, s uint16) {
	p := c.pages
	low := uint64(bits.TrailingZeros64(lines)) << (p.lineShift & 63)
	high := uint64(64-bits.LeadingZeros64(lines)) << (p.lineShift & 63)
	high = min(high, p.sizes[rank]-page)
	c.batch.GetInto(rank, p.cfg.Begin+page+low, p.slab.known[c.route[rank]], uint64(p.slotAt(s))+low, high-low)
	p.n.Flights++
	p.n.BytesFetched += high - low
}

// bind has a flight's lines go to an entry.
func (c *transfers) bind(s, i uint16) {
	f, e := &c.flights[s], &c.pages.entries[i]
	f.entry, f.gen = i, e.gen
	e.wanted |= f.lines
}

// harvest takes what lanes have told.
func (c *transfers) harvest() {
	for c.told.Len() > 0 {
		n := c.told.Take(c.taken[:])
		for i := range n {
			x := c.taken[i]
			c.complete(uint16(x.Tag), x.Err)
		}
	}
}

func (c *transfers) complete(k uint16, err error) {
	o := &c.ops[k]
	c.ring[o.peer]--
	o.done, o.err = true, err
	if o.kind == opPut {
		c.puts--
		c.written(k, o.err)
		c.end(k)
		return
	}
	c.gets--
	for s := o.head; s != none; s = c.flights[s].next {
		c.arrived(s, err)
	}
	if !o.held {
		c.end(k)
	}
}

// arrived is called when a flight's bytes are in its slot, or never will be.
func (c *transfers) arrived(s uint16, err error) {
	p := c.pages
	f := &c.flights[s]
	if f.entry != none {
		if e := &p.entries[f.entry]; e.gen == f.gen {
			e.wanted &^= f.lines
			if err == nil && e.epoch >= p.epoch {
				c.merge(f.entry, s)
				if f.ahead {
					e.ready |= f.lines
				} else {
					e.valid |= f.lines
				}
				return
			}
		}
		p.n.FlightsDropped++
	}
	if f.ahead {
		p.unread(f.lines)
	}
}

// merge copies the lines of a flight into the page, but for what is dirty there.
func (c *transfers) merge(i, s uint16) {
	p := c.pages
	f, e := &c.flights[s], &p.entries[i]
	page, slot := p.page(i), p.slot(s)
	for left := f.lines; left != 0; {
		first := bits.TrailingZeros64(left)
		n := bits.TrailingZeros64(^(left >> first))
		left &^= span(uint64(first), uint64(n))
		low, high := uint64(first)<<(p.lineShift&63), uint64(first+n)<<(p.lineShift&63)
		if e.mask == none {
			copy(page[low:high], slot[low:high])
			continue
		}
		for m := p.maskOf(e); ; {
			at, k := nextRun(m, false, low, high)
			if k == 0 {
				break
			}
			copy(page[at:at+k], slot[at:at+k])
			low = at + k
		}
	}
}

// ahead counts lines that are fetched ahead.
func (c *transfers) ahead(lines uint64) {
	p := c.pages
	n := uint64(bits.OnesCount64(lines))
	p.n.Prefetched += n
	p.n.PrefetchResident += n
}

// await waits until a lane has told something.
func (c *transfers) await(ctx context.Context, lane uint8) error {
	err := c.lanes[lane].Await(ctx, &c.told)
	c.harvest()
	return err
}

// awaitOp waits for an operation that is held.
func (c *transfers) awaitOp(ctx context.Context, k uint16) error {
	for o := &c.ops[k]; !o.done; {
		if err := c.await(ctx, o.lane); err != nil && !o.done {
			return err
		}
	}
	return nil
}

var errNothing = errors.New("cache: nothing is in flight to wait for; please report this")

// awaitAny waits until an operation of a kind has ended.
func (c *transfers) awaitAny(ctx context.Context, kind opKind) error {
	for k := range c.ops {
		if o := &c.ops[k]; o.kind == kind && !o.done {
			return c.await(ctx, o.lane)
		}
	}
	return errNothing
}

// awaitRing waits until one more operation may be in flight to a rank.
func (c *transfers) awaitRing(ctx context.Context, rank int) error {
	for int(c.ring[rank]) >= c.pages.cfg.Ring {
		if err := c.await(ctx, c.route[rank]); err != nil {
			return err
		}
	}
	return nil
}

// lose keeps the first error of a rank's writes for Release.
func (c *transfers) lose(err error, rank int) {
	c.pages.n.Lost++
	c.lost.Add(failure(err, "put", rank))
}

// failure is an error as that of an operation.
func failure(err error, op string, rank int) *fabric.OpError {
	var failed *fabric.OpError
	if !errors.As(err, &failed) {
		failed = &fabric.OpError{Op: op, Rank: rank, Err: err}
	}
	return failed
}

// takeLost returns the errors of writes that failed, once.
func (c *transfers) takeLost() error {
	if err := c.lost.Take(); err != nil {
		return fmt.Errorf("cache: writes are lost: %w", err)
	}
	return nil
}

// written is called when the puts of an operation are at their target, or failed.
func (c *transfers) written(k uint16, err error) {
	p := c.pages
	o := &c.ops[k]
	for i := o.head; i != none; {
		e := &p.entries[i]
		next := e.younger
		m := p.maskOf(e)
		if err != nil {
			c.lose(err, int(o.peer))
			c.expire(i)
		}
		for line := uint64(0); line<<(p.lineShift&63) <= p.pageMask; line++ {
			o, n := line<<(p.lineShift&63), p.lineMask+1
			if err == nil && e.epoch >= p.epoch && e.valid>>line&1 == 0 && allBits(m, o, n) {
				p.dropAhead(e, 1<<line) // lines fetched ahead were not needed
				e.valid |= 1 << line
			}
		}
		if e.wanted != 0 { // it may have been read before the write arrived
			p.cancel(e)
		}
		p.freeMasks = append(p.freeMasks, e.mask)
		p.n.Unsent--
		e.mask, e.op, e.younger = none, none, none
		i = next
	}
}

// expire has an entry's lines be older than the last acquire.
func (c *transfers) expire(i uint16) {
	p := c.pages
	e := &p.entries[i]
	e.keep = false
	if e.epoch = 0; i == p.readOf {
		p.reads.len = 0
	}
}

// split makes the pieces of a request.
func (c *transfers) split(rank int, off uint64, n int) {
	p := c.pages
	c.pieces = c.pieces[:0]
	for at := 0; at < n; {
		o := (off + uint64(at)) & p.pageMask
		k := min(uint64(n-at), p.pageMask+1-o)
		key := p.pageKey(rank, off+uint64(at))
		c.pieces = append(c.pieces, piece{key: key, o: o, n: k, at: at, entry: none, slot: none})
		at += int(k)
	}
}

// unpin ends what post began with entries.
func (c *transfers) unpin() {
	for j := range c.pieces {
		if i := c.pieces[j].entry; i != none {
			c.pages.entries[i].pinned = false
		}
	}
}

// underway reports whether all that is left of a request has been fetched ahead, and is on its way.
func (c *transfers) underway() bool {
	pg := c.pages
	for j := range c.pieces {
		p := &c.pieces[j]
		if !p.done && (p.entry == none || pg.missing(&pg.entries[p.entry], p.o, p.n)&^pg.entries[p.entry].wanted != 0) {
			return false
		}
	}
	return true
}

// piece is the part of a request that lies in one page.
type piece struct {
	key   uint64
	o, n  uint64 // in the page
	at    int    // in the request
	entry uint16 // pinned meanwhile, or none
	slot  uint16 // of the flight that was begun for it, or none
	gen   uint32 // of the entry
	late  uint64 // lines that were on their way
	done  bool
}
