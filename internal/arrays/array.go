// Package arrays has the shared arrays of a job, with elements on all ranks, and the transfers
// that are many pieces: slices of such arrays, strided and indexed elements.
//
// [New] takes memory of the shared heaps, a [Table] has static arrays, which lie in front of them;
// [Transfers] carry out what goes through a worker. The package is a part of a job: it sees a [Job]
// and a [Worker], and package conduit has its types under their names there.
package arrays

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"os"
	"reflect"
	"unsafe"

	"github.com/ibconduit/conduit/internal/dist"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/heap"
)

// Ptr is a global pointer.
type Ptr[T any] = global.Ptr[T]

// Job is one rank of a job. Values are equal if they are of the same rank of the same job.
type Job interface {
	Rank() int
	Size() int
	Segment() []byte // this rank's user region, from which offsets count

	// AllGather, AllAlloc and AllFree are called by all ranks together.
	AllGather(ctx context.Context, mine []byte) ([][]byte, error)
	// AllAlloc takes count blocks of size bytes of the shared heaps, the first of which lies at off of
	// rank 0. Of 0 bytes there is no block.
	AllAlloc(ctx context.Context, count, size uint64) (off uint64, ok bool, err error)
	// AllFree frees them. They may be free with an error too.
	AllFree(ctx context.Context, off uint64) (free bool, err error)
}

// Distribution is how an array lies on the ranks: Block(k), Cyclic or Indefinite.
type Distribution int

// Distributions with a name.
const (
	Cyclic     Distribution = 1  // element i at rank i mod ranks: Block(1)
	Indefinite Distribution = -1 // all elements at rank 0
)

// Block deals out blocks of k elements to the ranks in turn; k is 1 to 2^40.
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

// layout is the layout of elements of size bytes.
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

// Array is a shared array with elements on all ranks of a job: element i is of the same rank
// everywhere. Any rank gets and puts any element through a worker of its own; what lies here is
// memory. Any number of goroutines may use an Array, until one closes it.
type Array[T any] struct {
	layout dist.Layout
	n      uint64
	off    uint64 // of this array at each rank
	job    Job
	block  bool // there is one to free
	closed bool
	static bool // it lives as long as the job
}

// New makes an array of n elements. All ranks call it together with the same arguments, and all get
// it, or the same error.
func New[T any](ctx context.Context, j Job, n int, how Distribution) (*Array[T], error) {
	const op = "new array"
	elem := reflect.TypeFor[T]()
	mine := binary.LittleEndian.AppendUint64(nil, uint64(n))
	mine = binary.LittleEndian.AppendUint64(mine, uint64(how))
	mine = append(mine, elem.String()...)
	all, err := j.AllGather(ctx, mine)
	if err != nil {
		return nil, fmt.Errorf("conduit: %s: %w", op, err)
	}
	for r, b := range all {
		if string(b) != string(all[0]) {
			return nil, &heap.MismatchError{Op: op, Rank: r, Other: 0}
		}
	}
	if _, _, err := heap.SizeOf[T](op, n); err != nil {
		return nil, err
	}
	l, err := how.layout(j.Size(), uint64(elem.Size()))
	if err != nil {
		return nil, fmt.Errorf("conduit: %s: %w", op, err)
	}
	bytes, ok := l.Bytes(uint64(n))
	if !ok {
		return nil, &heap.SizeError{Op: op, Count: uint64(n), Size: uint64(elem.Size()), Overflow: true}
	}
	a := &Array[T]{job: j, layout: l, n: uint64(n)}
	blocks := uint64(j.Size())
	if how == Indefinite || n <= int(how) {
		blocks = 1 // rank 0 has all
	}
	if a.off, a.block, err = j.AllAlloc(ctx, blocks, bytes); err != nil {
		return nil, err
	}
	return a, nil
}

// Close frees the array when all ranks have called it; until then they may use it. It is bounded by
// ctx. Closing again, and closing one of a [Table], which lives as long as the job, is an error.
func (a *Array[T]) Close(ctx context.Context) error {
	const op = "close"
	switch {
	case a.static:
		return fmt.Errorf("conduit: %s: a static shared array lives as long as its job", op)
	case a.closed:
		return errClosed(op)
	}
	if !a.block {
		a.closed = true
		return nil
	}
	free, err := a.job.AllFree(ctx, a.off)
	if free {
		a.closed, a.n = true, 0
	}
	return err
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
	n := a.layout.Local(a.n, a.job.Rank())
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&a.job.Segment()[a.off])), n)
}

// Blocks are this rank's blocks, as parts of Local, each with the index of its first element.
func (a *Array[T]) Blocks() iter.Seq2[int, []T] {
	return func(yield func(int, []T) bool) {
		mem := a.Local()
		var v T
		a.layout.LocalRuns(a.n, a.job.Rank(), func(r dist.Run) bool {
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

func errClosed(op string) error {
	return fmt.Errorf("conduit: %s on a closed array: %w", op, os.ErrClosed)
}

// outside panics for At.
func (a *Array[T]) outside(i int) {
	if a.closed {
		panic(errClosed("At"))
	}
	panic(&IndexError{Op: "At", First: i, N: 1, Len: a.Len()})
}

// check finds the mistake of an operation of n elements from i on.
func (a *Array[T]) check(op string, t *Transfers, i, n int) error {
	switch {
	case a.closed:
		return errClosed(op)
	case t.job != a.job:
		return fmt.Errorf("conduit: %s: the worker and the array are of two jobs", op)
	case i < 0 || n < 0 || uint64(i) > a.n || uint64(n) > a.n-uint64(i):
		return &IndexError{Op: op, First: i, N: n, Len: a.Len()}
	}
	return nil
}
