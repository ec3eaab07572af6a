package heap

import (
	"context"
	"fmt"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// What rank 0 answers.
const (
	statusDone = iota
	statusNoMemory
)

// root is what rank 0 has beside its own heap: the global heap and the boundary.
type root struct {
	h       *Heap
	service *env.Service // for what handlers may not do

	gmu    lockrank.Mutex // HeapGlobal
	global alloc.Allocator
	blocks map[uint64]uint64 // by offset of a block: the allocator's offset

	bound boundary
}

// serviceDepth bounds the requests that wait for a reclaim: more get the answer that there is no
// memory.
const serviceDepth = 4096

func newRoot(h *Heap) *root {
	r := &root{h: h, global: h.cfg.New(), blocks: make(map[uint64]uint64)}
	if h.cfg.Check {
		r.global = alloc.NewChecked(r.global, alloc.CheckedConfig{})
	}
	r.gmu.Init(lockrank.HeapGlobal, 0)
	r.bound.mu.Init(lockrank.Limit, 1)
	r.bound.size = h.size
	r.service = env.NewService(h.env.Host(), "heap", serviceDepth)
	return r
}

// onGrow raises the limit for a local heap. A shortage needs the service.
func (h *Heap) onGrow(c *am.Call) {
	want, least := c.Arg(0), c.Arg(1)
	if h.root == nil || c.Len() != 2 || (want|least)%alloc.PageSize != 0 || want > 1<<62 || least > 1<<62 {
		return
	}
	r, from := h.root, c.From()
	if limit, epoch := r.raise(from, want, least); limit > 0 {
		_ = c.Reply(statusDone, epoch, limit)
		return
	}
	r.later(c, false, []uint64{statusNoMemory, 0, 0}, func(_ context.Context, reply func(...uint64) error) {
		limit, epoch := r.raise(from, want, least)
		if limit == 0 {
			r.trimGlobal()
			limit, epoch = r.raise(from, want, least)
		}
		if limit > 0 {
			_ = reply(statusDone, epoch, limit)
			return
		}
		_ = reply(append([]uint64{statusNoMemory, epoch, 0}, r.figures(false)...)...)
	})
}

// later runs f in the service, which one request waits for after the other. It is after a reclaim
// that runs now. Where the service takes no more, full is the reply, in front of the figures.
func (r *root) later(c *am.Call, single bool, full []uint64, f func(ctx context.Context, reply func(...uint64) error)) {
	d := c.Defer(timeout)
	if d == nil {
		return
	}
	if err := r.service.Post(func(ctx context.Context) { f(ctx, d.Reply) }); err != nil {
		_ = d.Reply(append(full, r.figures(single)...)...)
	}
}

// raise grants a limit, 0 if it cannot now.
func (r *root) raise(rank int, want, least uint64) (limit, epoch uint64) {
	b := &r.bound
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy {
		return 0, b.epoch
	}
	return b.grant(rank, want, least), b.epoch
}

// trimGlobal gives back memory that the global heap does not use.
func (r *root) trimGlobal() {
	r.gmu.Lock()
	defer r.gmu.Unlock()
	n := r.global.Trim()
	r.bound.mu.Lock()
	r.bound.global = n
	r.bound.mu.Unlock()
}

// onGlobal allocates of the global heap.
func (h *Heap) onGlobal(c *am.Call) {
	n, align, single := c.Arg(0), c.Arg(1), c.Arg(2)
	if h.root == nil || c.Len() != 3 || n == 0 || n > 1<<62 || checkAlign("", align) != nil {
		return
	}
	r := h.root
	if single == 0 {
		if off, ok := r.allocate(n, align); ok {
			r.give(off, c.Reply)
			return
		}
	} else {
		h.mu.Lock()
		off, ok := h.local.Alloc(n, align)
		h.mu.Unlock()
		if ok {
			r.give(off, c.Reply)
			return
		}
	}
	r.later(c, single != 0, []uint64{statusNoMemory, 0, 0, 0}, func(ctx context.Context, reply func(...uint64) error) {
		if single != 0 {
			if off, err := h.growAtRoot(n, align); err == nil {
				r.give(off, reply)
				return
			}
		} else {
			off, ok := r.allocate(n, align)
			if !ok && r.canFit(n, align) && r.reclaim(ctx) == nil {
				off, ok = r.allocate(n, align)
			}
			if ok {
				r.give(off, reply)
				return
			}
		}
		_ = reply(append([]uint64{statusNoMemory, 0, 0, 0}, r.figures(single != 0)...)...)
	})
}

// give replies with a block, and takes it back if the reply does not arrive.
func (r *root) give(off uint64, reply func(...uint64) error) {
	r.bound.mu.Lock()
	epoch, limit := r.bound.epoch, r.bound.local
	if r.bound.busy { // the limit may be lower soon
		limit = 0
	}
	r.bound.mu.Unlock()
	if reply(statusDone, off, epoch, limit) != nil {
		_ = r.h.freeHere(off, false)
	}
}

// growAtRoot is allocGrowing at rank 0 in the service, which must not wait for itself.
func (h *Heap) growAtRoot(n, align uint64) (uint64, error) {
	r := h.root
	h.mu.Lock()
	defer h.mu.Unlock()
	for trimmed := false; ; trimmed = true {
		if off, ok := h.local.Alloc(n, align); ok {
			return off, nil
		}
		least := h.length + max(h.local.Need(n, align), alloc.PageSize)
		if n > h.size {
			return 0, ErrNoSharedMemory
		}
		limit, _ := r.raise(0, least, least)
		if limit > 0 {
			h.limit = max(h.limit, limit)
			h.growLocked()
			continue
		}
		if trimmed {
			return 0, ErrNoSharedMemory
		}
		h.mu.Unlock() // the global heap's lock comes first
		r.trimGlobal()
		h.mu.Lock()
	}
}

// allocate takes n bytes of the global heap, which grows if it can.
func (r *root) allocate(n, align uint64) (off uint64, ok bool) {
	if n > r.h.size {
		return 0, false
	}
	n, align = mirrored(n, align)
	r.gmu.Lock()
	defer r.gmu.Unlock()
	at, ok := r.global.Alloc(n, align)
	if !ok {
		need := r.global.Need(n, align)
		r.bound.mu.Lock()
		ok = r.bound.extend(need)
		r.bound.mu.Unlock()
		if !ok {
			return 0, false
		}
		r.global.Grow(need)
		if at, ok = r.global.Alloc(n, align); !ok {
			return 0, false
		}
	}
	off = r.h.size - at - n
	r.blocks[off] = at
	return off, true
}

// canFit reports whether n bytes would fit if no local heap had any: else a reclaim is in vain.
func (r *root) canFit(n, align uint64) bool {
	if n > r.h.size {
		return false
	}
	r.gmu.Lock()
	defer r.gmu.Unlock()
	return r.global.Need(mirrored(n, align)) <= r.h.size-r.global.Stats().Len
}

// mirrored is a request for the allocator of the global heap, which has the mirror image of it:
// aligned there means aligned here if the size is a multiple, too.
func mirrored(n, align uint64) (size, unit uint64) {
	unit = max(align, 16)
	return (n + unit - 1) &^ (unit - 1), unit
}

// release frees a block of the global heap.
func (r *root) release(p Ptr) error {
	r.gmu.Lock()
	defer r.gmu.Unlock()
	at, ok := r.blocks[p.off]
	if ok {
		delete(r.blocks, p.off)
		if _, err := r.global.Free(at); err != nil {
			panic(fmt.Sprintf("heap: the block at %v: %v", p, err)) // the table and the allocator differ
		}
		return nil
	}
	r.bound.mu.Lock()
	begin := r.bound.size - r.bound.global
	r.bound.mu.Unlock()
	if p.off < begin || p.off >= r.h.size {
		return &FreeError{Ptr: p, Reason: Outside}
	}
	for off, at := range r.blocks {
		if p.off > off && p.off < r.h.size-at {
			return &FreeError{Ptr: p, Reason: Interior, Block: At(0, off)}
		}
	}
	return &FreeError{Ptr: p, Reason: NotInUse}
}

// reclaim lowers the limit of the job to what local heaps use. The service runs it, so there is one
// at a time.
func (r *root) reclaim(ctx context.Context) error {
	b := &r.bound
	b.mu.Lock()
	b.epoch++
	b.reclaims++
	b.busy = true
	epoch := b.epoch
	b.mu.Unlock()
	local, by, err := r.collectTops(ctx, epoch)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy = false
	if err != nil {
		r.h.env.Logger().Warn("shared heap: memory of local heaps could not be reclaimed", "err", err)
		return err
	}
	b.local, b.by = local, by
	return nil
}

// window is how many ranks are called at a time.
const window = 32

// collectTops has all ranks give up what they do not use, and returns the largest top. Phase two
// follows only if all have answered.
func (r *root) collectTops(ctx context.Context, epoch uint64) (top uint64, by int, err error) {
	h := r.h
	ctx, cancel := h.env.Host().WithTimeout(ctx, timeout)
	defer cancel()
	top = h.giveUp(epoch)
	size := h.env.Size()
	pending := make([]*am.Pending, 0, window)
	for first := 1; first < size; first += window {
		pending = pending[:0]
		last := min(first+window, size)
		for rank := first; rank < last && err == nil; rank++ {
			var p *am.Pending
			if p, err = h.trim.Start(ctx, h.via, rank, am.Payload{}, epoch); err == nil {
				pending = append(pending, p)
			}
		}
		for i, p := range pending { // also after an error: nobody else waits for them
			reply, e := p.Wait(ctx)
			switch got := reply.Arg(0); {
			case e != nil:
				err = e
			case reply.Len() != 1 || got > h.size || got%alloc.PageSize != 0:
				err = fmt.Errorf("heap: rank %d answers a reclaim with a top of %d bytes", first+i, got)
			case got > top:
				top, by = got, first+i
			}
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return top, by, nil
}

// figures are the ones of a NoMemoryError that rank 0 knows; setFigures takes them. Single: of one
// block in rank 0's local heap, not of the global heap.
func (r *root) figures(single bool) []uint64 {
	r.gmu.Lock()
	defer r.gmu.Unlock()
	g := r.global.Stats()
	r.h.mu.Lock()
	l := r.h.local.Stats()
	r.h.mu.Unlock()
	r.bound.mu.Lock()
	defer r.bound.mu.Unlock()
	b := &r.bound
	largest := max(g.LargestFree, b.size-b.local-b.global)
	if single {
		largest = max(l.LargestFree, b.size-b.global-l.Len)
	}
	return []uint64{g.InUse, b.global, b.local, uint64(b.by), largest, l.InUse}
}

func (e *NoMemoryError) setFigures(f []uint64) {
	if len(f) == 6 {
		e.GlobalInUse, e.GlobalSize, e.Reserved, e.ReservedBy, e.LargestFree, e.LocalInUse = f[0], f[1], f[2],
			int(f[3]), f[4], f[5]
	}
}
