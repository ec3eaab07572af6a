package regcache

import (
	"fmt"
	"slices"
)

// reserve takes a tag and room for an entry, evicting idle ones. It refuses with errCrowded.
func (c *holdings) reserve(e *entry) error {
	n := int64(e.hi - e.lo)
	for range 4 { // others may take the room that this one made
		c.mu.Lock()
		idle := c.sweepLocked()
		bytes, count := c.bytes+n-c.cfg.MaxBytes, c.regions+1-c.cfg.MaxRegions
		if n <= c.cfg.MaxBytes && (bytes > 0 || count > 0) {
			for _, e := range idle {
				bytes -= int64(e.hi - e.lo)
			}
			idle = append(idle, c.evictIdleLocked(bytes, count-len(idle))...)
		}
		room := c.regions < c.cfg.MaxRegions && c.bytes <= c.cfg.MaxBytes-n
		if room {
			c.accountLocked(e)
		}
		c.mu.Unlock()
		c.deregisterFor(e, room, idle)
		if room {
			return nil
		}
		if len(idle) == 0 {
			break
		}
	}
	return errCrowded
}

// deregisterFor is deregister for a new entry, which gives its room back if a registration's Close
// panics.
func (c *holdings) deregisterFor(e *entry, reserved bool, idle []*entry) {
	done := false
	defer func() {
		if reserved && !done {
			c.unreserve(e)
		}
	}()
	c.deregister(idle)
	done = true
}

// accountLocked takes the room.
func (c *holdings) accountLocked(e *entry) {
	c.regions++
	c.bytes += int64(e.hi - e.lo)
	if last := len(c.tags) - 1; last >= 0 {
		e.tag = c.tags[last]
		c.tags = c.tags[:last]
		c.slots[e.tag] = e
		return
	}
	e.tag = uint32(len(c.slots))
	c.slots = append(c.slots, e)
}

func (c *holdings) unreserve(e *entry) {
	c.mu.Lock()
	c.forgetLocked(e)
	c.mu.Unlock()
}

func (c *holdings) forgetLocked(e *entry) {
	c.regions--
	c.bytes -= int64(e.hi - e.lo)
	c.slots[e.tag] = nil
	c.tags = append(c.tags, e.tag)
	e.mr, e.keep = nil, nil // a hint may point here for long
}

// evictLocked takes an entry out of use by the cache's own wish. False: a change came first. The
// caller prunes the index.
func (c *holdings) evictLocked(e *entry) bool {
	if e.gone {
		return false
	}
	c.lru.remove(e)
	if !c.w.Evict(e.ref) {
		return false // Drain delivers it
	}
	e.evicted, e.gone = true, true
	c.index.drop(e)
	c.dying = append(c.dying, e)
	c.stats.evicted++
	return true
}

// evictIdleLocked evicts entries unused for longest, so many bytes and entries at least, if there
// are as many. It returns the entries to deregister.
func (c *holdings) evictIdleLocked(bytes int64, count int) []*entry {
	c.lru.oldest(func(e *entry) bool {
		if bytes <= 0 && count <= 0 {
			return false
		}
		bytes -= int64(e.hi - e.lo)
		count--
		c.evictLocked(e)
		return true
	})
	c.index.prune()
	return c.sweepLocked()
}

// makeRoom deregisters idle entries, of so many bytes and one at least, or waits for those that
// another goroutine deregisters. False: there are none, and there were none since before, a count
// of deregistrations.
func (c *holdings) makeRoom(bytes int64, before uint64) bool {
	c.mu.Lock()
	idle := c.evictIdleLocked(bytes, 1)
	if len(idle) == 0 && c.ending > 0 {
		c.ended.Wait()
	}
	c.mu.Unlock()
	c.deregister(idle)
	return c.stats.deregistered.Load() != before
}

// sweepLocked takes in invalidated entries and returns the entries that are not in
// use any more. The caller gives them to deregister without the lock.
func (c *holdings) sweepLocked() (idle []*entry) {
	if c.over {
		return nil
	}
	c.drained = c.w.Drain(c.drained[:0])
	for _, ref := range c.drained {
		e := c.slots[ref.Tag()]
		if e == nil || e.ref != ref {
			panic(fmt.Sprintf("regcache: %v is on the dead list and not in the cache", ref))
		}
		c.lru.remove(e)
		e.gone = true
		c.index.drop(e)
		c.dying = append(c.dying, e)
		c.stats.invalidated++
	}
	if len(c.drained) > 0 {
		c.index.prune()
	}
	c.dying = slices.DeleteFunc(c.dying, func(e *entry) bool {
		if e.ref.Refs() > 0 {
			return false
		}
		idle = append(idle, e)
		return true
	})
	c.ending += len(idle)
	return idle
}

// deregister ends entries that sweepLocked returned.
func (c *holdings) deregister(idle []*entry) {
	if len(idle) == 0 {
		return
	}
	defer func() { // what is left, where a Close has panicked, is for the next sweep
		c.mu.Lock()
		c.ending -= len(idle)
		c.dying = append(c.dying, idle...)
		c.mu.Unlock()
		c.ended.Broadcast()
	}()
	for len(idle) > 0 {
		e := idle[0]
		idle = idle[1:]
		c.end(e)
	}
}

func (c *holdings) end(e *entry) {
	defer func() {
		c.w.Retire(e.ref)
		c.mu.Lock()
		c.stats.deregistered.Add(1) // together with forget, for readers of the figures
		c.stats.hits += e.hits.Load()
		c.stats.puts += e.hits.Load() + 1 // it is not in use
		c.forgetLocked(e)
		c.ending--
		c.mu.Unlock()
	}()
	c.endMR(e.mr)
}

func (c *holdings) closeMR(mr MR) error {
	defer c.stats.deregistered.Add(1)
	return c.endMR(mr)
}

// endMR leaves the counting to the caller.
func (c *holdings) endMR(mr MR) error {
	err := mr.Close()
	if err != nil {
		err = &Error{Op: "deregister", Err: err}
		c.stats.deregErr.CompareAndSwap(nil, &err)
	}
	return err
}

// reap deregisters dead entries.
func (c *holdings) reap() {
	if c.forked() {
		return
	}
	c.mu.Lock()
	idle := c.sweepLocked()
	c.mu.Unlock()
	c.deregister(idle)
}

// reapHolding is reap for the caller's new entry, which would not get the Region if a
// registration's Close panics.
func (c *holdings) reapHolding(e *entry) {
	done := false
	defer func() {
		if !done {
			e.ref.Release()
		}
	}()
	c.reap()
	done = true
}

// putChanged is Put of a region that is no longer valid, or was for one operation.
func (c *holdings) putChanged(r Region) error {
	e := r.e
	if c.forked() {
		return errForked("put")
	}
	if e.ref.IsZero() {
		return c.putSingle(e)
	}
	c.mu.Lock()
	changed := !e.evicted
	if changed && !e.changed {
		e.changed = true
		c.stats.inUse++
	}
	c.mu.Unlock()
	if e.ref.Release() {
		c.reap()
	}
	if changed && c.cfg.Strict {
		return &Error{Op: "put", Err: ErrInvalidated, Detail: fmt.Sprintf("[%#x,%#x)", e.lo, e.hi),
			Remedy: "keep memory mapped until its operations have completed"}
	}
	return nil
}

func (c *holdings) putSingle(e *entry) error {
	c.mu.Lock()
	mr := e.mr
	e.mr, e.keep = nil, nil
	if mr != nil {
		c.stats.puts++
	}
	c.mu.Unlock()
	if mr == nil {
		panic("regcache: a Region was given to Put twice")
	}
	defer c.singles.Add(-1)
	return c.closeMR(mr)
}
