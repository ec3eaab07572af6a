package conduit

import (
	"context"
	"fmt"

	"github.com/ibconduit/conduit/internal/arrays"
)

// Distribution is how an array lies on the ranks: Block(k), Cyclic or Indefinite.
type Distribution = arrays.Distribution

// Distributions with a name.
const (
	Cyclic     = arrays.Cyclic     // element i at rank i mod ranks: Block(1)
	Indefinite = arrays.Indefinite // all elements at rank 0
)

// Block deals out blocks of k elements to the ranks in turn; k is 1 to 2^40.
// Block((n+ranks-1)/ranks) gives each rank one piece.
func Block(k int) Distribution { return arrays.Block(k) }

// IndexError says that elements are not of an array.
type IndexError = arrays.IndexError

// Array is a shared array with elements on all ranks of a job: element i is of the same rank
// everywhere. Any rank gets and puts any element through a worker of its own; what lies here is
// memory. Any number of goroutines may use an Array, until one closes it.
//
// Its methods are the ones of [arrays.Array]. Its place and size:
//
//	Len() int                            // elements; 0 once the array is closed
//	BlockLen() int                       // elements of a block: Len where the array is Indefinite
//	LocalLen(rank int) int               // elements of a rank; 0 where there is no such rank
//	At(i int) Ptr[T]                     // of element i; outside it panics with an *IndexError
//
// What lies at this rank, in the segment, which peers may write at any time; it is valid until the
// array, or the job, is closed:
//
//	Local() []T                          // all elements, in the order of their indices
//	Blocks() iter.Seq2[int, []T]         // the parts of Local, each with its first index
//	Mine() iter.Seq2[int, *T]            // each element with its index
//
// Transfers through a worker w, which return when they are complete, in one chain. A slice is one
// request for each rank while its blocks are small, else elements are one each. Errors: an
// *IndexError, before anything is transferred; else errors of [GetSlice] and [PutSlice], after
// which some may have been. A stride may be negative, or 0; where an index stands twice either
// value may stay:
//
//	GetSlice(w, dst []T, i int) error    // elements from i on
//	PutSlice(w, i int, src []T) error
//	GetIndexed(w, dst, idx []int) error  // element idx[k] into dst[k]
//	PutIndexed(w, idx []int, src) error
//	GetStrided(w, dst, i, stride) error  // elements i, i+stride, i+2*stride, ...
//	PutStrided(w, i, stride, src) error
//
// All ranks together:
//
//	Close(ctx) error                     // frees it when all have called it
//
// Until then they may use it. Close is bounded by ctx. Closing again, and closing one of a
// SharedTable, which lives as long as the job, is an error.
type Array[T any] = arrays.Array[T]

// NewArray makes an array of n elements. All ranks call it together with the same arguments, and
// all get it, or the same error; it may be used at once. Its memory is of the shared heaps: it
// takes as much at each rank as the rank with most elements has, but an array of rank 0 only takes
// none of other ranks. It is not cleared. One all-gather and one broadcast. Errors: as Alloc; a
// *MismatchError. A rank whose caches have writes that were not sent has that error beside the
// array: see [Job.Barrier].
func NewArray[T any](ctx context.Context, j *Job, n int, how Distribution) (a *Array[T], err error) {
	lost := unsent(j)
	if _, err = heapOf(j, "new array"); err == nil {
		a, err = arrays.New[T](ctx, arrayJob{j}, n, how)
	}
	return a, withLost(lost, err)
}

// Transfers makes a worker the way of the transfers of an [Array].
func (w *Worker) Transfers() *arrays.Transfers {
	if w.transfers == nil {
		w.transfers = arrays.NewTransfers(arrayJob{w.job}, arrayWorker{w}, w.job.networks.copyMax)
	}
	return w.transfers
}

// GetIndexed reads the element p.Add(offs[k]) into dst[k] for all k, in one chain, and returns when
// they are there. Errors are GetSlice's; then some may have been read.
func GetIndexed[T any](w *Worker, dst []T, p Ptr[T], offs []int) error {
	return arrays.GetIndexed(w.Transfers(), dst, p, offs)
}

// PutIndexed writes src[k] to p.Add(offs[k]) for all k, in one chain, and returns when they are
// there. Where one of the places is outside of the segment nothing is written; after other errors
// some may have been.
func PutIndexed[T any](w *Worker, p Ptr[T], offs []int, src []T) error {
	return arrays.PutIndexed(w.Transfers(), p, offs, src)
}

// GetStrided reads runs of run elements that begin at p, p.Add(stride), p.Add(2*stride), ... into
// dst, of a length that is a multiple of run, in one chain, and returns when they are there: a
// rectangle of a matrix, with run the width of one and stride the width of the other; a column with
// run 1.
func GetStrided[T any](w *Worker, dst []T, p Ptr[T], run, stride int) error {
	return arrays.GetStrided(w.Transfers(), dst, p, run, stride)
}

// PutStrided writes src to runs of run elements that begin at p, p.Add(stride), ...: the reverse of
// GetStrided. Where one of the runs is outside of the segment nothing is written; after other
// errors some may have been.
func PutStrided[T any](w *Worker, p Ptr[T], run, stride int, src []T) error {
	return arrays.PutStrided(w.Transfers(), p, run, stride, src)
}

// SharedTable is a set of shared arrays that jobs have from Join on. All ranks of a job have the
// same: register them in package variables or init functions. Its first job fixes it.
type SharedTable struct{ arrays *arrays.Table }

// DefaultShared is the table of the function Shared.
var DefaultShared = NewSharedTable()

// NewSharedTable returns an empty table.
func NewSharedTable() *SharedTable { return &SharedTable{arrays.NewTable()} }

// SharedArray is a shared array of n elements in every job of its table. Of has the array of a job.
type SharedArray[T any] struct {
	table *SharedTable
	entry *arrays.Static
}

// Shared registers an array in DefaultShared: var a = conduit.Shared[float64]("a", n,
// conduit.Block(64)). Its elements are 0 when a job begins. It panics if the name is taken or
// empty, if there are less than 1 elements or more than 2^40 bytes of them, if T holds Go pointers
// or has no bytes, or if a job has begun: these are mistakes in the program's text.
func Shared[T any](name string, n int, how Distribution) *SharedArray[T] {
	return SharedIn[T](DefaultShared, name, n, how)
}

// SharedIn is Shared with another table, for Config.Shared.
func SharedIn[T any](t *SharedTable, name string, n int, how Distribution) *SharedArray[T] {
	return &SharedArray[T]{table: t, entry: arrays.Register[T](t.arrays, name, n, how)}
}

// Of is the array in a job. It panics if the job has another table (Config.Shared).
func (s *SharedArray[T]) Of(j *Job) *Array[T] {
	if j.cfg.Shared != s.table {
		panic(fmt.Sprintf("conduit: shared array %q is not in the job's table (Config.Shared)", s.entry.Name()))
	}
	return j.heaps.statics[s.entry.Index()].(*Array[T])
}

// Len is the number of elements.
func (s *SharedArray[T]) Len() int { return s.entry.Len() }
