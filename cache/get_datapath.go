package cache

import (
	"context"
	"math/bits"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// Peek is Hit for the lines that were read last, short enough to be compiled into its caller.
func (c *pages) Peek(rank int, off, n uint64) unsafe.Pointer {
	if d := off - c.reads.off; n <= c.reads.len && d <= c.reads.len-n && rank == c.reads.rank {
		c.n.GetHits++
		return unsafe.Add(c.reads.data, d)
	}
	return nil
}

// Hit returns where n bytes at off of a rank lie if they are in lines of one page that the cache
// has, else nil: then Get reads them. What lies there may be read until the next call of the cache.
// The bytes must be in the rank's memory. It neither allocates nor waits.
func (c *reader) Hit(rank int, off, n uint64) unsafe.Pointer {
	if at := c.Peek(rank, off, n); at != nil {
		return at
	}
	return c.hitPage(rank, off, n)
}

// hitPage is Hit where another page was read last, or other lines of it.
func (c *reader) hitPage(rank int, off, n uint64) unsafe.Pointer {
	o := off & c.pageMask
	if n-1 > c.pageMask || o+n > c.pageMask+1 { // n is 0, too
		return nil
	}
	key := c.pageKey(rank, off)
	i := c.table.slots[c.table.home(key)&uint64(len(c.table.slots)-1)]
	if int(i) >= len(c.entries) || c.entries[i].key != key {
		if i = c.find(key); int(i) >= len(c.entries) {
			return nil
		}
	}
	e := &c.entries[i]
	valid := e.valid
	first := o >> (c.lineShift & 63)
	up := uint64(bits.TrailingZeros64(^(valid >> first))) // lines from the first on
	if n > (first+up)<<(c.lineShift&63)-o || e.epoch < c.epoch || up == 0 {
		return nil
	}
	down := uint64(bits.LeadingZeros64(^(valid << (63 - first)))) - 1 // lines before it
	c.touch(i)
	if i != c.readOf {
		c.countHits()
		if c.sketch != nil {
			c.note(key, true)
		}
	}
	low := (first - down) << (c.lineShift & 63)
	data := unsafe.Add(c.base, uint64(i)<<(c.pageShift&63)+low)
	c.readOf = i
	low += off - o
	c.reads = window{rank: rank, off: low, len: min((up+down)<<(c.lineShift&63), c.sizes[rank]-low), data: data}
	c.n.GetHits++
	return unsafe.Add(data, off-low)
}

// Get reads len(dst) bytes at off of a rank. It blocks until they are there, or ctx ends: then it
// returns the cause, and dst may have been written in part. From Config.DirectMin bytes on, it
// passes the cache by, and keeps nothing.
//
// Errors: a *fabric.RankError or *fabric.BoundsError, one of the network, such as a
// *fabric.OpError with a *fabric.PeerDownError; os.ErrClosed.
func (c *reader) Get(ctx context.Context, rank int, off uint64, dst []byte) error {
	if c.inside(rank, off, uint64(len(dst))) {
		if at := c.Hit(rank, off, uint64(len(dst))); at != nil {
			copy(dst, unsafe.Slice((*byte)(at), len(dst)))
			return nil
		}
	}
	return c.get(ctx, rank, off, dst)
}

// get is Get of what is no hit in one page.
func (c *reader) get(ctx context.Context, rank int, off uint64, dst []byte) error {
	if owner.Checked {
		if err := c.guard.Enter(); err != nil {
			return err
		}
		defer c.guard.Exit()
	}
	if err := c.check("get", rank, off, len(dst)); err != nil {
		return err
	}
	switch n := uint64(len(dst)); {
	case n == 0:
		c.n.GetHits++
		return nil
	case c.passesBy(rank, off, n):
		c.n.GetsDirect++
		return c.getDirect(ctx, rank, off, dst)
	}
	c.first = false
	c.split(rank, off, len(dst))
	missed := false
	for {
		left := c.readable(dst)
		if left == 0 {
			break
		}
		again := missed
		missed = true
		if !again && c.bypassed(rank, off) {
			c.n.GetsDirect++
			return c.getDirect(ctx, rank, off, dst)
		}
		if err := c.bring(ctx, rank, off, left, dst, !again); err != nil {
			c.n.GetMisses++
			return err
		}
	}
	if missed {
		c.n.GetMisses++
	} else {
		c.found(rank, off, uint64(len(dst)))
	}
	return nil
}

// bring fetches what the pieces of a request lack, of which so many are left, and reads it. With
// ahead, what will be asked for next is fetched meanwhile.
func (c *reader) bring(ctx context.Context, rank int, off uint64, left int, dst []byte, ahead bool) error {
	for len(c.freeSlots) < left {
		if err := c.awaitAny(ctx, opGet); err != nil {
			return err
		}
	}
	if err := c.awaitRing(ctx, rank); err != nil {
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
	c.unpin()
	return err
}

// bypassed reports whether a get that is no hit passes the cache by, and counts it. One that is
// late, as all that it lacks is on its way, does not.
func (c *reader) bypassed(rank int, off uint64) bool {
	if c.underway() {
		c.hitIn(rank, off)
		return false
	}
	return (len(c.hints) == 0 || c.hintAt(rank, off) == Default) && c.bypasses(rank, off)
}

// found counts a hit whose pieces were read.
func (c *reader) found(rank int, off, n uint64) {
	c.n.GetHits++
	c.hitsSeen++
	c.hitIn(rank, off)
	if c.first {
		c.readahead(rank, off, n)
	}
}

// passesBy reports whether a get of n bytes passes the cache by whatever that has.
func (c *reader) passesBy(rank int, off, n uint64) bool {
	return n >= uint64(c.cfg.DirectMin) || c.isExposed(rank, off, n) || len(c.hints) > 0 && c.hintAt(rank, off) == Bypass
}

// readable reads the pieces that can be, and returns how many are left.
func (c *reader) readable(dst []byte) (left int) {
	for j := range c.pieces {
		p := &c.pieces[j]
		if p.done {
			continue
		}
		p.entry, p.slot = c.entryOf(p.key), none
		if c.sketch != nil && (p.entry == none || p.entry != c.readOf) {
			c.note(p.key, p.entry != none)
		}
		if p.entry != none {
			e := &c.entries[p.entry]
			c.refresh(p.entry)
			c.touch(p.entry)
			if c.missing(e, p.o, p.n) == 0 {
				c.read(p, dst)
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
	k := c.begin(opGet, rank)
	o := &c.ops[k]
	o.held = true
	for j := range c.pieces {
		p := &c.pieces[j]
		if p.done {
			continue
		}
		need, have := c.lines(p.o, p.n), uint64(0)
		// Waiting for room may have changed what the entry has.
		if p.entry = c.entryOf(p.key); p.entry != none {
			e := &c.entries[p.entry]
			e.pinned = true
			p.gen = e.gen
			have = e.valid | e.ready | e.wanted
			need = c.missing(e, p.o, p.n)
			p.late |= need & e.wanted
			need &^= e.wanted
		}
		if need == 0 {
			continue
		}
		all := span(uint64(bits.TrailingZeros64(need)), uint64(bits.Len64(need)-bits.TrailingZeros64(need)))
		p.slot = c.takeSlot(o, all&^have, false)
		c.fetch(rank, c.keyOff(p.key), all&^have, p.slot)
		c.n.BytesUsed += c.lineBytes(p.key, need)
	}
	if o.head == none {
		c.end(k)
		return none, nil
	}
	c.batch.Tag(fabric.Tag(k))
	err := c.lanes[c.route[rank]].Post(&c.batch, &c.told, 0)
	c.batch.Reset()
	if err != nil {
		c.end(k)
		return none, err
	}
	c.posted(k)
	return k, nil
}

// settle gives the flights of a request their entries, while they fly.
func (c *reader) settle(k uint16) {
	if k == none {
		return
	}
	for j := range c.pieces {
		p := &c.pieces[j]
		if p.done || p.slot == none {
			continue
		}
		if p.entry == none {
			if p.entry = c.allocate(p.key); p.entry == none {
				continue // all are in use: it is read from the slot
			}
			c.entries[p.entry].pinned = true
			p.gen = c.entries[p.entry].gen
		}
		c.bind(p.slot, p.entry)
	}
}

// finish waits for the flights of a request, and reads what they brought.
func (c *reader) finish(ctx context.Context, k uint16, dst []byte) error {
	if k != none {
		o := &c.ops[k]
		err := c.awaitOp(ctx, k)
		if err == nil {
			err = o.err
		}
		if err != nil {
			c.leave(k)
			return err
		}
		defer c.end(k)
	}
	for j := range c.pieces {
		p := &c.pieces[j]
		if p.done {
			continue
		}
		if p.entry == none {
			if p.slot != none {
				copy(dst[p.at:p.at+int(p.n)], c.slot(p.slot)[p.o:])
				p.done = true
			}
			continue
		}
		e := &c.entries[p.entry]
		for e.gen == p.gen && e.wanted&c.missing(e, p.o, p.n) != 0 {
			if err := c.await(ctx, c.route[keyRank(p.key)]); err != nil {
				return err
			}
		}
		if e.gen == p.gen && c.missing(e, p.o, p.n) == 0 {
			c.read(p, dst)
		}
	}
	return nil
}

// getAround reads bytes of which the cache has nothing.
func (c *carrier) getAround(ctx context.Context, rank int, off uint64, dst []byte) error {
	l := c.lanes[c.route[rank]]
	h, err := l.Get(rank, c.cfg.Begin+off, dst, fabric.Blocking)
	if err == nil && h != fabric.Done {
		if _, err = l.Wait(ctx, h); err != nil {
			l.Abandon(h)
		}
	}
	return err
}

// getDirect reads without keeping anything. Own writes that were not sent are laid over it.
func (c *reader) getDirect(ctx context.Context, rank int, off uint64, dst []byte) error {
	n := uint64(len(dst))
	bare := c.isBare(rank, off, n)
	if !bare {
		if err := c.quiet(ctx, rank, off, n); err != nil {
			return err
		}
	}
	if err := c.getAround(ctx, rank, off, dst); err != nil || bare {
		return err
	}
	for _, i := range c.overlapped(rank, off, n) {
		e := &c.entries[i]
		o, k, at := c.within(e.key, off, n)
		c.drop(i, c.lines(o, k)) // who reads them again must not find older bytes
		if e.mask == none {
			continue
		}
		for m, end := c.maskOf(e), o+k; ; {
			from, run := nextRun(m, true, o, end)
			if run == 0 {
				break
			}
			copy(dst[at+int(from-(end-k)):][:run], c.page(i)[from:])
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
func (c *reader) Gather(ctx context.Context, at []Place, n int, dst []byte) error {
	for from := 0; from < len(at); {
		to, err := c.reach(at, from, n)
		if err != nil {
			return err
		}
		for to = max(to, from+1); from < to; from++ {
			if err := c.Get(ctx, at[from].Rank, at[from].Off, dst[from*n:(from+1)*n]); err != nil {
				return err
			}
		}
	}
	c.hitsSeen = c.n.GetHits
	return nil
}

// reach begins to fetch places from one on, and returns the first for which there is no room.
func (c *reader) reach(at []Place, from, n int) (int, error) {
	if owner.Checked {
		if err := c.guard.Enter(); err != nil {
			return from, err
		}
		defer c.guard.Exit()
	}
	if n >= c.cfg.DirectMin {
		return from, nil
	}
	if c.gets > 0 {
		c.harvest()
	}
	lane := none
	for ; from < len(at); from++ {
		rank, off := at[from].Rank, at[from].Off
		if !c.inside(rank, off, uint64(n)) || lane != none && lane != int(c.route[rank]) {
			break // Get says what is wrong, or the next doorbell is another lane's
		}
		before := c.n.Flights
		if lane = int(c.route[rank]); !c.aheadOf(rank, off, n) {
			break
		}
		c.gathered(rank, off, c.n.Flights != before)
	}
	if lane == none {
		return from, nil
	}
	return from, c.launch(uint8(lane))
}
