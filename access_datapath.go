package conduit

import (
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/shm"
	"github.com/ibconduit/conduit/internal/owner"
)

// at returns where [off, off+n) of the rank's segment is mapped here, or nil
// when it is not, or anything at all is wrong: then the caller takes the way
// through reach, which finds out what.
func (w *Worker) at(node uint32, off, n uint64) unsafe.Pointer {
	if i := uint(node) - 1; i < uint(len(w.peers)) {
		p := &w.peers[i]
		if n <= p.size && off <= p.size-n && w.downSeen == w.deaths.Load() {
			return unsafe.Add(p.base, off)
		}
	}
	return nil
}

// Put writes v at p and returns when it is there.
func Put[T any](w *Worker, p Ptr[T], v T) error {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return err
		}
		defer w.guard.Exit()
	}
	if q := w.at(p.node, p.off, uint64(unsafe.Sizeof(v))); q != nil {
		if shm.Reorders {
			shm.OrderStores()
		}
		*(*T)(q) = v
		w.mapped.puts++
		w.mapped.putBytes += uint64(unsafe.Sizeof(v))
		return nil
	}
	return putValue(w, p, v, fabric.Blocking)
}

// PutNBI writes v at p. It returns at once; Flush waits for it.
func PutNBI[T any](w *Worker, p Ptr[T], v T) error {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return err
		}
		defer w.guard.Exit()
	}
	if q := w.at(p.node, p.off, uint64(unsafe.Sizeof(v))); q != nil {
		if shm.Reorders {
			shm.OrderStores()
		}
		*(*T)(q) = v
		w.mapped.puts++
		w.mapped.putBytes += uint64(unsafe.Sizeof(v))
		return nil
	}
	return putValue(w, p, v, fabric.Implicit)
}

// Get reads the value at p.
func Get[T any](w *Worker, p Ptr[T]) (T, error) {
	var v T
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return v, err
		}
		defer w.guard.Exit()
	}
	if q := w.at(p.node, p.off, uint64(unsafe.Sizeof(v))); q != nil {
		v = *(*T)(q)
		if shm.Reorders {
			shm.OrderLoads()
		}
		w.mapped.gets++
		w.mapped.getBytes += uint64(unsafe.Sizeof(v))
		return v, nil
	}
	return getValue(w, p)
}

// PutSlice writes src at p and the elements that follow, and returns when they are
// there. When the worker's context ends first, the network may still read src until
// Flush returns.
func PutSlice[T any](w *Worker, p Ptr[T], src []T) error {
	return putSlice(w, p, src, fabric.Blocking).finish(w)
}

// PutSliceNBI is PutSlice without the wait: Flush waits for it. src must not
// change before.
func PutSliceNBI[T any](w *Worker, p Ptr[T], src []T) error {
	return putSlice(w, p, src, fabric.Implicit).err
}

// GetSlice reads len(dst) elements from p on. When the worker's context ends first, dst
// is the network's until Flush returns.
func GetSlice[T any](w *Worker, dst []T, p Ptr[T]) error {
	return getSlice(w, dst, p, fabric.Blocking).finish(w)
}

// GetSliceNBI is GetSlice without the wait: dst holds the elements after Flush,
// and must not be touched before.
func GetSliceNBI[T any](w *Worker, dst []T, p Ptr[T]) error {
	return getSlice(w, dst, p, fabric.Implicit).err
}

func putSlice[T any](w *Worker, p Ptr[T], src []T, f fabric.Flag) Pending {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return Pending{err: err}
		}
		defer w.guard.Exit()
	}
	b := bytesOf(src)
	if q := w.at(p.node, p.off, uint64(len(b))); q != nil {
		if shm.Reorders {
			shm.OrderStores()
		}
		copy(unsafe.Slice((*byte)(q), len(b)), b)
		w.mapped.puts++
		w.mapped.putBytes += uint64(len(b))
		return Pending{}
	}
	if p.node&badType != 0 {
		return Pending{err: typeError[T]()}
	}
	pe, rank, err := w.reach("put", p.node, p.off, uint64(len(b)))
	if err != nil {
		return Pending{err: err}
	}
	h, err := pe.data.Put(rank, p.off, b, f)
	return Pending{w: w, lane: pe.data, h: h, err: err}
}

func getSlice[T any](w *Worker, dst []T, p Ptr[T], f fabric.Flag) Pending {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return Pending{err: err}
		}
		defer w.guard.Exit()
	}
	b := bytesOf(dst)
	if q := w.at(p.node, p.off, uint64(len(b))); q != nil {
		copy(b, unsafe.Slice((*byte)(q), len(b)))
		if shm.Reorders {
			shm.OrderLoads()
		}
		w.mapped.gets++
		w.mapped.getBytes += uint64(len(b))
		return Pending{}
	}
	if p.node&badType != 0 {
		return Pending{err: typeError[T]()}
	}
	pe, rank, err := w.reach("get", p.node, p.off, uint64(len(b)))
	if err != nil {
		return Pending{err: err}
	}
	h, err := pe.data.Get(rank, p.off, b, f)
	return Pending{w: w, lane: pe.data, h: h, err: err}
}

// finish waits for a blocking slice operation with the worker's context.
func (p Pending) finish(w *Worker) error {
	if p.err != nil || p.h == fabric.Done {
		return p.err
	}
	_, err := w.await(p.lane, p.h)
	return err
}

// putValue lays v where a lane can read it and posts it.
func putValue[T any](w *Worker, p Ptr[T], v T, f fabric.Flag) error {
	if p.node&badType != 0 {
		return typeError[T]()
	}
	n := unsafe.Sizeof(v)
	pe, rank, err := w.reach("put", p.node, p.off, uint64(n))
	if err != nil {
		return err
	}
	buf := w.lay(int(n))
	if n > 0 {
		*(*T)(unsafe.Pointer(unsafe.SliceData(buf))) = v
	}
	h, err := pe.data.Put(rank, p.off, buf, f)
	if f == fabric.Implicit {
		if int(n) > w.job.networks.copyMax {
			w.scratch = nil // the network reads it until Flush
		}
		return err
	}
	if err != nil {
		w.scratch = nil // pieces may have been posted before it failed
		return err
	}
	if h == fabric.Done {
		return nil
	}
	return w.settle(pe.data, h)
}

func getValue[T any](w *Worker, p Ptr[T]) (v T, err error) {
	if p.node&badType != 0 {
		return v, typeError[T]()
	}
	n := unsafe.Sizeof(v)
	pe, rank, err := w.reach("get", p.node, p.off, uint64(n))
	if err != nil {
		return v, err
	}
	buf := w.lay(int(n))
	h, err := pe.data.Get(rank, p.off, buf, fabric.Blocking)
	if err != nil {
		w.scratch = nil // pieces may have been posted before it failed
	} else if h != fabric.Done {
		err = w.settle(pe.data, h)
	}
	if err == nil && n > 0 {
		v = *(*T)(unsafe.Pointer(unsafe.SliceData(buf)))
	}
	return v, err
}

// scratchMin is the size of a worker's scratch buffer: larger values get a
// buffer of their own, which then stays.
const scratchMin = 4096

// lay returns n bytes of scratch, aligned for any type.
func (w *Worker) lay(n int) []byte {
	if n > len(w.scratch) {
		words := make([]uint64, (max(n, scratchMin)+7)/8)
		w.scratch = bytesOf(words)
	}
	return w.scratch[:n]
}

// settle waits for an operation on the scratch buffer. When the wait ends
// early the buffer is still the network's: the next value gets another.
func (w *Worker) settle(l fabric.Lane, h fabric.Handle) error {
	_, err := w.await(l, h)
	if err != nil {
		w.scratch = nil
	}
	return err
}

// await ends a blocking operation. When the worker's context ends first, nobody
// will ask for the handle again.
func (w *Worker) await(l fabric.Lane, h fabric.Handle) (uint64, error) {
	old, err := l.Wait(w.ctx, h)
	if err != nil {
		l.Abandon(h)
	}
	return old, err
}
