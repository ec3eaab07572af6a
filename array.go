package conduit

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"reflect"
	"unsafe"

	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/segment/dist"
	"github.com/ibconduit/conduit/segment/heap"
)

// Distribution is how an array lies on the ranks: Block(k), Cyclic or Indefinite.
type Distribution int

// Distributions with a name.
const (
	Cyclic     Distribution = 1  // element i at rank i mod ranks: Block(1)
	Indefinite Distribution = -1 // all elements at rank 0
)

// Block deals out blocks of k elements to the ranks in turn; k is 1 to 2^40.
// Block((n+ranks-1)/ranks) gives each rank one piece.
func Block(k int) Distribution { return Distribution(max(k, 0)) }

func (d Distribution) String() string {
	switch d {
	case Indefinite:
		return "indefinite"
	case Cyclic:
		return "cyclic"
	}
	return fmt.Sprintf("blocks of %d", int(d))
}

// layout is that of elements of size bytes.
func (d Distribution) layout(ranks int, size uint64) (dist.Layout, error) {
	block := uint64(d)
	switch {
	case d == Indefinite:
		block = dist.Indefinite
	case d < 1:
		return dist.Layout{}, fmt.Errorf("blocks of %d elements, want 1 or more, or Indefinite", int(d))
	}
	return dist.New(block, uint64(ranks), size)
}

// Array is a shared array whose elements lie on all ranks of a job: element i is of the same rank
// everywhere. Any rank gets and puts any element through a worker of its own; what lies here is
// memory. Any number of goroutines may use an Array, until one closes it.
type Array[T any] struct {
	layout dist.Layout
	n      uint64
	off    uint64 // of this array at each rank
	job    *Job
	block  Ptr[T] // to free; null: there is none
	closed bool
	static bool // it lives as long as the job
}

// NewArray makes an array of n elements. All ranks call it together with the same arguments, and
// all get it, or the same error; it may be used at once. Its memory is of the shared heaps: it
// takes as much at each rank as the rank with most elements has, but that of rank 0 only takes none
// of other ranks. It is not cleared. One all-gather and one broadcast. Errors: those of Alloc; a
// *MismatchError. A rank whose caches could not be released has that error beside the array: see
// [Job.Barrier].
func NewArray[T any](ctx context.Context, j *Job, n int, how Distribution) (*Array[T], error) {
	lost := releaseIdle(ctx, j)
	a, err := newArray[T](ctx, j, n, how)
	return a, withLost(lost, err)
}

func newArray[T any](ctx context.Context, j *Job, n int, how Distribution) (*Array[T], error) {
	const op = "new array"
	h, err := heapOf(j, op)
	if err != nil {
		return nil, err
	}
	elem := reflect.TypeFor[T]()
	mine := binary.LittleEndian.AppendUint64(nil, uint64(n))
	mine = binary.LittleEndian.AppendUint64(mine, uint64(how))
	mine = append(mine, elem.String()...)
	all, err := heapTeam{j}.AllGather(ctx, mine)
	if err != nil {
		return nil, fmt.Errorf("conduit: %s: %w", op, err)
	}
	for r, b := range all {
		if string(b) != string(all[0]) {
			return nil, &MismatchError{Op: op, Rank: r, Other: 0}
		}
	}
	if _, _, err := sizeOf[T](op, n); err != nil {
		return nil, err
	}
	l, err := how.layout(j.size, uint64(elem.Size()))
	if err != nil {
		return nil, fmt.Errorf("conduit: %s: %w", op, err)
	}
	bytes, ok := l.Bytes(uint64(n))
	if !ok {
		return nil, &SizeError{Op: op, Count: uint64(n), Size: uint64(elem.Size()), Overflow: true}
	}
	a := &Array[T]{job: j, layout: l, n: uint64(n)}
	blocks := uint64(j.size)
	if how == Indefinite || n <= int(how) {
		blocks = 1 // rank 0 has all
	}
	p, err := h.AllAlloc(ctx, blocks, bytes, lineAlign)
	if err != nil {
		return nil, err
	}
	a.block = pointer[T](j.heaps, p)
	a.off = a.block.Offset()
	return a, nil
}

// Close frees the array when all ranks have called it; until then they may use it. It is bounded by
// ctx. Closing again, and closing one of a SharedTable, which lives as long as the job, is an
// error.
func (a *Array[T]) Close(ctx context.Context) error {
	const op = "close"
	switch {
	case a.static:
		return fmt.Errorf("conduit: %s: a static shared array lives as long as its job", op)
	case a.closed:
		return errClosed(op, "array")
	}
	if a.block.IsNull() {
		a.closed = true
		return nil
	}
	lost, err := freeBy(ctx, a.job, "close of an array", true, (*heap.Heap).AllFree, a.block)
	if err == nil {
		a.closed, a.n = true, 0
	}
	return withLost(lost, err)
}

// Len is the number of elements; 0 once the array is closed.
func (a *Array[T]) Len() int { return int(a.n) }

// BlockLen is the number of elements of a block: Len for an array that is Indefinite.
func (a *Array[T]) BlockLen() int {
	if b := a.layout.Block(); b > 0 {
		return int(b)
	}
	return a.Len()
}

// LocalLen is how many elements a rank has; 0 for a rank that the job does not have.
func (a *Array[T]) LocalLen(rank int) int { return int(a.layout.Local(a.n, rank)) }

// Local is the elements of this rank as one slice, in the order of their indices, without a copy:
// its blocks lie one behind the other. It is memory of the segment: peers may write it at any time,
// and it is valid until the array, or the job, is closed.
func (a *Array[T]) Local() []T {
	return local[T](a.job, a.off, a.layout.Local(a.n, a.job.rank))
}

// Blocks are this rank's blocks, as parts of Local, each with the index of its first element.
func (a *Array[T]) Blocks() iter.Seq2[int, []T] {
	return func(yield func(int, []T) bool) {
		mem := a.Local()
		var v T
		a.layout.LocalRuns(a.n, a.job.rank, func(r dist.Run) bool {
			at := r.Off / uint64(unsafe.Sizeof(v))
			return yield(int(r.First), mem[at:at+r.Len:at+r.Len])
		})
	}
}

// Mine are this rank's elements with their indices, in order.
func (a *Array[T]) Mine() iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		for first, block := range a.Blocks() {
			for k := range block {
				if !yield(first+k, &block[k]) {
					return
				}
			}
		}
	}
}

// IndexError says that elements are not of an array.
type IndexError struct {
	Op       string
	First, N int // the elements that were asked for
	Len      int // of the array
}

func (e *IndexError) Error() string {
	if e.N == 1 {
		return fmt.Sprintf("conduit: %s: element %d of an array of %d elements", e.Op, e.First, e.Len)
	}
	return fmt.Sprintf("conduit: %s: %d elements from %d on of an array of %d elements", e.Op, e.N, e.First, e.Len)
}

func errUnequal(op string, mem, indices int) error {
	return fmt.Errorf("conduit: %s: %d elements of memory for %d indices: they must be equal", op, mem, indices)
}

func errRun(op string, run, n int) error {
	return fmt.Errorf("conduit: %s: runs of %d elements of %d: want 1 or more, and whole runs", op, run, n)
}

// checkCopy is what is wrong with a Copy before it begins.
func checkCopy[T any](w *Worker, dst, src Ptr[T], n int) error {
	size, _, err := sizeOf[T]("copy", n)
	if err == nil {
		_, err = w.check("copy", global.Node(dst), dst.Offset(), size)
	}
	if err == nil {
		_, err = w.check("copy", global.Node(src), src.Offset(), size)
	}
	return err
}

// checkRuns is what is wrong with n runs of so many elements, of which there is one, that begin at
// p, p.Add(stride), ...: all others lie between the first and the last.
func checkRuns[T any](w *Worker, op string, p Ptr[T], n, run, stride int) error {
	size, _, err := sizeOf[T](op, run)
	if err == nil {
		_, err = w.check(op, global.Node(p), p.Offset(), size)
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
		last = global.Of[T](global.Node(last), ^uint64(0)) // outside of every segment
	}
	_, err = w.check(op, global.Node(last), last.Offset(), size)
	return err
}

// checkIndexed is what is wrong with the elements p.Add(offs[k]) before they are transferred.
func checkIndexed[T any](w *Worker, op string, p Ptr[T], offs []int) error {
	var v T
	size := uint64(unsafe.Sizeof(v))
	for _, k := range offs {
		at := p.Add(k)
		if rt, _ := w.valid(global.Node(at), at.Offset(), size); rt != nil {
			continue
		}
		if _, err := w.check(op, global.Node(at), at.Offset(), size); err != nil {
			return err
		}
	}
	return nil
}

// outside panics for At.
func (a *Array[T]) outside(i int) {
	if a.closed {
		panic(errClosed("At", "array"))
	}
	panic(&IndexError{Op: "At", First: i, N: 1, Len: a.Len()})
}

// check is what is wrong with an operation of n elements from i on through w.
func (a *Array[T]) check(op string, w *Worker, i, n int) error {
	switch {
	case a.closed:
		return errClosed(op, "array")
	case w.job != a.job:
		return fmt.Errorf("conduit: %s: the worker and the array are of two jobs", op)
	case i < 0 || n < 0 || uint64(i) > a.n || uint64(n) > a.n-uint64(i):
		return &IndexError{Op: op, First: i, N: n, Len: a.Len()}
	}
	return nil
}
