package heap

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// MaxAlign is the largest alignment of a block in bytes: a page, as heaps begin at pages.
const MaxAlign = alloc.PageSize

// timeout bounds each message that an operation waits for, beside the operation's context: rank 0
// waits for a rank in a reclaim, and ranks for rank 0.
const timeout = 30 * time.Second

// Config is what a job decides about its shared heaps. All ranks have the same.
type Config struct {
	// Mem is this rank's memory, page aligned; all ranks give the same number of bytes, a multiple
	// of alloc.PageSize.
	Mem []byte

	// New makes the allocators. Default: alloc.NewSegregated.
	New func() alloc.Allocator

	// Check fills blocks with patterns as they come and go, finds stores beyond the end of a local
	// block when it is freed, and compares the arguments of operations of all ranks.
	Check bool

	// FirstTouch has each rank touch the pages of its local heap when the heap grows, so that they
	// lie at its own NUMA node. At most FirstTouchMost bytes at a time.
	FirstTouch bool
}

// fill takes the default, and refuses what no allocator manages.
func (c *Config) fill() error {
	if c.New == nil {
		c.New = func() alloc.Allocator { return alloc.NewSegregated() }
	}
	if n := uint64(len(c.Mem)); n%alloc.PageSize != 0 || n > alloc.MaxLen {
		return fmt.Errorf("heap: %d bytes, want a multiple of %d, %d at most", n, alloc.PageSize, uint64(alloc.MaxLen))
	}
	return nil
}

// FirstTouchMost is the most that is touched when a heap grows, in bytes: memory of the order of
// the machine's memory is better left alone.
const FirstTouchMost = 1 << 30

// Team is what operations of all ranks need of a job: collectives of all its ranks.
type Team interface {
	Broadcast(ctx context.Context, root int, buf []byte) error
	AllGather(ctx context.Context, mine []byte) ([][]byte, error)
}

// Heap is the shared heaps of a job as one of its ranks sees them. Any number of goroutines may use
// it.
type Heap struct {
	cfg  Config
	env  env.Env
	via  am.Via
	team Team
	rank int
	size uint64 // bytes of a rank

	grow, take, free, trim *am.Handler

	mu     lockrank.Mutex // HeapLocal[rank]
	local  alloc.Allocator
	length uint64 // of the local heap
	limit  uint64 // to which it may grow without asking
	epoch  uint64 // of the last reclaim that this rank answered
	last   uint64 // by how much it grew last
	allocs uint64 // Stats.Allocs
	frees  uint64 // by this rank, of its own memory

	count counters

	*root // of rank 0
}

// counters are Stats' own.
type counters struct {
	freesElsewhere, asked, stale, globals, remoteFrees, badFrees atomic.Uint64
}

// Declare registers the handlers of a job's heap. Open makes it usable.
func Declare(t *am.Table) *Heap {
	h := &Heap{}
	h.grow = t.Handle("conduit.heap.grow", h.onGrow)
	h.take = t.Handle("conduit.heap.global", h.onGlobal)
	h.free = t.Handle("conduit.heap.free", h.onFree)
	h.trim = t.Handle("conduit.heap.trim", h.onTrim)
	return h
}

// Open gives the heap its memory. All ranks have opened theirs before one uses it.
func (h *Heap) Open(e env.Env, team Team, cfg Config) error {
	if err := cfg.fill(); err != nil {
		return err
	}
	if e.Messages() == nil { // also one rank calls itself
		return errors.New("heap: the job has no handlers of the library")
	}
	h.cfg, h.env, h.team, h.via, h.rank, h.size = cfg, e, team, e.Messages(), e.Rank(), uint64(len(cfg.Mem))
	h.mu.Init(lockrank.HeapLocal, h.rank)
	h.local = cfg.New()
	if cfg.Check {
		h.local = alloc.NewChecked(h.local, alloc.CheckedConfig{
			Bytes: func(off, n uint64) []byte { return cfg.Mem[off : off+n : off+n] },
			Fault: func(err error) { h.env.Logger().Error("shared heap", "err", err); panic(err) },
		})
	}
	if h.rank == 0 {
		h.root = newRoot(h)
	}
	return nil
}

// Close ends the heap. No rank uses it any more.
func (h *Heap) Close(ctx context.Context) error {
	if h.root == nil {
		return nil
	}
	return h.root.service.Close(ctx)
}

// Size is how many bytes each rank gives.
func (h *Heap) Size() uint64 { return h.size }

// Bytes is n bytes of this rank's memory from an offset on. It panics if there are not so many.
func (h *Heap) Bytes(off, n uint64) []byte { return h.cfg.Mem[off : off+n : off+n] }

// Alloc takes n bytes of this rank's local heap, at a multiple of align: a power of two, at most
// MaxAlign; 0 is 16. Of 0 bytes it is null. No message is sent unless the heap has to grow beyond
// the limit that this rank knows. Errors: a *NoMemoryError, a *SizeError, ctx's, a
// *PeerDownError of rank 0.
func (h *Heap) Alloc(ctx context.Context, n, align uint64) (Ptr, error) {
	if n == 0 {
		return Ptr{}, nil
	}
	if err := checkAlign("alloc", align); err != nil {
		return Ptr{}, err
	}
	h.mu.Lock()
	off, ok := h.local.Alloc(n, align)
	if ok {
		h.allocs++ // under the lock it costs nothing
	}
	h.mu.Unlock()
	if !ok {
		var err error
		if off, err = h.allocGrowing(ctx, n, align); err != nil {
			return Ptr{}, err
		}
	}
	return At(h.rank, off), nil
}

func checkAlign(op string, align uint64) error {
	if align&(align-1) != 0 || align > MaxAlign {
		return &SizeError{Op: op, Align: align, WrongAlignment: true}
	}
	return nil
}

// allocGrowing is Alloc where the heap has no room. Each turn either gets the block, or fails, or
// the heap has grown; other goroutines of this rank may be quicker to use what it grew by.
func (h *Heap) allocGrowing(ctx context.Context, n, align uint64) (uint64, error) {
	for {
		h.mu.Lock()
		if off, ok := h.local.Alloc(n, align); ok {
			h.allocs++
			h.mu.Unlock()
			return off, nil
		}
		need := max(h.local.Need(n, align), alloc.PageSize)
		least := h.length + need
		if n > h.size { // which Need may not take
			least = (min(n, 1<<62) + alloc.PageSize - 1) &^ (alloc.PageSize - 1)
		}
		if least <= h.limit {
			h.growLocked()
			h.mu.Unlock()
			continue
		}
		want := max(least, h.length+nextGrowth(h.last))
		h.mu.Unlock()
		if err := h.ask(ctx, n, align, want, least); err != nil {
			return 0, err
		}
	}
}

// growLocked takes all that the limit allows.
func (h *Heap) growLocked() {
	from, n := h.length, h.limit-h.length
	h.local.Grow(n)
	h.length, h.last = h.limit, n
	if h.cfg.FirstTouch {
		touch(h.cfg.Mem[from : from+min(n, FirstTouchMost)])
	}
}

// touch writes each page of memory that is not used yet.
func touch(mem []byte) {
	for at := 0; at < len(mem); at += alloc.PageSize {
		mem[at] = 0
	}
}

// nextGrowth is by how much a heap would like to grow: twice as much as the last time, from 32 KiB
// to 64 MiB.
func nextGrowth(last uint64) uint64 { return min(max(2*last, 32<<10), 64<<20) }

// ask has rank 0 raise the limit. The reply counts if no reclaim has overtaken it: then the limit
// has been given up, and this calls again.
func (h *Heap) ask(ctx context.Context, n, align, want, least uint64) error {
	ctx, cancel := h.env.Host().WithTimeout(ctx, timeout)
	defer cancel()
	h.count.asked.Add(1)
	r, err := h.grow.Call(ctx, h.via, 0, want, least)
	if err != nil {
		return fmt.Errorf("conduit: alloc of %d bytes: rank 0, which keeps the boundary of the heaps: %w", n, err)
	}
	if r.Arg(0) != statusDone {
		e := &NoMemoryError{Op: "alloc", Rank: h.rank, Requested: n, Align: align, HeapSize: h.size}
		e.setFigures(r.Args()[3:])
		h.mu.Lock()
		s := h.local.Stats()
		h.mu.Unlock()
		e.LocalInUse, e.LargestFree = s.InUse, max(s.LargestFree, h.size-min(h.size, e.GlobalSize)-s.Len)
		return e
	}
	h.hear(r.Arg(1), r.Arg(2))
	return nil
}

// hear takes a limit of an epoch.
func (h *Heap) hear(epoch, limit uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case epoch < h.epoch:
		h.count.stale.Add(1)
	case limit <= h.size && limit%alloc.PageSize == 0:
		h.epoch = epoch
		h.limit = max(h.limit, limit)
	}
}

// onTrim is the first phase of a reclaim: the rank gives back what it does not use.
func (h *Heap) onTrim(c *am.Call) {
	if c.From() != 0 || c.Len() != 1 {
		return // hostile: the caller gets no answer but that
	}
	_ = c.Reply(h.giveUp(c.Arg(0)))
}

// giveUp trims the local heap and lowers the limit to its top, which it returns.
func (h *Heap) giveUp(epoch uint64) (top uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch = max(h.epoch, epoch)
	h.length = h.local.Trim()
	h.limit, h.last = h.length, 0
	return h.length
}

// blocksSize is what count blocks of size bytes take at each rank, if they are dealt out in turn.
func blocksSize(op string, count, size uint64, ranks int) (uint64, error) {
	if hi, total := bits.Mul64(count, size); hi != 0 || total > 1<<62 {
		return 0, &SizeError{Op: op, Count: count, Size: size, Overflow: true}
	}
	each := (count + uint64(ranks) - 1) / uint64(ranks)
	return each * size, nil
}

// GlobalAlloc takes memory for count blocks of size bytes, dealt out to the ranks in turn: the same
// range of offsets at all ranks, with size*ceil(count/ranks) bytes. It is called by one rank, which
// alone gets the result. One block is memory of rank 0's local heap, and takes nothing at the
// others. It sends one call to rank 0; it may wait for all ranks when memory is short. Errors are
// Alloc's.
func (h *Heap) GlobalAlloc(ctx context.Context, count, size, align uint64) (Ptr, error) {
	return h.globalAlloc(ctx, "global alloc", count, size, align)
}

func (h *Heap) globalAlloc(ctx context.Context, op string, count, size, align uint64) (Ptr, error) {
	if count == 0 || size == 0 {
		return Ptr{}, nil
	}
	if err := checkAlign(op, align); err != nil {
		return Ptr{}, err
	}
	n, err := blocksSize(op, count, size, h.env.Size())
	if err != nil {
		return Ptr{}, err
	}
	single := uint64(0)
	if count == 1 {
		single = 1
	}
	h.count.globals.Add(1)
	r, err := h.callTake(ctx, n, align, single)
	if err != nil {
		return Ptr{}, fmt.Errorf("conduit: %s of %d bytes: rank 0, which has the global heap: %w", op, n, err)
	}
	if r.Arg(0) != statusDone {
		e := &NoMemoryError{Op: op, Requested: n, Align: align, HeapSize: h.size}
		e.setFigures(r.Args()[4:])
		return Ptr{}, e
	}
	h.hear(r.Arg(2), r.Arg(3))
	return At(0, r.Arg(1)), nil
}

// callTake requests memory of rank 0. A block that comes after the wait for it is freed.
func (h *Heap) callTake(ctx context.Context, args ...uint64) (am.Reply, error) {
	ctx, cancel := h.env.Host().WithTimeout(ctx, timeout)
	defer cancel()
	r, p, err := h.take.StartWait(ctx, h.via, 0, args...)
	if p != nil {
		h.env.Host().Go("heap", func() {
			ctx, cancel := h.env.Host().WithTimeout(context.Background(), timeout)
			defer cancel()
			if r, err := p.Wait(ctx); err == nil && r.Arg(0) == statusDone {
				if err := h.Free(ctx, At(0, r.Arg(1))); err != nil {
					h.env.Logger().Warn("shared heap: a block that came too late stays in use", "err", err)
				}
			}
		})
	}
	return r, err
}

// Free gives a block back; its owner has done so when Free returns. Any rank may free it, one does.
// Null is nothing. A block of another rank takes one call. Errors: a *FreeError, ctx's, a
// *PeerDownError.
func (h *Heap) Free(ctx context.Context, p Ptr) error {
	if p.IsNull() {
		return nil
	}
	if p.Rank() < 0 || p.Rank() >= h.env.Size() {
		return &FreeError{Ptr: p, Reason: Outside}
	}
	if p.Rank() == h.rank {
		return h.freeHere(p.off, true)
	}
	h.count.freesElsewhere.Add(1)
	ctx, cancel := h.env.Host().WithTimeout(ctx, timeout)
	defer cancel()
	r, err := h.free.Call(ctx, h.via, p.Rank(), p.off)
	if err != nil {
		return fmt.Errorf("conduit: free of %v: %w", p, err)
	}
	if why := Reason(r.Arg(0)); why != 0 {
		e := &FreeError{Ptr: p, Reason: why}
		if why == Interior {
			e.Block = At(p.Rank(), r.Arg(1))
		}
		return e
	}
	return nil
}

// FreeAsync is Free that does not wait for the owner: memory may not be there yet for what this
// rank allocates next. The owner counts and logs a pointer that cannot be freed
// (Stats.BadFrees). It waits, as a post does, for a credit.
func (h *Heap) FreeAsync(ctx context.Context, p Ptr) error {
	switch {
	case p.IsNull():
		return nil
	case p.Rank() == h.rank:
		return h.Free(ctx, p)
	case p.Rank() < 0 || p.Rank() >= h.env.Size():
		return &FreeError{Ptr: p, Reason: Outside}
	}
	h.count.freesElsewhere.Add(1)
	if err := h.free.Post(ctx, h.via, p.Rank(), p.off); err != nil {
		return fmt.Errorf("conduit: free of %v: %w", p, err)
	}
	return nil
}

// onFree frees a block of this rank for another one.
func (h *Heap) onFree(c *am.Call) {
	if c.Len() != 1 {
		return
	}
	h.count.remoteFrees.Add(1)
	var e *FreeError
	if err := h.freeHere(c.Arg(0), false); !errors.As(err, &e) {
		e = &FreeError{}
	}
	if !c.Wanted() {
		if e.Reason != 0 {
			h.env.Logger().Warn("shared heap: a rank freed what it must not", "from", c.From(), "err", e)
		}
		return
	}
	_ = c.Reply(uint64(e.Reason), e.Block.off)
}

// freeHere frees a block of this rank, or at rank 0 of the global heap. Own: for this rank's Free.
func (h *Heap) freeHere(off uint64, own bool) error {
	h.mu.Lock()
	if own {
		h.frees++
	}
	inside := off < h.length
	var err error
	if inside {
		_, err = h.local.Free(off)
	}
	h.mu.Unlock()
	p := At(h.rank, off)
	switch {
	case !inside && h.root != nil:
		err = h.root.release(p)
	case !inside && off < h.size:
		err = &FreeError{Ptr: p, Reason: WrongHeap}
	case !inside:
		err = &FreeError{Ptr: p, Reason: Outside}
	case err != nil:
		err = whyNotFree(p, err)
	}
	if err != nil {
		h.count.badFrees.Add(1)
	}
	return err
}
