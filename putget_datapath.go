package conduit

import (
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/shm"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/owner"
)

// An operation goes to mapped memory, or through a lane: of the network, or one that stands above
// that (cache.Lane, chainLane, timedLane). The choice is made once, when a worker opens, and stands
// in Worker.peers and byNet; mapped, put, get and atomic are all that looks there.

// mapped returns where [off, off+n) of the rank's segment is mapped here, or nil when it is not, or
// anything at all is wrong: then the caller goes on with a lane, and check finds out what.
func (w *Worker) mapped(node uint32, off, n uint64) unsafe.Pointer {
	if owner.Checked {
		if w.guard.Enter() != nil {
			return nil
		}
		w.guard.Exit()
	}
	if i := uint(node) - 1; i < uint(len(w.peers)) {
		p := &w.peers[i]
		if n <= p.size && off <= p.size-n && w.seen == w.generation.Load() {
			return unsafe.Add(p.base, off)
		}
	}
	return nil
}

// valid returns the route to the rank that [off, off+n) is of, and the rank, or nil if anything is
// wrong that the lane does not find out as well, as it does a death.
func (w *Worker) valid(node uint32, off, n uint64) (rt *route, rank int) {
	generation := w.generation.Load() // first: in the condition it costs seven instructions more
	if i := uint(node) - 1; i < uint(len(w.routes)) {
		if rt := &w.routes[i]; n <= rt.user && off <= rt.user-n && w.seen == generation {
			return rt, int(i)
		}
	}
	return nil, 0
}

// cached returns where n bytes of a rank's user region lie in the lines that the worker's cache,
// which is in use, read last, or nil.
func cached(w *Worker, node uint32, off, n uint64) unsafe.Pointer {
	if w.seen != w.generation.Load() {
		return nil
	}
	if owner.Checked {
		if w.guard.Enter() != nil {
			return nil
		}
		defer w.guard.Exit()
	}
	return w.lines.Peek(int(node)-1, off, n)
}

// store puts v into mapped memory, load gets it from there.
func store[T any](w *Worker, at unsafe.Pointer, v T) {
	if shm.Reorders {
		shm.OrderStores()
	}
	*(*T)(at) = v
	w.direct.Puts++
	w.direct.PutBytes += uint64(unsafe.Sizeof(v))
}

func load[T any](w *Worker, at unsafe.Pointer) (v T) {
	v = *(*T)(at)
	if shm.Reorders {
		shm.OrderLoads()
	}
	w.direct.Gets++
	w.direct.GetBytes += uint64(unsafe.Sizeof(v))
	return v
}

// put starts a put through the peer's lane.
func (w *Worker) put(node uint32, off uint64, src []byte, f fabric.Flag) (l fabric.Lane, h fabric.Handle, err error) {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return nil, fabric.Done, err
		}
		defer w.guard.Exit()
	}
	rt, rank := w.valid(node, off, uint64(len(src)))
	if rt == nil {
		return checked(w, fabric.KindPut, node, off, src, f)
	}
	l = w.byNet[rt.net&(maxNetworks-1)]
	if h, err = l.Put(rank, w.begin+off, src, f); err != nil {
		err = w.failed(err)
	}
	return l, h, err
}

// get starts a get through the peer's lane.
func (w *Worker) get(node uint32, off uint64, dst []byte, f fabric.Flag) (l fabric.Lane, h fabric.Handle, err error) {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return nil, fabric.Done, err
		}
		defer w.guard.Exit()
	}
	rt, rank := w.valid(node, off, uint64(len(dst)))
	if rt == nil {
		return checked(w, fabric.KindGet, node, off, dst, f)
	}
	l = w.byNet[rt.net&(maxNetworks-1)]
	if h, err = l.Get(rank, w.begin+off, dst, f); err != nil {
		err = w.failed(err)
	}
	return l, h, err
}

// checked is put or get where valid finds no peer.
func checked(w *Worker, kind fabric.Kind, node uint32, off uint64, b []byte, f fabric.Flag) (l fabric.Lane, h fabric.Handle, err error) {
	rt, rank, err := w.check((&fabric.Piece{Kind: kind}).Op(), node, off, uint64(len(b)))
	if err != nil {
		return nil, fabric.Done, err
	}
	if l = w.byNet[rt.net]; kind == fabric.KindPut {
		h, err = l.Put(rank, w.begin+off, b, f)
	} else {
		h, err = l.Get(rank, w.begin+off, b, f)
	}
	if err != nil {
		err = w.failed(err)
	}
	return l, h, err
}

// Put writes v at p and returns when it is there.
func Put[T any](w *Worker, p Ptr[T], v T) error {
	if at := w.mapped(global.Node(p), p.Offset(), uint64(unsafe.Sizeof(v))); at != nil {
		store(w, at, v)
		return nil
	}
	return w.settle(putValue(w, p, v, fabric.Blocking))
}

// PutNBI writes v at p. It returns at once; Flush waits for it.
func PutNBI[T any](w *Worker, p Ptr[T], v T) error {
	if at := w.mapped(global.Node(p), p.Offset(), uint64(unsafe.Sizeof(v))); at != nil {
		store(w, at, v)
		return nil
	}
	_, _, err := putValue(w, p, v, fabric.Implicit)
	return err
}

// PutAsync starts a put of v.
func PutAsync[T any](w *Worker, p Ptr[T], v T) Pending {
	if at := w.mapped(global.Node(p), p.Offset(), uint64(unsafe.Sizeof(v))); at != nil {
		store(w, at, v)
		return Pending{}
	}
	l, h, err := putValue(w, p, v, 0)
	return Pending{w: w, lane: l, h: h, err: err}
}

// Get reads the value at p.
func Get[T any](w *Worker, p Ptr[T]) (v T, err error) {
	if at := w.mapped(global.Node(p), p.Offset(), uint64(unsafe.Sizeof(v))); at != nil {
		return load[T](w, at), nil
	}
	if w.lines == nil { // first: a look into the cache keeps p across calls
		return getValue(w, p)
	}
	if at := cached(w, global.Node(p), p.Offset(), uint64(unsafe.Sizeof(v))); at != nil {
		return *(*T)(at), nil
	}
	return getValue(w, p)
}

// PutSlice writes src at p and the elements that follow, and returns when they are there. When the
// worker's context ends first, the network may still read src until Flush returns.
func PutSlice[T any](w *Worker, p Ptr[T], src []T) error {
	return putSlice(w, p, src, fabric.Blocking).finish()
}

// PutSliceNBI is PutSlice without the wait: Flush waits for it. src must not change before.
func PutSliceNBI[T any](w *Worker, p Ptr[T], src []T) error {
	return putSlice(w, p, src, fabric.Implicit).err
}

// PutSliceAsync starts a put of src, which must not change until it is complete.
func PutSliceAsync[T any](w *Worker, p Ptr[T], src []T) Pending { return putSlice(w, p, src, 0) }

// GetSlice reads len(dst) elements from p on. When the worker's context ends first, dst is the
// network's until Flush returns.
func GetSlice[T any](w *Worker, dst []T, p Ptr[T]) error {
	return getSlice(w, dst, p, fabric.Blocking).finish()
}

// GetSliceNBI is GetSlice without the wait: dst holds the elements after Flush, and must not be
// touched before.
func GetSliceNBI[T any](w *Worker, dst []T, p Ptr[T]) error {
	return getSlice(w, dst, p, fabric.Implicit).err
}

// GetSliceAsync starts a get of len(dst) elements; dst is the network's until it is complete.
func GetSliceAsync[T any](w *Worker, dst []T, p Ptr[T]) Pending { return getSlice(w, dst, p, 0) }

func putSlice[T any](w *Worker, p Ptr[T], src []T, f fabric.Flag) Pending {
	b := bytesOf(src)
	if at := w.mapped(global.Node(p), p.Offset(), uint64(len(b))); at != nil {
		if shm.Reorders {
			shm.OrderStores()
		}
		copy(unsafe.Slice((*byte)(at), len(b)), b)
		w.direct.Puts++
		w.direct.PutBytes += uint64(len(b))
		return Pending{}
	}
	if global.Node(p)&badType != 0 {
		return Pending{err: typeError[T]()}
	}
	l, h, err := w.put(global.Node(p), p.Offset(), b, f)
	return Pending{w: w, lane: l, h: h, err: err}
}

func getSlice[T any](w *Worker, dst []T, p Ptr[T], f fabric.Flag) Pending {
	b := bytesOf(dst)
	if at := w.mapped(global.Node(p), p.Offset(), uint64(len(b))); at != nil {
		copy(b, unsafe.Slice((*byte)(at), len(b)))
		if shm.Reorders {
			shm.OrderLoads()
		}
		w.direct.Gets++
		w.direct.GetBytes += uint64(len(b))
		return Pending{}
	}
	if global.Node(p)&badType != 0 {
		return Pending{err: typeError[T]()}
	}
	l, h, err := w.get(global.Node(p), p.Offset(), b, f)
	return Pending{w: w, lane: l, h: h, err: err}
}

// finish waits for a blocking slice operation with the worker's context.
func (p Pending) finish() error {
	if p.err != nil || p.h == fabric.Done {
		return p.err
	}
	_, err := p.w.await(p.lane, p.h)
	return err
}

// putValue lays v where a lane can read it, and starts a put of it.
func putValue[T any](w *Worker, p Ptr[T], v T, f fabric.Flag) (fabric.Lane, fabric.Handle, error) {
	if global.Node(p)&badType != 0 {
		return nil, fabric.Done, typeError[T]()
	}
	n := int(unsafe.Sizeof(v))
	buf := lay(w, n)
	if n > 0 {
		*(*T)(unsafe.Pointer(unsafe.SliceData(buf))) = v
	}
	l, h, err := w.put(global.Node(p), p.Offset(), buf, f)
	if f != fabric.Blocking && n > w.job.networks.copyMax {
		w.scratch = nil // the network reads it until the put is complete
	}
	return l, h, err
}

func getValue[T any](w *Worker, p Ptr[T]) (v T, err error) {
	if global.Node(p)&badType != 0 {
		return v, typeError[T]()
	}
	n := int(unsafe.Sizeof(v))
	buf := lay(w, n)
	err = w.settle(w.get(global.Node(p), p.Offset(), buf, fabric.Blocking))
	if err == nil && n > 0 {
		v = *(*T)(unsafe.Pointer(unsafe.SliceData(buf)))
	}
	return v, err
}

// scratchMin is the size of a worker's scratch buffer: larger values get a buffer of their own,
// which then stays.
const scratchMin = 4096

// lay returns n bytes of scratch, aligned for any type.
func lay(w *Worker, n int) []byte {
	if n > len(w.scratch) {
		words := make([]uint64, (max(n, scratchMin)+7)/8)
		w.scratch = bytesOf(words)
	}
	return w.scratch[:n]
}

// settle ends a blocking operation on the scratch buffer; one that failed has no handle.
func (w *Worker) settle(l fabric.Lane, h fabric.Handle, err error) error {
	if h != fabric.Done {
		_, err = w.await(l, h)
	}
	return err
}

// await ends a blocking operation. When the worker's context ends first, the handle is abandoned.
func (w *Worker) await(l fabric.Lane, h fabric.Handle) (uint64, error) {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return 0, err
		}
		defer w.guard.Exit()
	}
	old, err := l.Wait(w.ctx, h)
	if err != nil {
		l.Abandon(h)
		err = w.failed(err)
	}
	return old, err
}

// failed is the error of an operation as the program has it. Some of the operation may still be in
// flight, and a scratch buffer the network's: the next value gets another.
func (w *Worker) failed(err error) error {
	w.scratch = nil
	return inRegion(err, w.begin)
}
