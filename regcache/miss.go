package regcache

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"github.com/ibconduit/conduit/memevents"
)

// request is a Get's.
type request struct {
	o      Origin
	p      unsafe.Pointer
	lo     uintptr
	n      uint64
	access Access
	kept   bool  // not for one operation; its pages are in use
	why    error // found by search: why it is for one operation
}

func (q *request) want() ability { return asked(q.o, q.access) }

func (q *request) check() error {
	bad := ""
	switch {
	case q.n == 0:
		bad = "a range cannot be empty"
	case q.p == nil:
		bad = "nil is no memory"
	case uint64(q.lo)+q.n < uint64(q.lo):
		bad = fmt.Sprintf("%d bytes at %#x are beyond the end of memory", q.n, q.lo)
	case q.access&^allAccess != 0:
		bad = fmt.Sprintf("access %#x is not known", uint32(q.access))
	case q.o >= numOrigins:
		bad = fmt.Sprintf("%v is not known", q.o)
	default:
		return nil
	}
	return &Error{Op: "get", Errno: syscall.EINVAL, Detail: bad}
}

// flight is a registration that others may wait for.
type flight struct {
	lo, hi uintptr
	can    ability
	done   chan struct{}
}

// plan is a registration to be made.
type plan struct {
	lo, hi uintptr
	access Access
	need   memevents.Classes
	keep   unsafe.Pointer
	joins  []*entry // what a union joins
	live   bool     // all pages are of objects in use, which the runtime does not discard
}

func (p *plan) bytes() int64 { return int64(p.hi - p.lo) }

var pageMask = uintptr(os.Getpagesize() - 1)

// miss is Get when no hint helped: it looks in the index, and registers.
func (c *Cache) miss(q request) (Region, error) {
	if err := q.check(); err != nil {
		return Region{}, err
	}
	for waited := false; ; waited = true {
		e, f, wait, err := c.search(&q, waited)
		switch {
		case err != nil:
			return Region{}, err
		case e != nil:
			return c.found(&q, e)
		case wait != nil:
			<-wait.done
			continue
		}
		return c.make(&q, f)
	}
}

// make registers, for the cache if there is a flight, else for one operation. Here and below what
// has begun is ended by defer: a Registrar may panic, and its caller may go on.
func (c *Cache) make(q *request, f *flight) (Region, error) {
	defer c.got()
	if f == nil {
		return c.single(q, q.why)
	}
	e, err := c.fly(q, f)
	switch {
	case e != nil:
		return e.region(q.p), nil
	case err != nil && !temporary(err):
		return Region{}, err
	}
	return c.single(q, err)
}

// fly admits. A caller that waited for the flight looks again, whatever has come of it.
func (c *Cache) fly(q *request, f *flight) (*entry, error) {
	defer c.land(f)
	return c.admit(q)
}

// got ends what search began when it returned no entry and none to wait for.
func (c *Cache) got() {
	c.mu.Lock()
	c.getting--
	c.mu.Unlock()
	c.ended.Broadcast()
}

// search returns an entry with a reference, or a flight of the caller's own, or one to wait for, or
// nothing: then the range is for one operation. It reaps, as every miss must.
func (c *Cache) search(q *request, waited bool) (e *entry, own, wait *flight, err error) {
	if c.forked() { // before the lock, whose holder may not be here to give it back
		return nil, nil, nil, errForked("get")
	}
	reported := memevents.Late() == 0 || c.w.WaitReported()
	if !reported && mustAsk(origins[q.o].need) {
		q.why = memevents.ErrChanging
	}
	c.reap()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, nil, errClosed("get")
	}
	c.age.Add(2)
	e = c.index.acquire(q.lo, q.n, q.want(), reported)
	if e != nil {
		c.hints.learn(q.lo, e)
	} else if q.why == nil && c.watched[q.o].Load() {
		f := c.flightOverLocked(q)
		if f != nil && !waited {
			wait = f
		} else {
			own = &flight{lo: q.lo &^ pageMask, hi: q.lo + uintptr(q.n), can: q.want(), done: make(chan struct{})}
			c.flights = append(c.flights, own)
		}
	}
	if e == nil && wait == nil {
		c.getting++
	}
	return e, own, wait, nil
}

func (c *Cache) flightOverLocked(q *request) *flight {
	for _, f := range c.flights {
		if f.lo <= q.lo && q.lo+uintptr(q.n) <= f.hi && q.want()&^f.can == 0 {
			return f
		}
	}
	return nil
}

func (c *Cache) land(f *flight) {
	c.mu.Lock()
	c.flights = slices.DeleteFunc(c.flights, func(g *flight) bool { return g == f })
	c.mu.Unlock()
	close(f.done)
}

// found ends a Get that found an entry.
func (c *Cache) found(q *request, e *entry) (Region, error) {
	if e.frames != nil {
		if err := c.verifyFrames(q, e); err != nil {
			if e.ref.Release() {
				c.reap()
			}
			return Region{}, err
		}
	}
	c.hit(e)
	return e.region(q.p), nil
}

// Reasons to register for one operation.
var (
	errChanged = errors.New("the memory changed while it was registered, twice")
	errCrowded = errors.New("the limits of the cache leave no room beside what is in use")
)

// temporary: the range cannot be cached now, but can be registered.
func temporary(err error) bool {
	return errors.Is(err, errChanged) || errors.Is(err, errCrowded) || errors.Is(err, memevents.ErrChanging) ||
		errors.Is(err, memevents.ErrFull) || errors.Is(err, memevents.ErrUnwatched)
}

// admit registers the range and makes it an entry with a reference. It tries the union with the
// entries that overlap first: a range of which a part is not mapped, or not with the same access,
// does not register, and then the exact range is tried.
func (c *Cache) admit(q *request) (*entry, error) {
	exact := plan{lo: q.lo &^ pageMask, hi: (q.lo + uintptr(q.n) + pageMask) &^ pageMask, access: q.access.full(),
		need: origins[q.o].need, live: q.o == GoHeap || q.kept}
	if exact.hi == 0 || exact.bytes() < 0 { // the last page of memory, or half of it
		return nil, errCrowded
	}
	if union, ok := c.union(exact); ok {
		if e, err := c.enter(q, union, false); err == nil {
			return e, nil
		}
	}
	e, err := c.enter(q, exact, true)
	if q.o == GoHeap && errors.Is(err, memevents.ErrUnwatched) {
		exact.need, exact.keep = keptAliveNeed, q.p
		e, err = c.enter(q, exact, true)
	}
	return e, err
}

// keptAliveNeed is what must be watched for an object of the Go heap that the cache keeps alive:
// the runtime neither unmaps nor discards the pages of an object in use.
const keptAliveNeed = memevents.CalledFromC

// union is the plan widened to what it overlaps. Entries that keep an object alive are left out:
// the memory between two objects belongs to neither.
func (c *Cache) union(p plan) (plan, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for again := true; again; {
		again = false
		c.index.overlapping(p.lo, p.hi, func(e *entry) {
			if e.keep != nil || !e.ref.Valid() ||
				(e.lo >= p.lo && e.hi <= p.hi && e.can.access()&^p.access == 0 && p.need.Has(e.need)) {
				return
			}
			p.lo, p.hi = min(p.lo, e.lo), max(p.hi, e.hi)
			p.access |= e.can.access()
			p.need |= e.need
			p.joins, p.live, again = append(p.joins, e), false, true
		})
	}
	return p, p.joins != nil && p.bytes() <= c.cfg.MaxBytes
}

// stands reports whether the entries that a union joins are valid still. It is called after the
// claim: userfaultfd watches pages mapped at that moment, and a page that was a hole then and is
// mapped before the registration would not be watched. Pages of the exact range are mapped by the
// caller's word, all others by these entries': one that became a hole before the claim has ended
// its entry, and one that did later ends the claim.
func (p *plan) stands() bool {
	return !slices.ContainsFunc(p.joins, func(e *entry) bool { return !e.ref.Valid() })
}

// enter carries out a plan. insist: when there is no room, evict idle entries.
func (c *Cache) enter(q *request, p plan, insist bool) (*entry, error) {
	e, err := c.try(q, &p, insist)
	if errors.Is(err, errChanged) { // a change meanwhile is rare; two in a row are a pattern
		e, err = c.try(q, &p, insist)
	}
	return e, err
}

// try claims, registers and publishes.
func (c *Cache) try(q *request, p *plan, insist bool) (*entry, error) {
	e := &entry{c: c, lo: p.lo, hi: p.hi, can: watchedFor(p.need) | ability(p.access), need: p.need,
		keep: p.keep, place: -1}
	if p.keep != nil {
		e.can |= asked(GoHeap, 0)
	}
	published := false
	undo := func(f func()) {
		if !published {
			f()
		}
	}
	if err := c.reserve(e); err != nil {
		return nil, err
	}
	defer undo(func() { c.unreserve(e) })
	ref, err := c.claim(e, p.live)
	if err != nil {
		return nil, err
	}
	defer undo(func() { c.w.Retire(ref) })
	if !p.stands() {
		return nil, errChanged
	}
	mr, err := c.register(p.lo, uint64(p.bytes()), p.access, insist)
	if err != nil {
		return nil, err
	}
	defer undo(func() { c.closeMR(mr) })
	c.w.Settle()
	if published = c.publish(q, e, ref, mr); !published {
		return nil, errChanged
	}
	c.reapHolding(e)
	return e, nil
}

// claim evicts one entry if the table of the process is full.
func (c *Cache) claim(e *entry, live bool) (memevents.Ref, error) {
	claim := c.w.Claim
	if live {
		claim = c.w.ClaimLive
	}
	before := c.stats.deregistered.Load()
	ref, err := claim(e.lo, e.hi, e.tag, e.need)
	if errors.Is(err, memevents.ErrFull) && c.makeRoom(0, before) {
		ref, err = claim(e.lo, e.hi, e.tag, e.need)
	}
	return ref, err
}

// publish makes a registered entry one that others find. False: the memory changed meanwhile.
func (c *Cache) publish(q *request, e *entry, ref memevents.Ref, mr MR) bool {
	var frames []uint64
	if c.frames != nil {
		frames = c.frames.read(e.lo, e.hi)
	}
	lkey, rkey := mr.LKey(), mr.RKey()
	c.mu.Lock()
	defer c.mu.Unlock()
	// Written under the lock, before another goroutine can see the entry: values exchanged only
	// through the table are not ordered in the eyes of the race detector.
	e.ref, e.mr, e.lkey, e.rkey, e.frames = ref, mr, lkey, rkey, frames
	e.stamp.Store(c.age.Load())
	if !c.w.Publish(ref) {
		c.stats.changed++
		return false
	}
	c.stats.misses++
	merged := c.supersedeLocked(e)
	c.index.insert(e)
	c.lru.add(e)
	c.hints.learn(q.lo, e)
	c.stats.merged.Add(uint64(merged))
	return true
}

// supersedeLocked evicts the entries that a new one serves for. Changes of evicted memory are seen
// no more: a strict cache reports them as invalidated.
func (c *Cache) supersedeLocked(by *entry) (n int) {
	c.index.overlapping(by.lo, by.hi, func(e *entry) {
		if c.cfg.Strict && e.ref.Refs() > 0 {
			return
		}
		if by.lo <= e.lo && e.hi <= by.hi && e.can&^by.can == 0 && c.evictLocked(e) {
			n++
		}
	})
	if n > 0 {
		c.index.prune()
	}
	return n
}

// What one Get frees may be taken by another, so one try after eviction is not enough; a few show
// that the memory is in use.
const (
	registerTries = 8
	everything    = 1 << 62 // bytes
)

// register calls the Registrar; when that lacks memory and insist is set, it evicts and tries
// again.
func (c *Cache) register(addr uintptr, n uint64, access Access, insist bool) (MR, error) {
	before := c.stats.deregistered.Load()
	mr, err := c.cfg.Registrar.Register(addr, n, access)
	room := int64(min(n, everything))
	for range registerTries {
		if err == nil || !exhausted(err) || !insist || !c.makeRoom(room, before) {
			break
		}
		c.stats.retries.Add(1)
		before = c.stats.deregistered.Load()
		mr, err = c.cfg.Registrar.Register(addr, n, access)
		room = everything
	}
	if err != nil {
		c.stats.registerErrors.Add(1)
		return nil, &Error{Op: "register", Err: err, Detail: fmt.Sprintf("%d bytes at %#x for %v", n, addr, access)}
	}
	c.stats.registered.Add(1)
	return mr, nil
}

// single registers for one operation: exactly the range. GetKept gets none.
func (c *Cache) single(q *request, why error) (Region, error) {
	if q.kept {
		return Region{}, notKept(q, why)
	}
	mr, err := c.register(q.lo, q.n, q.access.full(), true)
	runtime.KeepAlive(q.p)
	if err != nil {
		return Region{}, err
	}
	e := &entry{c: c, lo: q.lo, hi: q.lo + uintptr(q.n), lkey: mr.LKey(), rkey: mr.RKey(), mr: mr, keep: q.p, place: -1}
	c.singles.Add(1)
	c.stats.single(why)
	return e.region(q.p), nil
}
