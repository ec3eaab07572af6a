package arrays

import (
	"github.com/ibconduit/conduit/internal/dist"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/global"
)

// Via is the way of the transfers of an array: a worker of its job.
type Via interface {
	Transfers() *Transfers
}

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
// a get's.
func (a *Array[T]) GetSlice(w Via, dst []T, i int) error {
	return a.slice(w.Transfers(), fabric.KindGet, dst, i)
}

// PutSlice writes src to the elements from i on, wherever they lie, and returns when they are
// there. After an error that is no *IndexError some may have been written, as after one of the
// array's PutIndexed and PutStrided.
func (a *Array[T]) PutSlice(w Via, i int, src []T) error {
	return a.slice(w.Transfers(), fabric.KindPut, src, i)
}

func (a *Array[T]) slice(t *Transfers, kind fabric.Kind, mem []T, i int) error {
	if err := a.check(opOf(kind), t, i, len(mem)); err != nil || len(mem) == 0 {
		return err
	}
	r := a.layout.At(uint64(i))
	if a.run(r, len(mem)) == len(mem) {
		return t.do(kind, pieceOf(a.ptr(r), mem), 0)
	}
	// Rank after rank: a rank's blocks lie one behind the other.
	block := int(a.layout.Block())
	at, begin, end, turn := i, i-int(r.Phase), i+len(mem), 1
	return t.transfer(kind, func() (x piece, more bool) {
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
// are there: one get for each, in one chain for a rank. Errors are GetSlice's; then
// some may have been read.
func (a *Array[T]) GetIndexed(w Via, dst []T, idx []int) error {
	return a.indexed(w.Transfers(), fabric.KindGet, dst, idx)
}

// PutIndexed writes src[k] to element idx[k] for all k. Where an index stands twice either value
// may stay.
func (a *Array[T]) PutIndexed(w Via, idx []int, src []T) error {
	return a.indexed(w.Transfers(), fabric.KindPut, src, idx)
}

func (a *Array[T]) indexed(t *Transfers, kind fabric.Kind, mem []T, idx []int) error {
	if len(mem) != len(idx) {
		return errUnequal(opOf(kind), len(mem), len(idx))
	}
	for _, i := range idx {
		if err := a.check(opOf(kind), t, i, 1); err != nil {
			return err
		}
	}
	return scattered(t, kind, mem, func(k int) Ptr[T] { return a.At(idx[k]) })
}

// GetStrided reads elements i, i+stride, i+2*stride, ... into dst. stride may be negative, or 0.
func (a *Array[T]) GetStrided(w Via, dst []T, i, stride int) error {
	return a.strided(w.Transfers(), fabric.KindGet, dst, i, stride)
}

// PutStrided writes src to elements i, i+stride, i+2*stride, ...
func (a *Array[T]) PutStrided(w Via, i, stride int, src []T) error {
	return a.strided(w.Transfers(), fabric.KindPut, src, i, stride)
}

func (a *Array[T]) strided(t *Transfers, kind fabric.Kind, mem []T, i, stride int) error {
	if len(mem) == 0 {
		return a.check(opOf(kind), t, 0, 0)
	}
	err := a.check(opOf(kind), t, i, 1)
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
	return scattered(t, kind, mem, func(k int) Ptr[T] { return a.At(i + k*stride) })
}
