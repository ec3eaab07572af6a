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
	if c.closed {
		return
	}
	c.n.Acquires++
	c.reads.len = 0
	if c.epoch++; c.epoch == always {
		c.restart()
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
	if c.closed || c.dirty > 0 || c.puts > 0 || len(c.lost) > 0 || len(c.hints) > 0 {
		return false
	}
	c.n.Releases++
	return true
}

// Release blocks until all that was put is at its target, also what passed by and was told of by
// Direct. It returns the first error of each rank's writes since the last Release,
// *fabric.OpErrors, once. When ctx ends, or has ended, before all is done, it returns the cause:
// everything has begun then as far as Config.Ring has room, and goes on.
func (c *Cache) Release(ctx context.Context) error { return c.release(ctx, true) }

// ReleaseFor is Release before a message that writes n bytes at off of a rank, of which the lanes do
// not tell when it has arrived; n is 0 where nothing is written.
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
	if owner.Checked {
		if err := c.guard.Enter(); err != nil {
			return err
		}
		defer c.guard.Exit()
	}
	if c.closed {
		return nil
	}
	c.n.Releases++
	cover = cover && c.passed
	if c.dirty == 0 && c.puts == 0 && !cover && len(c.lost) == 0 {
		return nil
	}
	ended := ctx.Err() != nil
	bound := ctx
	if ended {
		bound = atOnce
	}
	c.work = c.work[:0]
	for i := c.oldest; i != none; i = c.entries[i].younger {
		c.work = append(c.work, i)
	}
	if err := c.write(bound, &c.n.FlushRelease); err != nil {
		return err
	}
	if ended {
		c.poll()
		if c.dirty > 0 || c.puts > 0 {
			return context.Cause(ctx)
		}
	}
	for c.puts > 0 {
		if err := c.awaitAny(ctx, opPut); err != nil {
			return err
		}
	}
	if !cover {
		return c.takeLost()
	}
	err := c.cover(ctx)
	if ctx.Err() != nil && c.passed {
		return err
	}
	return errors.Join(c.takeLost(), err)
}

// poll takes what is complete already.
func (c *carrier) poll() {
	c.harvest()
	for _, l := range c.lanes {
		_ = l.Poll() // what is wrong with a lane the operations on it have
	}
	c.harvest()
}

// cover waits for the writes that passed by.
func (c *carrier) cover(ctx context.Context) error {
	var all error
	for _, l := range c.lanes {
		if err := l.Flush(ctx); err != nil {
			all = errors.Join(all, err)
		}
	}
	c.harvest()
	if all == nil || ctx.Err() == nil {
		c.exposed, c.allExposed, c.passed, c.lingers = c.exposed[:0], false, false, false
	}
	return all
}

// Direct is called before an operation that passes the cache by: it reads, or writes, n bytes at
// off of a rank. When it returns, what was put there is at its target, and the operation makes no
// copy old: one that writes has the cache keep none of these bytes until the lanes' operations to
// the rank are complete (see Linger), or the next Release, which waits for that. It is begun before
// the cache is asked for bytes again. It blocks while puts to these pages are in flight. A write of
// bytes with the hint ReadOnly is an error.
func (c *writer) Direct(ctx context.Context, rank int, off uint64, n int, write bool) error {
	if owner.Checked {
		if err := c.guard.Enter(); err != nil {
			return err
		}
		defer c.guard.Exit()
	}
	if err := c.check("direct", rank, off, n); err != nil || n == 0 {
		return err
	}
	if write {
		if err := c.checkWrite(rank, off, uint64(n)); err != nil {
			return err
		}
	}
	if err := c.yieldTo(ctx, rank, off, uint64(n), write); err != nil {
		return err
	}
	if write {
		c.expose(rank, off, uint64(n))
	}
	return nil
}

// yielded is Direct for a write where the cache has nothing of the bytes' region, and reports
// whether that is so.
func (c *writer) yielded(rank int, off, n uint64) bool {
	if c.closed || len(c.hints) > 0 || !c.isBare(rank, off, n) {
		return false
	}
	if len(c.exposed) > 0 {
		if x := &c.exposed[0]; x.rank == rank && x.low <= off && off+n <= x.end {
			return true
		}
	}
	c.expose(rank, off, n)
	return true
}

// yieldTo has what was put in a range arrive, and forgets copies that a write makes old.
func (c *writer) yieldTo(ctx context.Context, rank int, off, n uint64, write bool) error {
	if n == 0 || c.isBare(rank, off, n) {
		return nil
	}
	all := c.overlapped(rank, off, n)
	dirty := all[:0]
	for _, i := range all {
		if e := &c.entries[i]; e.mask != none && e.op == none {
			dirty = append(dirty, i)
		}
	}
	if c.work = dirty; len(dirty) > 0 {
		if err := c.write(ctx, &c.n.FlushDirect); err != nil {
			return err
		}
	}
	if err := c.quiet(ctx, rank, off, n); err != nil || !write {
		return err
	}
	for _, i := range c.overlapped(rank, off, n) {
		e := &c.entries[i]
		o, k, _ := c.within(e.key, off, n)
		c.drop(uint16(i), c.lines(o, k))
	}
	return nil
}

// quiet waits until no page of a range is being written.
func (c *carrier) quiet(ctx context.Context, rank int, off, n uint64) error {
	for {
		var busy uint16 = none
		for _, i := range c.overlapped(rank, off, n) {
			if k := c.entries[i].op; k != none {
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
