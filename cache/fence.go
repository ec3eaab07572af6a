package cache

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit/internal/owner"
)

// Acquire has every later Get return what is no older than now. Writes that were not sent stay. It
// does not block, and takes the same time whatever the cache holds: entries find out when they are
// next asked for.
func (c *Cache) Acquire() {
	p := &c.pages
	if p.closed {
		return
	}
	p.n.Acquires++
	p.reads.len = 0
	if p.epoch++; p.epoch == always {
		p.restart()
	}
}

// restart begins with epochs anew.
func (c *pages) restart() {
	c.epoch = 1
	for i := range c.entries {
		if e := &c.entries[i]; !e.keep {
			c.drop(uint16(i), ^uint64(0))
			c.cancel(e)
			e.epoch = c.epoch
		}
	}
}

// delivered is Deliver where there is nothing to do, and no copy survives an acquire, and reports
// whether that is so.
func (c *Cache) delivered() bool {
	p := &c.pages
	if p.closed || p.dirty > 0 || c.net.puts > 0 || len(c.net.lost) > 0 || len(p.hints) > 0 {
		return false
	}
	p.n.Releases++
	return true
}

// Release blocks until all that was put is at its target, also what passed by and was told of by
// Direct. It returns the first error of each rank's writes since the last Release,
// *fabric.OpErrors, once. When ctx ends, or has ended, before all is done, it returns the cause:
// everything has begun then as far as Config.Ring has room, and goes on.
func (c *Cache) Release(ctx context.Context) error { return c.release(ctx, true) }

// ReleaseFor is Release before a message that writes n bytes at off of a rank, of which the lanes
// do not tell when it has arrived; n is 0 where nothing is written.
func (c *Cache) ReleaseFor(ctx context.Context, rank int, off uint64, n int) error {
	err := c.Release(ctx)
	if err != nil || n == 0 || !c.Keeps(rank) {
		return err
	}
	if err = c.Direct(ctx, rank, off, n, true); err == nil {
		c.Linger()
	}
	return err
}

// Deliver is Release of what was put through the cache: it does not wait for writes that passed it
// by, whose bytes it goes on to keep no copies of.
func (c *Cache) Deliver(ctx context.Context) error { return c.release(ctx, false) }

func (c *Cache) release(ctx context.Context, cover bool) error {
	p := &c.pages
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return err
		}
		defer c.writer.guard.Exit()
	}
	if p.closed {
		return nil
	}
	p.n.Releases++
	cover = cover && p.passed
	if p.dirty == 0 && c.net.puts == 0 && !cover && len(c.net.lost) == 0 {
		return nil
	}
	ended := ctx.Err() != nil
	bound := ctx
	if ended {
		bound = atOnce
	}
	p.work = p.work[:0]
	for i := p.oldest; i != none; i = p.entries[i].younger {
		p.work = append(p.work, i)
	}
	if err := c.writer.write(bound, &p.n.FlushRelease); err != nil {
		return err
	}
	if ended {
		c.net.poll()
		if p.dirty > 0 || c.net.puts > 0 {
			return context.Cause(ctx)
		}
	}
	for c.net.puts > 0 {
		if err := c.net.awaitAny(ctx, opPut); err != nil {
			return err
		}
	}
	if !cover {
		return c.net.takeLost()
	}
	err := c.net.cover(ctx)
	if ctx.Err() != nil && p.passed {
		return err
	}
	return errors.Join(c.net.takeLost(), err)
}

// poll takes what is complete already.
func (c *transfers) poll() {
	c.harvest()
	for _, l := range c.lanes {
		_ = l.Poll() // what is wrong with a lane the operations on it have
	}
	c.harvest()
}

// cover waits for the writes that passed by.
func (c *transfers) cover(ctx context.Context) error {
	p := c.pages
	var all error
	for _, l := range c.lanes {
		if err := l.Flush(ctx); err != nil {
			all = errors.Join(all, err)
		}
	}
	c.harvest()
	if all == nil || ctx.Err() == nil {
		p.exposed, p.allExposed, p.passed, p.lingers = p.exposed[:0], false, false, false
	}
	return all
}

// Direct is called before an operation that passes the cache by: it reads, or writes, n bytes at
// off of a rank. When it returns, what was put there is at its target, and the operation makes no
// copy old: one that writes has the cache keep none of these bytes until the lanes' operations to
// the rank are complete (see Linger), or the next Release, which waits for that. It is begun before
// the cache is asked for bytes again. It blocks while puts to these pages are in flight. A write of
// bytes with the hint ReadOnly is an error.
func (c *Cache) Direct(ctx context.Context, rank int, off uint64, n int, write bool) error {
	p := &c.pages
	if owner.Checked {
		if err := c.writer.guard.Enter(); err != nil {
			return err
		}
		defer c.writer.guard.Exit()
	}
	if err := p.check("direct", rank, off, n); err != nil || n == 0 {
		return err
	}
	if write {
		if err := p.checkWrite(rank, off, uint64(n)); err != nil {
			return err
		}
	}
	if err := c.writer.yieldTo(ctx, rank, off, uint64(n), write); err != nil {
		return err
	}
	if write {
		c.net.expose(rank, off, uint64(n))
	}
	return nil
}

// yielded is Direct for a write where the cache has nothing of the bytes' region, and reports
// whether that is so.
func (c *writer) yielded(rank int, off, n uint64) bool {
	p := c.pages
	if p.closed || len(p.hints) > 0 || !c.usage.isBare(rank, off, n) {
		return false
	}
	if len(p.exposed) > 0 {
		if x := &p.exposed[0]; x.rank == rank && x.low <= off && off+n <= x.end {
			return true
		}
	}
	c.net.expose(rank, off, n)
	return true
}

// yieldTo has what was put in a range arrive, and forgets copies that a write makes old.
func (c *writer) yieldTo(ctx context.Context, rank int, off, n uint64, write bool) error {
	p := c.pages
	if n == 0 || c.usage.isBare(rank, off, n) {
		return nil
	}
	all := p.overlapped(rank, off, n)
	dirty := all[:0]
	for _, i := range all {
		if e := &p.entries[i]; e.mask != none && e.op == none {
			dirty = append(dirty, i)
		}
	}
	if p.work = dirty; len(dirty) > 0 {
		if err := c.write(ctx, &p.n.FlushDirect); err != nil {
			return err
		}
	}
	if err := c.net.quiet(ctx, rank, off, n); err != nil || !write {
		return err
	}
	for _, i := range p.overlapped(rank, off, n) {
		e := &p.entries[i]
		o, k, _ := p.within(e.key, off, n)
		p.drop(uint16(i), p.lines(o, k))
	}
	return nil
}

// quiet waits until no page of a range is being written.
func (c *transfers) quiet(ctx context.Context, rank int, off, n uint64) error {
	p := c.pages
	for {
		var busy uint16 = none
		for _, i := range p.overlapped(rank, off, n) {
			if k := p.entries[i].op; k != none {
				busy = k
				break
			}
		}
		if busy == none {
			return nil
		}
		if err := c.await(ctx, c.ops[busy].lane); err != nil {
			return err
		}
	}
}
