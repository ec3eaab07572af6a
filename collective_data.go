package conduit

import (
	"context"
	"unsafe"

	"github.com/ibconduit/conduit/coll"
)

// AllReduceValue gives every rank the ranks' v reduced with op, coll.Sum for instance. T holds no
// pointers. It fails as Barrier does. More than a value go through AllReduce, which says more.
func AllReduceValue[T any](ctx context.Context, j *Job, v T, op func(dst, src []T)) (T, error) {
	if !pointerFree[T]() {
		return v, typeError[T]()
	}
	lost := unsent(j)
	err := j.collective(coll.AllReduce(ctx, j.Team(), unsafe.Slice(&v, 1), op))
	return v, withLost(lost, err)
}

// AllReduce replaces every rank's buf by the ranks' buffers reduced with op, element by element:
// coll.AllReduce on the team of all ranks. The other operations on data are used as it is, on
// Job.Team(): coll.Reduce, Scan, ExScan, AllGather, Scatter, Gather, those with counts
// (coll.AllToAllV), and those that are started (coll.StartAllReduce). They do not mind
// writes that were not sent, see "Fences".
func AllReduce[T any](ctx context.Context, j *Job, buf []T, op func(dst, src []T)) error {
	if !pointerFree[T]() {
		return typeError[T]()
	}
	lost := unsent(j)
	return withLost(lost, j.collective(coll.AllReduce(ctx, j.Team(), buf, op)))
}

// AllToAll gives rank i block i of every rank's src: coll.AllToAll on the team of all ranks.
func AllToAll[T any](ctx context.Context, j *Job, dst, src []T) error {
	if !pointerFree[T]() {
		return typeError[T]()
	}
	lost := unsent(j)
	return withLost(lost, j.collective(coll.AllToAll(ctx, j.Team(), dst, src)))
}
