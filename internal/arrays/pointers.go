package arrays

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/heap"
)

// GetIndexed reads the element p.Add(offs[k]) into dst[k] for all k, in one chain, and returns when
// they are there.
func GetIndexed[T any](t *Transfers, dst []T, p Ptr[T], offs []int) error {
	if len(dst) != len(offs) {
		return errUnequal("get", len(dst), len(offs))
	}
	if err := global.Check(p); err != nil {
		return err
	}
	return scattered(t, fabric.KindGet, dst, func(k int) Ptr[T] { return p.Add(offs[k]) })
}

// PutIndexed writes src[k] to p.Add(offs[k]) for all k, in one chain, and returns when they are
// there. Where one of the places is outside of the segment nothing is written.
func PutIndexed[T any](t *Transfers, p Ptr[T], offs []int, src []T) error {
	if len(src) != len(offs) {
		return errUnequal("put", len(src), len(offs))
	}
	if err := cmp.Or(global.Check(p), checkIndexed(t, "put", p, offs)); err != nil {
		return err
	}
	return scattered(t, fabric.KindPut, src, func(k int) Ptr[T] { return p.Add(offs[k]) })
}

// GetStrided reads runs of run elements that begin at p, p.Add(stride), p.Add(2*stride), ... into
// mem, in one chain, and returns when they are there.
func GetStrided[T any](t *Transfers, dst []T, p Ptr[T], run, stride int) error {
	return runs(t, fabric.KindGet, dst, p, run, stride)
}

// PutStrided is the reverse of GetStrided. Where one of the runs is outside of the segment nothing
// is written.
func PutStrided[T any](t *Transfers, p Ptr[T], run, stride int, src []T) error {
	return runs(t, fabric.KindPut, src, p, run, stride)
}

func runs[T any](t *Transfers, kind fabric.Kind, mem []T, p Ptr[T], run, stride int) error {
	if run < 1 || len(mem)%run != 0 {
		return errRun(opOf(kind), run, len(mem))
	}
	if err := global.Check(p); err != nil || len(mem) == 0 {
		return err
	}
	if err := checkRuns(t, opOf(kind), p, len(mem)/run, run, stride); err != nil {
		return err
	}
	if kind == fabric.KindGet && t.w.Gathers(global.Node(p), p.Offset()) {
		next := p
		return gathered(t, mem, run, func(int) Ptr[T] {
			at := next
			next = next.Add(stride)
			return at
		})
	}
	return t.transfer(kind, func() (x piece, more bool) {
		if len(mem) == 0 {
			return x, false
		}
		x = pieceOf(p, mem[:run:run])
		mem, p = mem[run:], p.Add(stride)
		return x, true
	})
}

// scattered transfers each element of mem from or to a place of its own.
func scattered[T any](t *Transfers, kind fabric.Kind, mem []T, at func(k int) Ptr[T]) error {
	if kind == fabric.KindGet && len(mem) > 0 && t.w.Gathers(global.Node(at(0)), at(0).Offset()) {
		return gathered(t, mem, 1, at)
	}
	k := 0
	return t.transfer(kind, func() (x piece, more bool) {
		if k == len(mem) {
			return x, false
		}
		x = pieceOf(at(k), mem[k:k+1:k+1])
		k++
		return x, true
	})
}

// mostPlaces is how many elements of a gather are looked up at a time.
const mostPlaces = 64

// gathered reads runs of elements, run k of them at at(k), called once and in order, into mem,
// through the worker's cache: the others are fetched by few doorbells.
func gathered[T any](t *Transfers, mem []T, run int, at func(k int) Ptr[T]) error {
	k, size := 0, run*int(unsafe.Sizeof(*new(T)))
	for from := 0; from < len(mem); {
		t.places = t.places[:0]
		to := from
		for ; to < len(mem) && len(t.places) < mostPlaces; to += run {
			p := at(k)
			if err := t.w.Check("get", global.Node(p), p.Offset(), uint64(size)); err != nil {
				return err
			}
			if k++; !t.w.Remote(global.Node(p)) {
				if err := t.do(fabric.KindGet, pieceOf(p, mem[to:to+run]), fabric.Blocking); err != nil {
					return err
				}
				if len(t.places) == 0 {
					from = to + run
					continue
				}
				to += run
				break
			}
			t.places = append(t.places, cache.Place{Rank: p.Rank(), Off: p.Offset()})
		}
		if n := len(t.places); n > 0 {
			if err := t.w.Gather(t.places, size, global.Bytes(mem[from:from+n*run])); err != nil {
				return err
			}
		}
		from = to
	}
	return nil
}

func errUnequal(op string, mem, indices int) error {
	return fmt.Errorf("conduit: %s: %d elements of memory for %d indices: they must be equal", op, mem, indices)
}

func errRun(op string, run, n int) error {
	return fmt.Errorf("conduit: %s: runs of %d elements of %d: want 1 or more, and whole runs", op, run, n)
}

// checkRuns finds the mistake of n runs of so many elements, of which there is one, that begin at
// p, p.Add(stride), ...: all others lie between the first and the last.
func checkRuns[T any](t *Transfers, op string, p Ptr[T], n, run, stride int) error {
	size, _, err := heap.SizeOf[T](op, run)
	if err == nil {
		err = t.w.Check(op, global.Node(p), p.Offset(), size)
	}
	if err != nil || n == 1 {
		return err
	}
	hi, past := bits.Mul64(uint64(n-1), uint64(max(stride, -stride)))
	last := p.Add(int(past))
	if stride < 0 {
		last = p.Add(-int(past))
	}
	if hi != 0 || past > math.MaxInt {
		last = global.Of[T](global.Node(p), ^uint64(0)) // outside of every segment
	}
	return t.w.Check(op, global.Node(last), last.Offset(), size)
}

// checkIndexed finds the mistake of the elements p.Add(offs[k]) before they are transferred.
func checkIndexed[T any](t *Transfers, op string, p Ptr[T], offs []int) error {
	var v T
	size := uint64(unsafe.Sizeof(v))
	for _, k := range offs {
		at := p.Add(k)
		if t.w.Valid(global.Node(at), at.Offset(), size) {
			continue
		}
		if err := t.w.Check(op, global.Node(at), at.Offset(), size); err != nil {
			return err
		}
	}
	return nil
}
