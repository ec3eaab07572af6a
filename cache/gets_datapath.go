package cache

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// gets are the gets of a cache that do not wait. Lines that one lacks begin to be fetched as for a
// get that waits, into the same pages, and its bytes are copied out when it ends. Lines that have
// been evicted by then, or were made old, are fetched again.
type gets struct {
	c           *Cache
	ring        []get  // by number, modulo its length
	first, next uint64 // numbers: those before first have ended, next was not given yet
	failed      map[uint64]error
}

// get is one that was begun.
type get struct {
	rank     int
	off      uint64
	dst      []byte // nil: it has ended
	implicit bool
}

// mostGets is how many gets can be in flight; each takes 48 bytes.
const mostGets = 1024

// begin begins a get of len(dst) bytes at off of a rank, and does not wait. begun is false if it is
// to pass the cache by (see Direct): as a get that waits would, or for want of a page, a slot, or
// an operation in the rank's ring. With the handle Done it has ended; else wait, test or flush end
// it. One that is implicit has no handle, and ends with a flush.
func (g *gets) begin(rank int, off uint64, dst []byte, implicit bool) (h fabric.Handle, begun bool, err error) {
	c := g.c
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return fabric.Done, true, err
		}
		defer c.writer.guard.Exit()
	}
	n := uint64(len(dst))
	if err := c.pages.check("get", rank, off, len(dst)); err != nil {
		return fabric.Done, true, err
	}
	if n == 0 {
		c.pages.n.GetHits++
		return fabric.Done, true, nil
	}
	if c.net.gets > 0 {
		c.net.poll()
	}
	g.reap()
	if g.isFull() || c.reader.passesBy(rank, off, n) {
		c.pages.n.GetsDirect++
		return fabric.Done, false, nil
	}
	c.pages.first = false
	c.net.split(rank, off, len(dst))
	if c.reader.readable(dst) == 0 {
		c.reader.found(rank, off, n)
		return fabric.Done, true, nil
	}
	if c.reader.bypassed(rank, off) || !g.hasRoom(rank) {
		c.pages.n.GetsDirect++
		return fabric.Done, false, nil
	}
	k, err := c.reader.post(rank)
	if err == nil {
		c.reader.settle(k)
		if k != none {
			c.net.leave(k)
		}
		c.reader.readahead(rank, off, n)
	}
	c.net.unpin()
	if c.pages.n.GetMisses++; err != nil {
		return fabric.Done, true, err
	}
	h = g.add(get{rank, off, dst, implicit})
	if implicit {
		h = fabric.Done
	}
	return h, true, nil
}

// hasRoom reports whether all that a request lacks can be fetched at once. Each of its pages has an
// entry then, which is pinned.
func (g *gets) hasRoom(rank int) bool {
	c, slots := g.c, 0
	for j := range c.net.pieces {
		if i := c.net.pieces[j].entry; i != none {
			c.pages.entries[i].pinned = true
		}
	}
	for j := range c.net.pieces {
		p := &c.net.pieces[j]
		if p.entry == none {
			if p.entry = c.writer.allocate(p.key); p.entry == none {
				c.net.unpin()
				return false
			}
			c.pages.entries[p.entry].pinned = true
		}
		if e := &c.pages.entries[p.entry]; !p.done && c.pages.missing(e, p.o, p.n)&^e.wanted != 0 {
			slots++
		}
	}
	if slots > 0 && (slots > len(c.net.freeSlots) || int(c.net.ring[rank]) >= c.pages.cfg.Ring) {
		c.net.unpin()
		return false
	}
	return true
}

func (g *gets) isFull() bool { return g.next-g.first == mostGets }

// add notes a get; there must be room.
func (g *gets) add(x get) fabric.Handle {
	if g.ring == nil {
		g.ring = make([]get, mostGets)
	}
	n := g.next
	g.next++
	g.ring[n%mostGets] = x
	return fabric.Handle(n>>numberBits<<32|n&(1<<numberBits-1)) | fabric.MarkCache
}

// numberBits of a handle are below its marks, the rest of its number is above them.
const numberBits = 28

func numberOf(h fabric.Handle) uint64 { return uint64(h>>32<<numberBits | h&(1<<numberBits-1)) }

// find returns the get of a number that has not ended, or nil.
func (g *gets) find(n uint64) *get {
	if n < g.first || n >= g.next {
		return nil
	}
	if x := &g.ring[n%mostGets]; x.dst != nil {
		return x
	}
	return nil
}

// end notes that a get has ended.
func (g *gets) end(x *get) {
	*x = get{}
	for g.first < g.next && g.ring[g.first%mostGets].dst == nil {
		g.first++
	}
}

// read copies out what has come of a get, and reports whether that is all. Then it has ended.
func (g *gets) read(x *get) bool {
	g.c.net.split(x.rank, x.off, len(x.dst))
	if g.c.reader.readable(x.dst) > 0 {
		return false
	}
	g.end(x)
	return true
}

// reap ends the oldest gets if their bytes are there, before these are evicted: two for one that
// begins.
func (g *gets) reap() {
	for range 2 {
		if x := g.find(g.first); x == nil || !g.read(x) {
			return
		}
	}
}

// finish waits for what a get lacks, and fetches what is not on its way any more. Where ctx has
// ended the get goes on.
func (g *gets) finish(ctx context.Context, x *get) (goesOn bool, err error) {
	c, n := g.c, len(x.dst)
	if err = c.pages.check("get", x.rank, x.off, n); err == nil {
		c.net.split(x.rank, x.off, n)
		for left := c.reader.readable(x.dst); left > 0 && err == nil; left = c.reader.readable(x.dst) {
			if c.reader.passesBy(x.rank, x.off, uint64(n)) {
				b := make([]byte, n) // which the network may write to longer than ctx lasts
				err = c.reader.getDirect(ctx, x.rank, x.off, b)
				copy(x.dst, b)
				break
			}
			err = c.reader.bring(ctx, x.rank, x.off, left, x.dst, false)
		}
	}
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return true, err
	}
	g.end(x)
	return false, err
}

// wait ends a get.
func (g *gets) wait(ctx context.Context, h fabric.Handle) error {
	if owner.Checked {
		if err := g.c.writer.guard.Enter(); err != nil {
			return err
		}
		defer g.c.writer.guard.Exit()
	}
	n := numberOf(h)
	if x := g.find(n); x != nil {
		_, err := g.finish(ctx, x)
		return err
	}
	return g.outcome(n)
}

// test ends a get if its bytes are there, or if lines of it have been evicted or made old.
func (g *gets) test(h fabric.Handle) (done bool, err error) {
	c := g.c
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return false, err
		}
		defer c.writer.guard.Exit()
	}
	n := numberOf(h)
	x := g.find(n)
	if x == nil {
		return true, g.outcome(n)
	}
	if c.net.gets > 0 {
		c.net.poll()
	}
	if g.read(x) {
		return true, nil
	}
	if c.net.underway() {
		return false, nil
	}
	_, err = g.finish(c.net.env.Context(), x)
	return true, err
}

// outcome is the error of a get that has ended, once.
func (g *gets) outcome(n uint64) error {
	err := g.failed[n]
	delete(g.failed, n)
	return err
}

// abandon has nothing be written to a get's bytes any more.
func (g *gets) abandon(h fabric.Handle) {
	n := numberOf(h)
	delete(g.failed, n)
	if x := g.find(n); x != nil {
		g.end(x)
	}
}

// flush ends all gets. It returns the first error of the implicit ones to each rank; others have
// theirs in wait and test. When ctx ends before, it returns the cause, and those that are left go
// on.
func (g *gets) flush(ctx context.Context) error {
	if g.first == g.next {
		return nil
	}
	c := g.c
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return err
		}
		defer c.writer.guard.Exit()
	}
	if c.net.gets > 0 {
		c.net.poll()
	}
	var lost fabric.Failures
	for n := g.first; n < g.next; n++ {
		x := g.find(n)
		if x == nil {
			continue
		}
		rank, implicit := x.rank, x.implicit
		goesOn, err := g.finish(ctx, x)
		switch {
		case goesOn:
			return errors.Join(lost.Take(), err)
		case err == nil:
		case implicit:
			lost.Add(failure(err, "get", rank))
		default:
			if g.failed == nil {
				g.failed = make(map[uint64]error)
			}
			g.failed[n] = err
		}
	}
	return lost.Take()
}
