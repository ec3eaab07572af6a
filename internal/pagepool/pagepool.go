// Package pagepool hands out runs of pages for data that come and go, from memory outside Go's
// heap, and gives idle ones back to the kernel.
//
// A [Pool] has areas of two kinds. Slabs it maps itself, as many as are needed, and unmaps when
// they are empty and idle. A [Region] is a fixed part of a segment, which other ranks write; memory
// of it is given back by a hole in the segment's file, unless a device has it pinned.
//
// A page is in one of three states:
//
//	in use  part of a run; it has memory
//	warm    free, and has memory still: the next run takes it without a page fault
//	cold    free, without memory
//
// Pages in use and warm ones together are at most as many as the caller allows to have memory at
// each [Pool.Take], except for pages in use alone, which are the caller's affair. Those that stayed
// warm from one [Pool.Tick] to the next are given back.
//
// Runs of a region are taken all at once for data needed together, and in the order of the
// requests: an owner of runs waits for none, so that runs come back, and an empty region serves any
// request that fits it.
package pagepool

import (
	"fmt"
	"os"

	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/queue"
)

// Size is a page's in bytes: a run takes whole pages.
var Size = uint64(os.Getpagesize())

// Round is n rounded up to whole pages.
func Round(n uint64) uint64 { return (n + Size - 1) &^ (Size - 1) }

// slabSize is the least that is mapped for slabs at a time. It is address space; memory comes with
// the runs.
const slabSize = 16 << 20

// Pool is the pages of one rank. Any goroutine may use it.
type Pool struct {
	mu    lockrank.Mutex
	slabs []*area
	fixed []*area // of regions
	used  uint64  // bytes of runs
	warm  uint64  // bytes that are free and have memory
	least uint64  // of warm since the last Tick
	stats Stats
	over  bool // closed
}

// Stats are the figures of a Pool, in bytes.
type Stats struct {
	Used   uint64 // in runs
	Warm   uint64 // free, and not given back yet
	Mapped uint64 // of slabs: address space
	Peak   uint64 // the most that Used and Warm were together
	Given  uint64 // back to the kernel in all
}

// New returns an empty Pool.
func New() *Pool {
	s := &Pool{}
	s.mu.Init(lockrank.Pool, 0)
	return s
}

// Take returns n bytes, rounded up to whole pages, with arbitrary content. most is how many
// bytes of the Pool may have memory with it. An error is the kernel's, for want of address space.
func (s *Pool) Take(n, most uint64) ([]byte, error) {
	n = Round(max(n, 1))
	s.mu.Lock()
	a, first := s.findLocked(n)
	if a == nil {
		var err error
		if a, err = newSlab(max(n, slabSize)); err != nil {
			s.mu.Unlock()
			return nil, fmt.Errorf("memory for %d bytes that are fetched: %w", n, err)
		}
		s.slabs = append(s.slabs, a)
		first, _ = a.fit(n / Size)
	}
	a.cut(first, n/Size)
	cold := s.takenLocked(a, first, n/Size, most)
	s.mu.Unlock()
	b := a.mem[first*Size:][:n:n]
	if cold {
		populate(b)
	}
	return b, nil
}

func (s *Pool) findLocked(n uint64) (*area, uint64) {
	for _, a := range s.slabs {
		if first, ok := a.fit(n / Size); ok {
			return a, first
		}
	}
	return nil, 0
}

// takenLocked accounts for a run that was cut, and reports whether pages of it have no memory. Warm
// pages elsewhere give way to those.
func (s *Pool) takenLocked(a *area, first, n, most uint64) (cold bool) {
	had := a.touch(first, n)
	s.used += n * Size
	if !a.pinned {
		s.warm -= had * Size
	}
	s.least = min(s.least, s.warm)
	s.fitLocked(most)
	s.stats.Peak = max(s.stats.Peak, s.used+s.warm)
	return had < n
}

// fitLocked gives warm pages back until no more than most bytes have memory.
func (s *Pool) fitLocked(most uint64) {
	if excess := s.used + s.warm; excess > most {
		s.discardLocked(excess - most)
	}
}

// discardLocked gives back at least n bytes of warm pages, or all that there are.
func (s *Pool) discardLocked(n uint64) {
	for _, areas := range [][]*area{s.slabs, s.fixed} {
		for i := len(areas) - 1; i >= 0 && n > 0; i-- {
			back := areas[i].discard(n)
			s.warm -= back
			s.stats.Given += back
			n -= min(back, n)
		}
	}
	s.least = min(s.least, s.warm)
}

// Give gives a run of Take back; after Close it does nothing.
func (s *Pool) Give(b []byte) {
	if len(b) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.slabs {
		if first, ok := a.contains(b); ok {
			s.giveLocked(a, first, uint64(len(b))/Size)
			return
		}
	}
	if s.over {
		return
	}
	panic("pagepool: a run that no slab has")
}

func (s *Pool) giveLocked(a *area, first, n uint64) {
	a.paste(first, n)
	a.hot += n
	s.used -= n * Size
	if !a.pinned {
		s.warm += n * Size
	}
}

// Fit gives warm pages back until no more than most bytes have memory.
func (s *Pool) Fit(most uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fitLocked(most)
}

// Tick gives back pages that were warm since the last Tick, and unmaps slabs that are empty and
// cold.
func (s *Pool) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discardLocked(s.least)
	s.least = s.warm
	kept := s.slabs[:0]
	for _, a := range s.slabs {
		if a.used == 0 && a.hot == 0 && unmap(a.mem) == nil {
			continue
		}
		kept = append(kept, a)
	}
	clear(s.slabs[len(kept):])
	s.slabs = kept
}

// Stats reads the figures.
func (s *Pool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Used, st.Warm = s.used, s.warm
	for _, a := range s.slabs {
		st.Mapped += uint64(len(a.mem))
	}
	return st
}

// Close unmaps all slabs. Nothing may use a run any more, nor write to one.
func (s *Pool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first error
	for _, a := range s.slabs {
		if err := unmap(a.mem); err != nil && first == nil {
			first = err
		}
	}
	s.slabs, s.fixed, s.over = nil, nil, true
	return first
}

// Verify is for tests: an error says which account is wrong.
func (s *Pool) Verify() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var used, warm uint64
	for _, a := range append(append([]*area(nil), s.slabs...), s.fixed...) {
		if err := a.verify(); err != nil {
			return err
		}
		used += a.used * Size
		if !a.pinned {
			warm += a.hot * Size
		}
	}
	if used != s.used || warm != s.warm {
		return fmt.Errorf("pagepool: %d bytes in use and %d warm, and the areas have %d and %d", s.used, s.warm, used, warm)
	}
	return nil
}

// Region is a fixed part of a segment. Its runs are named by their offset in it.
type Region struct {
	s       *Pool
	a       *area
	waiting queue.List[Claim] // under the pool's lock
	most    func() uint64
}

// Claim is a request for runs of a Region.
type Claim struct {
	r     *Region
	sizes []uint64 // in pages
	ready func(offs []uint64)
	turn  queue.Link[Claim]
	offs  []uint64
}

// NewRegion adds memory to a pool. pinned: a device has it, so it is never given back. most is
// called for each run: how many bytes of the pool may have memory.
func (s *Pool) NewRegion(mem []byte, pinned bool, most func() uint64) *Region {
	a := &area{mem: mem[:uint64(len(mem))&^(Size-1)], pinned: pinned, shared: true}
	if !pinned {
		prepare(a.mem)
	}
	a.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fixed = append(s.fixed, a)
	return &Region{s: s, a: a, most: most}
}

// Bytes is the region's size.
func (r *Region) Bytes() uint64 { return uint64(len(r.a.mem)) }

// Memory is n bytes of the region from an offset on.
func (r *Region) Memory(off uint64, n int) []byte { return r.a.mem[off:][:n:n] }

// Take claims runs of the given sizes in bytes, which together must fit the region. ready is
// called once with their offsets when all are there, perhaps before Take returns, by a caller that
// gives runs back; it must not block. Claim.Cancel ends the wait.
func (r *Region) Take(sizes []int, ready func(offs []uint64)) *Claim {
	c := &Claim{r: r, ready: ready}
	for _, n := range sizes {
		c.sizes = append(c.sizes, Round(uint64(max(n, 1)))/Size)
	}
	r.s.mu.Lock()
	r.waiting.Add(&c.turn, c)
	r.s.mu.Unlock()
	r.serve()
	return c
}

// Cancel reports whether the claim still waited; then ready is not called.
func (c *Claim) Cancel() bool {
	c.r.s.mu.Lock()
	waited := c.turn.In() != nil
	c.turn.Leave()
	c.r.s.mu.Unlock()
	if waited {
		c.r.serve() // it may be another's turn
	}
	return waited
}

// Give gives a run back.
func (r *Region) Give(off uint64, n int) {
	r.s.mu.Lock()
	r.s.giveLocked(r.a, off/Size, Round(uint64(max(n, 1)))/Size)
	r.s.mu.Unlock()
	r.serve()
}

// serve takes runs for those that wait, the first first.
func (r *Region) serve() {
	most := r.most()
	for {
		r.s.mu.Lock()
		c := r.waiting.First()
		cold, ok := false, false
		if c != nil && !r.s.over {
			cold, ok = r.placeLocked(c, most)
		}
		if ok {
			c.turn.Leave()
		}
		r.s.mu.Unlock()
		if !ok {
			return
		}
		if cold {
			for i, off := range c.offs {
				populate(r.a.mem[off:][:c.sizes[i]*Size])
			}
		}
		c.ready(c.offs)
	}
}

// placeLocked takes all runs of a claim, or none.
func (r *Region) placeLocked(c *Claim, most uint64) (cold, ok bool) {
	for _, n := range c.sizes {
		first, ok := r.a.fit(n)
		if !ok {
			for k, off := range c.offs {
				r.a.paste(off/Size, c.sizes[k])
			}
			c.offs = nil
			return false, false
		}
		r.a.cut(first, n)
		c.offs = append(c.offs, first*Size)
	}
	for i, off := range c.offs {
		cold = r.s.takenLocked(r.a, off/Size, c.sizes[i], most) || cold
	}
	return cold, true
}
