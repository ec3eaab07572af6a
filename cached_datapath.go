package conduit

import (
	"unsafe"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/heap"
	"github.com/ibconduit/conduit/internal/owner"
)

// Where a worker has a cache, puts and gets of ranks that are not mapped here go through it, but
// for large ones and those of chains.

// cached returns where n bytes of a rank's user region lie in the lines that the worker's cache
// read last, or nil.
func (f *fences) cached(node uint32, off, n uint64) unsafe.Pointer {
	if f == nil || f.cache == nil || f.epoch != f.job.epoch.Load() {
		return nil
	}
	if owner.Checked {
		if f.w.guard.Enter() != nil {
			return nil
		}
		defer f.w.guard.Exit()
	}
	return f.cache.Peek(int(node)-1, off, n)
}

// takes reports whether the cache, if there is one, has an operation on a rank. One that waits it
// takes whatever the size, also if it passes it by itself.
func (f *fences) takes(node uint32, n int, flag fabric.Flag) bool {
	if f == nil || f.cache == nil || f.w.inChain || !f.remote(node) {
		return false
	}
	if flag != fabric.Blocking && n >= f.cache.DirectMin() {
		return false
	}
	f.catchUp()
	return true
}

// passes reports whether an operation passes the cache by without a look at it, as those of this
// rank's own memory do.
func (f *fences) passes(rank int, off, n uint64, what uint8) bool {
	return f.cache.Passing(rank, off, n)&what != 0 || rank == f.job.rank
}

// getFenced is get where valid finds no peer, or there are fences. Where gets of the region pass
// the cache by it costs little more than without one.
func getFenced(w *Worker, rt *route, node uint32, off uint64, dst []byte, f fabric.Flag) (fabric.Lane, fabric.Handle, error) {
	s, rank := w.fences, int(node)-1
	if rt == nil || s.cache == nil || f != fabric.Blocking || w.inChain ||
		!s.passes(rank, off, uint64(len(dst)), cache.PassGets) {
		return w.getChecked(node, off, dst, f)
	}
	if rank != s.job.rank && !s.cache.PassGet(rank, off) {
		return getWatched(w, node, off, dst, f)
	}
	l := w.byNet[rt.net&(maxNetworks-1)]
	h, err := l.Get(rank, w.begin+off, dst, f)
	return l, h, err
}

// putFenced is getFenced for a put.
func putFenced(w *Worker, rt *route, node uint32, off uint64, src []byte, f fabric.Flag) (fabric.Lane, fabric.Handle, error) {
	s, rank := w.fences, int(node)-1
	if rt == nil || s.cache == nil || f != fabric.Blocking || w.inChain ||
		!s.passes(rank, off, uint64(len(src)), cache.PassPuts) {
		return w.putChecked(node, off, src, f)
	}
	if rank != s.job.rank && !s.cache.PassPut(rank, off) {
		return putWatched(w, node, off, src, f)
	}
	h, err := w.byNet[rt.net&(maxNetworks-1)].Put(rank, w.begin+off, src, f)
	if h != fabric.Done {
		err = s.cache.FinishPut(w.ctx, h, rank, off, len(src))
	}
	return nil, fabric.Done, err
}

// getWatched and putWatched are those for which the cache looks whether it would be of use by now.

func getWatched(w *Worker, node uint32, off uint64, dst []byte, f fabric.Flag) (fabric.Lane, fabric.Handle, error) {
	if !w.fences.cache.WatchGet(int(node)-1, off) {
		return w.getChecked(node, off, dst, f)
	}
	return nil, fabric.Done, w.fences.cache.GetAround(w.ctx, int(node)-1, off, dst)
}

func putWatched(w *Worker, node uint32, off uint64, src []byte, f fabric.Flag) (fabric.Lane, fabric.Handle, error) {
	if !w.fences.cache.WatchPut(int(node)-1, off) {
		return w.putChecked(node, off, src, f)
	}
	return nil, fabric.Done, w.fences.cache.PutAround(w.ctx, int(node)-1, off, src)
}

// hit returns where n bytes of a rank's user region lie if the cache can be read there, or nil.
func (f *fences) hit(node uint32, off uint64, n int) unsafe.Pointer {
	if f == nil || f.cache == nil || f.w.inChain || f.epoch != f.job.epoch.Load() {
		return nil
	}
	return f.cache.Hit(int(node)-1, off, uint64(n))
}

// stats are the counters of the cache.
func (f *fences) stats() cache.Stats {
	if f == nil || f.kept == nil {
		return cache.Stats{}
	}
	return f.kept.Stats()
}

// Prefetch has the worker's cache begin to fetch n elements from p on, and returns at once: a Get
// that follows finds them, or waits for the rest of their way. It is a hint, as far as the cache
// has room (32 KiB in flight), and nothing without a cache. Elements outside of the rank's segment
// are left out. Errors: those of a wrong pointer, and a *PeerDownError.
func Prefetch[T any](w *Worker, p Ptr[T], n int) error {
	var v T
	return w.fences.prefetch(global.Node(p), p.Offset(), nil, n*int(unsafe.Sizeof(v)))
}

// PrefetchIndexed is Prefetch of the elements p.Add(offs[k]) for all k, by one doorbell.
func PrefetchIndexed[T any](w *Worker, p Ptr[T], offs []int) error {
	var v T
	f := w.fences
	if f == nil || f.cache == nil {
		return nil
	}
	f.offs = f.offs[:0]
	for _, k := range offs {
		f.offs = append(f.offs, p.Add(k).Offset())
	}
	return f.prefetch(global.Node(p), 0, f.offs, int(unsafe.Sizeof(v)))
}

// Hints for the cache of a worker, see SetHint.
type Hint = cache.Hint

// How a program uses data.
const (
	HintDefault    = cache.Default
	HintSequential = cache.Sequential // in order: fetched ahead from the first miss on
	HintRandom     = cache.Random     // in no order: nothing is fetched ahead
	HintBypass     = cache.Bypass     // once: gets pass the cache by; puts are still combined
	HintReadOnly   = cache.ReadOnly   // nobody writes them: copies survive an acquire, a write is an error
	HintPrivate    = cache.Private    // nobody but this worker writes them: copies survive an acquire
)

// SetHint tells the worker's cache how the n elements from p on are used, in place of what it was
// told of them before, and has it forget its copies of their pages. HintReadOnly and HintPrivate
// are promises: a get returns old elements where they are broken. Without a cache it does nothing.
// Errors are those of a wrong pointer.
func SetHint[T any](w *Worker, p Ptr[T], n int, h Hint) error {
	size, _, err := heap.SizeOf[T]("hint", n)
	if err != nil {
		return err
	}
	f := w.fences
	if _, err := w.check("hint", global.Node(p), p.Offset(), size); err != nil || f == nil || f.kept == nil {
		return err
	}
	if err := w.enter("hint"); err != nil {
		return err
	}
	defer w.exit()
	f.kept.Hint(int(global.Node(p))-1, p.Offset(), size, h)
	return nil
}

// survives reports whether a copy of a word may survive the acquire behind an atomic.
func (f *fences) survives(rank int, off uint64) bool {
	return f != nil && f.kept != nil && f.kept.Survives(rank, off)
}

// prefetch begins to fetch n bytes at off, or at each of offs.
func (f *fences) prefetch(node uint32, off uint64, offs []uint64, n int) error {
	if f == nil || f.cache == nil {
		return nil
	}
	if err := f.w.enter("prefetch"); err != nil {
		return err
	}
	defer f.w.exit()
	if _, err := f.w.check("prefetch", node, 0, 0); err != nil {
		return err
	}
	if !f.takes(node, n, fabric.Blocking) {
		return nil
	}
	if offs == nil {
		return f.cache.Prefetch(f.w.ctx, int(node)-1, off, n)
	}
	return f.cache.PrefetchEach(f.w.ctx, int(node)-1, offs, n)
}

// caches reports whether small puts and gets may go through a cache.
func (f *fences) caches() bool { return f != nil && f.cache != nil && !f.w.inChain }

// gathers reports whether a gather that begins at a byte goes through the cache.
func (f *fences) gathers(node uint32, off uint64) bool {
	return f.caches() && !f.cache.Bypasses(int(node)-1, off)
}

// remote reports whether the cache has operations on a rank.
func (f *fences) remote(node uint32) bool {
	return f.w.peers[node-1].size == 0 && int(node)-1 != f.job.rank
}

// gather reads n bytes at each of the places.
func (f *fences) gather(places []cache.Place, n int, dst []byte) error {
	if err := f.w.enter("get"); err != nil {
		return err
	}
	defer f.w.exit()
	f.catchUp()
	return f.cache.Gather(f.w.ctx, places, n, dst)
}
