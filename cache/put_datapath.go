package cache

import (
	"cmp"
	"context"
	"slices"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// Put has src written at off of a rank: when it returns src may change, and the next Release waits
// until the bytes are there. It blocks where pages must be written to make place for it. When ctx
// ends it returns the cause; some of src may have been put then. From Config.DirectMin bytes on, it
// passes the cache by, and blocks until the bytes are there.
//
// Errors are those of Get; that a write failed which it did not wait for, Release says.
func (c *Cache) Put(ctx context.Context, rank int, off uint64, src []byte) error {
	p := &c.pages
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return err
		}
		defer c.writer.guard.Exit()
	}
	n := uint64(len(src))
	if d := off - p.writes.off; n <= p.writes.len && d <= p.writes.len-n && rank == p.writes.rank {
		copy(unsafe.Slice((*byte)(unsafe.Add(p.writes.data, d)), n), src)
		setBits(p.mask, off&p.pageMask, n)
		p.n.PutHits++
		return nil
	}
	return c.writer.put(ctx, rank, off, src)
}

// put is Put where the page was not the last, or is not dirty yet.
func (c *writer) put(ctx context.Context, rank int, off uint64, src []byte) error {
	p := c.pages
	if err := p.check("put", rank, off, len(src)); err != nil {
		return err
	}
	if len(p.hints) > 0 {
		if err := p.checkWrite(rank, off, uint64(len(src))); err != nil {
			return err
		}
	}
	if len(src) >= p.cfg.DirectMin || c.putsPass(rank, off) {
		return c.putDirect(ctx, rank, off, src)
	}
	hit := true
	for at := 0; at < len(src); {
		o := (off + uint64(at)) & p.pageMask
		n := min(len(src)-at, int(p.pageMask+1-o))
		i, had, err := c.writable(ctx, p.pageKey(rank, off+uint64(at)))
		if err != nil {
			p.n.PutMisses++
			return err
		}
		hit = hit && had
		e := &p.entries[i]
		p.countPuts()
		copy(p.page(i)[o:], src[at:at+n])
		setBits(p.maskOf(e), o, uint64(n))
		page := p.keyOff(e.key)
		size := min(p.pageMask+1, p.sizes[rank]-page, uint64(p.cfg.DirectMin-1))
		if p.readOnly(rank, page, size) {
			size = 0 // each put is looked at
		}
		p.writeOf, p.mask = i, p.maskOf(e)
		p.writes = window{rank: rank, off: page, len: size, data: unsafe.Add(p.base, uint64(i)<<(p.pageShift&63))}
		at += n
	}
	if hit {
		p.n.PutHits++
	} else {
		p.n.PutMisses++
	}
	return nil
}

// writable returns the entry of a page, with a mask, that is not being written. had: the cache had
// the page.
func (c *writer) writable(ctx context.Context, key uint64) (i uint16, had bool, err error) {
	p := c.pages
	had = true
	for {
		i = p.entryOf(key)
		if i == none {
			had = false
			if i = c.allocate(key); i == none {
				kind := opPut // of a page that is dirty, or else of one that is being fetched
				if c.net.puts == 0 {
					kind = opGet
				}
				if err := c.net.awaitAny(ctx, kind); err != nil {
					return none, false, err
				}
				continue
			}
		}
		e := &p.entries[i]
		p.refresh(i)
		p.touch(i)
		switch {
		case e.op != none:
			if err := c.net.await(ctx, c.net.ops[e.op].lane); err != nil {
				return none, false, err
			}
		case e.mask != none:
			return i, had, nil
		case len(p.freeMasks) > 0:
			p.soil(i)
			c.relieve(i)
			return i, had, nil
		default:
			if err := c.makeMask(ctx); err != nil {
				return none, false, err
			}
		}
	}
}

// countPuts has the page that was written last know how often that was by the window for writes.
func (c *pages) countPuts() {
	if c.writes.len > 0 {
		e := &c.entries[c.writeOf]
		e.puts = uint16(min(uint64(e.puts)+c.n.PutHits+c.n.PutMisses-c.putsSeen, 1<<15))
	}
	c.putsSeen = c.n.PutHits + c.n.PutMisses
}

// soil gives an entry a mask, and makes it the youngest of the dirty.
func (c *pages) soil(i uint16) {
	e := &c.entries[i]
	e.mask = pop(&c.freeMasks)
	c.n.Unsent++
	clear(c.maskOf(e))
	e.older, e.younger = c.youngest, none
	if c.youngest != none {
		c.entries[c.youngest].younger = i
	} else {
		c.oldest = i
	}
	c.youngest = i
	c.dirty++
}

// unlist takes an entry out of the list of the dirty.
func (c *pages) unlist(i uint16) {
	e := &c.entries[i]
	if e.older != none {
		c.entries[e.older].younger = e.younger
	} else {
		c.oldest = e.younger
	}
	if e.younger != none {
		c.entries[e.younger].older = e.older
	} else {
		c.youngest = e.older
	}
	c.dirty--
}

// relieve begins to write the oldest pages once half of all that may be dirty are, so that neither
// the next put nor a release has to wait for all of them. Entry i is needed.
func (c *writer) relieve(i uint16) {
	p := c.pages
	if p.dirty <= p.cfg.Dirty/2 || p.dirty == 1 {
		return
	}
	p.work = p.work[:0]
	for j := p.oldest; j != none && len(p.work) < max(p.cfg.Dirty/4, 1); j = p.entries[j].younger {
		if j != i {
			p.work = append(p.work, j)
		}
	}
	_ = c.write(atOnce, &p.n.FlushPressure)
}

// makeMask waits until a mask is free.
func (c *writer) makeMask(ctx context.Context) error {
	p := c.pages
	if c.net.puts == 0 {
		p.work = append(p.work[:0], p.oldest)
		return c.write(ctx, &p.n.FlushPressure)
	}
	return c.net.awaitAny(ctx, opPut)
}

// chainMost bounds the puts of one operation: what collects them is memory.
const chainMost = 1024

// atOnce is the context of what must not wait.
var atOnce context.Context

// write begins to write the entries of c.work, which are dirty and not being written: chains of
// puts, one or more for each rank, by the doorbell of their lane. Where a ring is full it waits; or
// leaves the rank's pages dirty, if it is to be atOnce. Its error is that of ctx: what the network
// refuses is Release's.
func (c *writer) write(ctx context.Context, reason *uint64) error {
	p := c.pages
	if len(p.work) > 1 {
		slices.SortFunc(p.work, func(a, b uint16) int { return cmp.Compare(p.entries[a].key, p.entries[b].key) })
	}
	for from := 0; from < len(p.work); {
		rank := keyRank(p.entries[p.work[from]].key)
		if int(c.net.ring[rank]) >= p.cfg.Ring {
			if ctx == atOnce {
				for from < len(p.work) && keyRank(p.entries[p.work[from]].key) == rank {
					from++
				}
			} else if err := c.net.awaitRing(ctx, rank); err != nil {
				return err
			}
			continue
		}
		lane := c.net.route[rank]
		for from < len(p.work) && c.chains.Len() < chainMost {
			rank := keyRank(p.entries[p.work[from]].key)
			if c.net.route[rank] != lane || int(c.net.ring[rank]) >= p.cfg.Ring {
				break
			}
			from = c.chain(from, rank, reason)
		}
		c.ringLane(lane)
	}
	return nil
}

// chain makes an operation of the entries of a rank from one on, and returns the first behind it.
func (c *writer) chain(from, rank int, reason *uint64) int {
	p := c.pages
	k := c.net.begin(opPut, rank)
	for ; from < len(p.work) && c.chains.Len() < chainMost; from++ {
		i := p.work[from]
		if keyRank(p.entries[i].key) != rank {
			break
		}
		c.runs(k, i)
		*reason++
	}
	c.chains.Tag(fabric.Tag(k))
	c.net.posted(k)
	return from
}

// runs adds the dirty runs of an entry to the batch, as part of an operation.
func (c *writer) runs(k, i uint16) {
	p := c.pages
	o, e := &c.net.ops[k], &p.entries[i]
	p.unlist(i)
	if i == p.writeOf {
		p.countPuts()
		p.writes.len = 0
	}
	before := p.n.Runs
	e.op, e.older, e.younger, o.head = k, none, o.head, i
	rank, page := keyRank(e.key), p.keyOff(e.key)
	m, known := p.maskOf(e), p.slab.known[o.lane]
	for at := uint64(0); ; {
		from, n := nextRun(m, true, at, p.pageMask+1)
		if n == 0 {
			break
		}
		c.chains.PutFrom(rank, p.cfg.Begin+page+from, known, uint64(i)<<(p.pageShift&63)+from, n)
		p.n.Runs++
		p.n.BytesWritten += n
		at = from + n
	}
	c.usage.sends(e, int(p.n.Runs-before))
}

// ringLane posts the batch. If the network refuses it, its writes are lost.
func (c *writer) ringLane(lane uint8) {
	err := c.net.lanes[lane].Post(&c.chains, &c.net.told, 0)
	if err != nil {
		for _, g := range c.chains.Groups() {
			c.net.complete(uint16(g.Tag), err)
		}
	}
	c.chains.Reset()
}

// allocate gives a page an entry. It does not wait: none are all entries in use, or dirty. What is
// dirty and in its way begins to be written.
func (c *writer) allocate(key uint64) uint16 {
	p := c.pages
	var i uint16
	if len(p.unused) > 0 {
		i = pop(&p.unused)
	} else {
		p.work = p.work[:0]
		i = p.policy.victim(c.may)
		_ = c.write(atOnce, &p.n.FlushEviction)
		if i == none {
			return none
		}
	}
	again := p.recall(key)
	if p.entries[i].key != 0 {
		c.evict(i)
		pop(&p.unused)
	}
	e := &p.entries[i]
	e.epoch = p.epoch
	p.place(i, key, again)
	e.region = c.usage.inhabit(key, 1)
	if len(p.hints) > 0 {
		p.survive(i)
	}
	return i
}

// evictable is asked about victims. Of those that are not because they are dirty it makes a list.
// What is being fetched will be asked for.
func (c *pages) evictable(i uint16) bool {
	e := &c.entries[i]
	if e.mask != none && e.op == none && !e.pinned && !slices.Contains(c.work, i) && len(c.work) < max(c.cfg.Dirty/4, 1) {
		c.work = append(c.work, i)
	}
	return e.mask == none && e.wanted == 0 && !e.pinned
}

// evict frees a clean entry.
func (c *writer) evict(i uint16) {
	p := c.pages
	e := &p.entries[i]
	p.drop(i, ^uint64(0))
	e.gen++
	e.keep = false
	_ = c.usage.inhabit(e.key, -1)
	p.displace(i)
	p.n.Evictions++
}

// putDirect writes without keeping anything.
func (c *writer) putDirect(ctx context.Context, rank int, off uint64, src []byte) error {
	c.pages.n.PutsDirect++
	if err := c.yieldTo(ctx, rank, off, uint64(len(src)), true); err != nil {
		return err
	}
	return c.putAround(ctx, rank, off, src)
}

// putAround writes bytes of which the cache has nothing.
func (c *writer) putAround(ctx context.Context, rank int, off uint64, src []byte) error {
	l := c.net.lanes[c.net.route[rank]]
	h, err := l.Put(rank, c.pages.cfg.Begin+off, src, fabric.Blocking)
	if h == fabric.Done {
		return err
	}
	if _, err = l.Wait(ctx, h); err != nil {
		l.Abandon(h)
		c.net.expose(rank, off, uint64(len(src)))
	}
	return err
}
