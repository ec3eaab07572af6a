package conduit

import (
	"unsafe"

	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/heap"
)

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

// checkCopy is what is wrong with a Copy before it begins.
func checkCopy[T any](w *Worker, dst, src Ptr[T], n int) error {
	size, _, err := heap.SizeOf[T]("copy", n)
	if err == nil {
		_, _, err = w.check("copy", global.Node(dst), dst.Offset(), size)
	}
	if err == nil {
		_, _, err = w.check("copy", global.Node(src), src.Offset(), size)
	}
	return err
}
