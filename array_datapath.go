package conduit

import (
	"cmp"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/segment/dist"
)

// At is the global pointer to element i. Like an index of a slice it panics outside of the array,
// with an *IndexError.
func (a *Array[T]) At(i int) Ptr[T] {
	if uint64(i) >= a.n {
		a.outside(i)
	}
	r := a.layout.At(uint64(i))
	return global.Of[T](r.Rank+1, a.off+r.Off)
}

// GetSlice reads len(dst) elements from i on, wherever they lie, and returns when they are there:
// one get for each rank while its blocks are small, all in one chain. Errors: an *IndexError, else
// those of [GetSlice], as also for what becomes of dst.
func (a *Array[T]) GetSlice(w *Worker, dst []T, i int) error {
	return a.slice(w, fabric.KindGet, dst, i)
}

// PutSlice writes src to the elements from i on, wherever they lie, and returns when they are
// there. After an error that is no *IndexError some may have been written, as after one of the
// array's PutIndexed and PutStrided.
func (a *Array[T]) PutSlice(w *Worker, i int, src []T) error {
	return a.slice(w, fabric.KindPut, src, i)
}

func (a *Array[T]) slice(w *Worker, kind fabric.Kind, mem []T, i int) error {
	if err := a.check(opOf(kind), w, i, len(mem)); err != nil || len(mem) == 0 {
		return err
	}
	r := a.layout.At(uint64(i))
	if a.run(r, len(mem)) == len(mem) {
		return startPiece(w, kind, pieceOf(a.ptr(r), mem)).finish()
	}
	// Rank after rank: a rank's blocks lie one behind the other.
	block := int(a.layout.Block())
	at, begin, end, turn := i, i-int(r.Phase), i+len(mem), 1
	return transfer(w, kind, func() (x piece, more bool) {
		if at >= end {
			if at = begin + turn*block; turn == a.layout.Ranks() || at >= end {
				return x, false
			}
			turn++
		}
		r := a.layout.At(uint64(at))
		n := a.run(r, end-at)
		x = pieceOf(a.ptr(r), mem[at-i:at-i+n])
		at += block*a.layout.Ranks() - int(r.Phase)
		return x, true
	})
}

func (a *Array[T]) ptr(r dist.Ref) Ptr[T] { return global.Of[T](r.Rank+1, a.off+r.Off) }

// run is how many elements from r on, n at most, lie in one piece.
func (a *Array[T]) run(r dist.Ref, n int) int {
	if a.layout.Block() == dist.Indefinite || a.layout.Ranks() == 1 {
		return n
	}
	return int(min(uint64(n), a.layout.Block()-r.Phase))
}

// GetIndexed reads element idx[k] into dst[k] for all k, wherever they lie, and returns when they
// are there: one get for each, those of a rank in one chain. Errors are those of GetSlice; then
// some may have been read.
func (a *Array[T]) GetIndexed(w *Worker, dst []T, idx []int) error {
	return a.indexed(w, fabric.KindGet, dst, idx)
}

// PutIndexed writes src[k] to element idx[k] for all k. Where an index stands twice either value
// may stay.
func (a *Array[T]) PutIndexed(w *Worker, idx []int, src []T) error {
	return a.indexed(w, fabric.KindPut, src, idx)
}

func (a *Array[T]) indexed(w *Worker, kind fabric.Kind, mem []T, idx []int) error {
	if len(mem) != len(idx) {
		return errUnequal(opOf(kind), len(mem), len(idx))
	}
	for _, i := range idx {
		if err := a.check(opOf(kind), w, i, 1); err != nil {
			return err
		}
	}
	return scattered(w, kind, mem, func(k int) Ptr[T] { return a.At(idx[k]) })
}

// GetStrided reads elements i, i+stride, i+2*stride, ... into dst. stride may be negative, or 0.
func (a *Array[T]) GetStrided(w *Worker, dst []T, i, stride int) error {
	return a.strided(w, fabric.KindGet, dst, i, stride)
}

// PutStrided writes src to elements i, i+stride, i+2*stride, ...
func (a *Array[T]) PutStrided(w *Worker, i, stride int, src []T) error {
	return a.strided(w, fabric.KindPut, src, i, stride)
}

func (a *Array[T]) strided(w *Worker, kind fabric.Kind, mem []T, i, stride int) error {
	if len(mem) == 0 {
		return a.check(opOf(kind), w, 0, 0)
	}
	err := a.check(opOf(kind), w, i, 1)
	if last := len(mem) - 1; err == nil && last > 0 { // no product of large numbers
		if room := (a.Len() - 1 - i) / max(stride, 1); stride > 0 && last > room {
			err = &IndexError{Op: opOf(kind), First: i + (room+1)*stride, N: 1, Len: a.Len()}
		} else if stride < 0 && stride != -stride && last > i/-stride {
			err = &IndexError{Op: opOf(kind), First: i + (i/-stride+1)*stride, N: 1, Len: a.Len()}
		} else if stride < 0 && stride == -stride {
			err = &IndexError{Op: opOf(kind), First: stride, N: 1, Len: a.Len()}
		}
	}
	if err != nil {
		return err
	}
	return scattered(w, kind, mem, func(k int) Ptr[T] { return a.At(i + k*stride) })
}

// scattered transfers each element of mem from or to a place of its own.
func scattered[T any](w *Worker, kind fabric.Kind, mem []T, at func(k int) Ptr[T]) error {
	if kind == fabric.KindGet && len(mem) > 0 && w.fences.gathers(global.Node(at(0)), at(0).Offset()) {
		return gathered(w, mem, 1, at)
	}
	k := 0
	return transfer(w, kind, func() (x piece, more bool) {
		if k == len(mem) {
			return x, false
		}
		x = pieceOf(at(k), mem[k:k+1:k+1])
		k++
		return x, true
	})
}

// GetIndexed reads the element p.Add(offs[k]) into dst[k] for all k, in one chain, and returns when
// they are there. Errors are those of GetSlice; then some may have been read.
func GetIndexed[T any](w *Worker, dst []T, p Ptr[T], offs []int) error {
	if len(dst) != len(offs) {
		return errUnequal("get", len(dst), len(offs))
	}
	if err := global.Check(p); err != nil {
		return err
	}
	return scattered(w, fabric.KindGet, dst, func(k int) Ptr[T] { return p.Add(offs[k]) })
}

// PutIndexed writes src[k] to p.Add(offs[k]) for all k, in one chain, and returns when they are
// there. Where one of the places is outside of the segment nothing is written; after other errors
// some may have been.
func PutIndexed[T any](w *Worker, p Ptr[T], offs []int, src []T) error {
	if len(src) != len(offs) {
		return errUnequal("put", len(src), len(offs))
	}
	if err := cmp.Or(global.Check(p), checkIndexed(w, "put", p, offs)); err != nil {
		return err
	}
	return scattered(w, fabric.KindPut, src, func(k int) Ptr[T] { return p.Add(offs[k]) })
}

// GetStrided reads runs of run elements that begin at p, p.Add(stride), p.Add(2*stride), ... into
// dst, whose length is a multiple of run, in one chain, and returns when they are there: a
// rectangle of a matrix, with run the width of one and stride that of the other; a column with
// run 1.
func GetStrided[T any](w *Worker, dst []T, p Ptr[T], run, stride int) error {
	return runs(w, fabric.KindGet, dst, p, run, stride)
}

// PutStrided writes src to runs of run elements that begin at p, p.Add(stride), ...: the reverse of
// GetStrided. Where one of the runs is outside of the segment nothing is written; after other
// errors some may have been.
func PutStrided[T any](w *Worker, p Ptr[T], run, stride int, src []T) error {
	return runs(w, fabric.KindPut, src, p, run, stride)
}

func runs[T any](w *Worker, kind fabric.Kind, mem []T, p Ptr[T], run, stride int) error {
	if run < 1 || len(mem)%run != 0 {
		return errRun(opOf(kind), run, len(mem))
	}
	if err := global.Check(p); err != nil || len(mem) == 0 {
		return err
	}
	if err := checkRuns(w, opOf(kind), p, len(mem)/run, run, stride); err != nil {
		return err
	}
	if kind == fabric.KindGet && w.fences.gathers(global.Node(p), p.Offset()) {
		next := p
		return gathered(w, mem, run, func(int) Ptr[T] {
			at := next
			next = next.Add(stride)
			return at
		})
	}
	return transfer(w, kind, func() (x piece, more bool) {
		if len(mem) == 0 {
			return x, false
		}
		x = pieceOf(p, mem[:run:run])
		mem, p = mem[run:], p.Add(stride)
		return x, true
	})
}

// copyBuffer is how many bytes are on their way at a time between two ranks of which this is
// neither.
const copyBuffer = 256 << 10

// Copy copies n elements from src to dst, which may be of any ranks and may overlap, and returns
// when they are there. Where one of them is this rank's it is one put or get, without a copy of its
// own; else the elements pass through this rank, 256 KiB at a time: where a rank dies meanwhile, or
// the worker's context ends, some may have been written. What is outside of a segment is an error
// before anything is.
func Copy[T any](w *Worker, dst, src Ptr[T], n int) error {
	if err := checkCopy(w, dst, src, n); err != nil {
		return err
	}
	var from, to []T
	var err error
	if src.Rank() == w.job.rank {
		if from, err = Slice(w.job, src, n); err != nil {
			return err
		}
	}
	if dst.Rank() == w.job.rank {
		if to, err = Slice(w.job, dst, n); err != nil {
			return err
		}
	}
	switch {
	case n == 0:
		return nil
	case from != nil && to != nil:
		copy(to, from)
		return nil
	case from != nil:
		return PutSlice(w, dst, from)
	case to != nil:
		return GetSlice(w, to, src)
	}
	var v T
	each := max(copyBuffer/max(int(unsafe.Sizeof(v)), 1), 1)
	buf := make([]T, min(each, n))
	last := global.Node(dst) == global.Node(src) && dst.Offset() > src.Offset() // from the end on: dst may overlap what follows
	for at := 0; at < n; at += each {
		k := min(each, n-at)
		from := at
		if last {
			from = n - at - k
		}
		if err := GetSlice(w, buf[:k], src.Add(from)); err != nil {
			return err
		}
		if err := PutSlice(w, dst.Add(from), buf[:k]); err != nil {
			return err
		}
	}
	return nil
}
