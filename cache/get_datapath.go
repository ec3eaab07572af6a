package cache

import (
	"context"
	"math/bits"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// Peek is Hit for the lines that were read last, short enough to be compiled into its caller.
func (c *Cache) Peek(rank int, off, n uint64) unsafe.Pointer {
	p := &c.pages
	if d := off - p.reads.off; n <= p.reads.len && d <= p.reads.len-n && rank == p.reads.rank {
		p.n.GetHits++
		return unsafe.Add(p.reads.data, d)
	}
	return nil
}

// Hit returns where n bytes at off of a rank lie if they are in lines of one page that the cache
// has, else nil: then Get reads them. What lies there may be read until the next call of the cache.
// The bytes must be in the rank's memory. It neither allocates nor waits.
func (c *Cache) Hit(rank int, off, n uint64) unsafe.Pointer {
	if at := c.Peek(rank, off, n); at != nil {
		return at
	}
	return c.reader.hitPage(rank, off, n)
}

// hitPage is Hit where another page was read last, or other lines of it.
func (c *reader) hitPage(rank int, off, n uint64) unsafe.Pointer {
	p := c.pages
	o := off & p.pageMask
	if n-1 > p.pageMask || o+n > p.pageMask+1 { // n is 0, too
		return nil
	}
	key := p.pageKey(rank, off)
	i := p.table.slots[p.table.home(key)&uint64(len(p.table.slots)-1)]
	if int(i) >= len(p.entries) || p.entries[i].key != key {
		if i = p.find(key); int(i) >= len(p.entries) {
			return nil
		}
	}
	e := &p.entries[i]
	valid := e.valid
	first := o >> (p.lineShift & 63)
	up := uint64(bits.TrailingZeros64(^(valid >> first))) // lines from the first on
	if n > (first+up)<<(p.lineShift&63)-o || e.epoch < p.epoch || up == 0 {
		return nil
	}
	down := uint64(bits.LeadingZeros64(^(valid << (63 - first)))) - 1 // lines before it
	p.touch(i)
	if i != p.readOf {
		c.usage.countHits()
		if p.sketch != nil {
			p.note(key, true)
		}
	}
	low := (first - down) << (p.lineShift & 63)
	data := unsafe.Add(p.base, uint64(i)<<(p.pageShift&63)+low)
	p.readOf = i
	low += off - o
	p.reads = window{rank: rank, off: low, len: min((up+down)<<(p.lineShift&63), p.sizes[rank]-low), data: data}
	p.n.GetHits++
	return unsafe.Add(data, off-low)
}

// Get reads len(dst) bytes at off of a rank. It blocks until they are there, or ctx ends: then it
// returns the cause, and dst may have been written in part. From Config.DirectMin bytes on, it
// passes the cache by, and keeps nothing.
//
// Errors: a *fabric.RankError or *fabric.BoundsError, one of the network, such as a
// *fabric.OpError with a *fabric.PeerDownError; os.ErrClosed.
func (c *Cache) Get(ctx context.Context, rank int, off uint64, dst []byte) error {
	if c.pages.inside(rank, off, uint64(len(dst))) {
		if at := c.Hit(rank, off, uint64(len(dst))); at != nil {
			copy(dst, unsafe.Slice((*byte)(at), len(dst)))
			return nil
		}
	}
	return c.reader.get(ctx, rank, off, dst)
}

// get is Get of what is no hit in one page.
func (c *reader) get(ctx context.Context, rank int, off uint64, dst []byte) error {
	p := c.pages
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return err
		}
		defer c.writer.guard.Exit()
	}
	if err := p.check("get", rank, off, len(dst)); err != nil {
		return err
	}
	switch n := uint64(len(dst)); {
	case n == 0:
		p.n.GetHits++
		return nil
	case c.passesBy(rank, off, n):
		p.n.GetsDirect++
		return c.getDirect(ctx, rank, off, dst)
	}
	p.first = false
	c.net.split(rank, off, len(dst))
	missed := false
	for {
		left := c.readable(dst)
		if left == 0 {
			break
		}
		again := missed
		missed = true
		if !again && c.bypassed(rank, off) {
			p.n.GetsDirect++
			return c.getDirect(ctx, rank, off, dst)
		}
		if err := c.bring(ctx, rank, off, left, dst, !again); err != nil {
			p.n.GetMisses++
			return err
		}
	}
	if missed {
		p.n.GetMisses++
	} else {
		c.found(rank, off, uint64(len(dst)))
	}
	return nil
}

// bring fetches what the pieces of a request lack, of which so many are left, and reads it. With
// ahead, what will be asked for next is fetched meanwhile.
func (c *reader) bring(ctx context.Context, rank int, off uint64, left int, dst []byte, ahead bool) error {
	for len(c.net.freeSlots) < left {
		if err := c.net.awaitAny(ctx, opGet); err != nil {
			return err
		}
	}
	if err := c.net.awaitRing(ctx, rank); err != nil {
		return err
	}
	k, err := c.post(rank)
	if err == nil {
		c.settle(k)
		if ahead {
			c.readahead(rank, off, uint64(len(dst)))
		}
		err = c.finish(ctx, k, dst)
	}
	c.net.unpin()
	return err
}

// bypassed reports whether a get that is no hit passes the cache by, and counts it. One that is
// late, as all that it lacks is on its way, does not.
func (c *reader) bypassed(rank int, off uint64) bool {
	p := c.pages
	if c.net.underway() {
		c.usage.hitIn(rank, off)
		return false
	}
	return (len(p.hints) == 0 || p.hintAt(rank, off) == Default) && c.writer.bypasses(rank, off)
}

// found counts a hit whose pieces were read.
func (c *reader) found(rank int, off, n uint64) {
	p := c.pages
	p.n.GetHits++
	c.usage.hitsSeen++
	c.usage.hitIn(rank, off)
	if p.first {
		c.readahead(rank, off, n)
	}
}

// passesBy reports whether a get of n bytes passes the cache by whatever that has.
func (c *reader) passesBy(rank int, off, n uint64) bool {
	p := c.pages
	return n >= uint64(p.cfg.DirectMin) || c.net.isExposed(rank, off, n) ||
		len(p.hints) > 0 && p.hintAt(rank, off) == Bypass
}

// readable reads the pieces that can be, and returns how many are left.
func (c *reader) readable(dst []byte) (left int) {
	pg := c.pages
	for j := range c.net.pieces {
		p := &c.net.pieces[j]
		if p.done {
			continue
		}
		p.entry, p.slot = pg.entryOf(p.key), none
		if pg.sketch != nil && (p.entry == none || p.entry != pg.readOf) {
			pg.note(p.key, p.entry != none)
		}
		if p.entry != none {
			e := &pg.entries[p.entry]
			pg.refresh(p.entry)
			pg.touch(p.entry)
			if pg.missing(e, p.o, p.n) == 0 {
				pg.read(p, dst)
				continue
			}
		}
		left++
	}
	return left
}

// read copies a piece out of its page.
func (c *pages) read(p *piece, dst []byte) {
	e := &c.entries[p.entry]
	copy(dst[p.at:p.at+int(p.n)], c.page(p.entry)[p.o:])
	p.done = true
	if r := e.ready & c.lines(p.o, p.n); r != 0 {
		n := uint64(bits.OnesCount64(r))
		e.ready &^= r
		e.valid |= r
		c.first = true
		c.useful += n
		c.n.PrefetchUsed += n
		c.n.PrefetchLate += uint64(bits.OnesCount64(r & p.late))
		c.n.PrefetchResident -= n
		c.n.BytesUsed += c.lineBytes(p.key, r)
	}
}

// post posts a flight for each piece that needs one, as one operation: none if all that is missing
// is on its way. What is pinned and begun unpin undoes.
func (c *reader) post(rank int) (uint16, error) {
	pg := c.pages
	k := c.net.begin(opGet, rank)
	o := &c.net.ops[k]
	o.held = true
	for j := range c.net.pieces {
		p := &c.net.pieces[j]
		if p.done {
			continue
		}
		need, have := pg.lines(p.o, p.n), uint64(0)
		// Waiting for room may have changed what the entry has.
		if p.entry = pg.entryOf(p.key); p.entry != none {
			e := &pg.entries[p.entry]
			e.pinned = true
			p.gen = e.gen
			have = e.valid | e.ready | e.wanted
			need = pg.missing(e, p.o, p.n)
			p.late |= need & e.wanted
			need &^= e.wanted
		}
		if need == 0 {
			continue
		}
		all := span(uint64(bits.TrailingZeros64(need)), uint64(bits.Len64(need)-bits.TrailingZeros64(need)))
		p.slot = c.net.takeSlot(o, all&^have, false)
		c.net.fetch(rank, pg.keyOff(p.key), all&^have, p.slot)
		pg.n.BytesUsed += pg.lineBytes(p.key, need)
	}
	if o.head == none {
		c.net.end(k)
		return none, nil
	}
	c.net.batch.Tag(fabric.Tag(k))
	err := c.net.lanes[c.net.route[rank]].Post(&c.net.batch, &c.net.told, 0)
	c.net.batch.Reset()
	if err != nil {
		c.net.end(k)
		return none, err
	}
	c.net.posted(k)
	return k, nil
}

// settle gives the flights of a request their entries, while they fly.
func (c *reader) settle(k uint16) {
	pg := c.pages
	if k == none {
		return
	}
	for j := range c.net.pieces {
		p := &c.net.pieces[j]
		if p.done || p.slot == none {
			continue
		}
		if p.entry == none {
			if p.entry = c.writer.allocate(p.key); p.entry == none {
				continue // all are in use: it is read from the slot
			}
			pg.entries[p.entry].pinned = true
			p.gen = pg.entries[p.entry].gen
		}
		c.net.bind(p.slot, p.entry)
	}
}

// finish waits for the flights of a request, and reads what they brought.
func (c *reader) finish(ctx context.Context, k uint16, dst []byte) error {
	pg := c.pages
	if k != none {
		o := &c.net.ops[k]
		err := c.net.awaitOp(ctx, k)
		if err == nil {
			err = o.err
		}
		if err != nil {
			c.net.leave(k)
			return err
		}
		defer c.net.end(k)
	}
	for j := range c.net.pieces {
		p := &c.net.pieces[j]
		if p.done {
			continue
		}
		if p.entry == none {
			if p.slot != none {
				copy(dst[p.at:p.at+int(p.n)], pg.slot(p.slot)[p.o:])
				p.done = true
			}
			continue
		}
		e := &pg.entries[p.entry]
		for e.gen == p.gen && e.wanted&pg.missing(e, p.o, p.n) != 0 {
			if err := c.net.await(ctx, c.net.route[keyRank(p.key)]); err != nil {
				return err
			}
		}
		if e.gen == p.gen && pg.missing(e, p.o, p.n) == 0 {
			pg.read(p, dst)
		}
	}
	return nil
}

// getAround reads bytes of which the cache has nothing.
func (c *transfers) getAround(ctx context.Context, rank int, off uint64, dst []byte) error {
	l := c.lanes[c.route[rank]]
	h, err := l.Get(rank, c.pages.cfg.Begin+off, dst, fabric.Blocking)
	if err == nil && h != fabric.Done {
		if _, err = l.Wait(ctx, h); err != nil {
			l.Abandon(h)
		}
	}
	return err
}

// getDirect reads without keeping anything. Own writes that were not sent are laid over it.
func (c *reader) getDirect(ctx context.Context, rank int, off uint64, dst []byte) error {
	p := c.pages
	n := uint64(len(dst))
	bare := c.usage.isBare(rank, off, n)
	if !bare {
		if err := c.net.quiet(ctx, rank, off, n); err != nil {
			return err
		}
	}
	if err := c.net.getAround(ctx, rank, off, dst); err != nil || bare {
		return err
	}
	for _, i := range p.overlapped(rank, off, n) {
		e := &p.entries[i]
		o, k, at := p.within(e.key, off, n)
		p.drop(i, p.lines(o, k)) // the next get must not find older bytes
		if e.mask == none {
			continue
		}
		for m, end := p.maskOf(e), o+k; ; {
			from, run := nextRun(m, true, o, end)
			if run == 0 {
				break
			}
			copy(dst[at+int(from-(end-k)):][:run], p.page(i)[from:])
			o = from + run
		}
	}
	return nil
}

// Place is a byte of a rank.
type Place struct {
	Rank int
	Off  uint64
}

// Gather reads n bytes at each of several places into dst, which has n bytes for each: what the
// cache does not have is fetched by as few doorbells as there are slots for. Otherwise it is Get;
// with an error some may have been read.
func (c *Cache) Gather(ctx context.Context, at []Place, n int, dst []byte) error {
	for from := 0; from < len(at); {
		to, err := c.reader.reach(at, from, n)
		if err != nil {
			return err
		}
		for to = max(to, from+1); from < to; from++ {
			if err := c.Get(ctx, at[from].Rank, at[from].Off, dst[from*n:(from+1)*n]); err != nil {
				return err
			}
		}
	}
	c.usage.hitsSeen = c.pages.n.GetHits
	return nil
}

// reach begins to fetch places from one on, and returns the first for which there is no room.
func (c *reader) reach(at []Place, from, n int) (int, error) {
	p := c.pages
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return from, err
		}
		defer c.writer.guard.Exit()
	}
	if n >= p.cfg.DirectMin {
		return from, nil
	}
	if c.net.gets > 0 {
		c.net.harvest()
	}
	lane := none
	for ; from < len(at); from++ {
		rank, off := at[from].Rank, at[from].Off
		if !p.inside(rank, off, uint64(n)) || lane != none && lane != int(c.net.route[rank]) {
			break // Get has the error, or the next doorbell is another lane's
		}
		before := p.n.Flights
		if lane = int(c.net.route[rank]); !c.aheadOf(rank, off, n) {
			break
		}
		c.writer.gathered(rank, off, p.n.Flights != before)
	}
	if lane == none {
		return from, nil
	}
	return from, c.net.launch(uint8(lane))
}
