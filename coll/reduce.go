package coll

import (
	"context"
	"fmt"
)

// AllReduce replaces buf, on every member, by the members' buffers reduced with op, element by
// element, in the order of their ranks. Buffers are equally long on all members, op is the same:
// see Sum. The result has the same bits on all members, also for floats; on another number of
// members, for another length, or on another network parts may be put together in another order. It
// blocks until all members have called it, and fails as Team.Barrier does; buf then has any
// content. A *TypeError for a T with pointers, and one member's mistake alone, changes nothing.
func AllReduce[T any](ctx context.Context, on On, buf []T, op func(dst, src []T)) error {
	d, err := reduction(KindAllReduce, buf, op)
	if err != nil {
		return err
	}
	return do(ctx, on, KindAllReduce, 0, d, allReduce)
}

// StartAllReduce starts AllReduce, as Team.StartBarrier does a barrier.
func StartAllReduce[T any](ctx context.Context, on On, buf []T, op func(dst, src []T)) *Pending {
	d, err := reduction(KindAllReduce, buf, op)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindAllReduce, 0, d, allReduce)
}

// Reduce is AllReduce with a result at root only, a rank of the team. The others' buffers keep
// what they have; the call returns there when they may be changed, which may be before root has it
// all.
func Reduce[T any](ctx context.Context, on On, root int, buf []T, op func(dst, src []T)) error {
	d, err := reduction(KindReduce, buf, op)
	if err == nil {
		err = checkRoot(on, KindReduce, root)
	}
	if err != nil {
		return err
	}
	return do(ctx, on, KindReduce, root, d, reduceToRoot)
}

// StartReduce starts Reduce, as Team.StartBarrier does a barrier.
func StartReduce[T any](ctx context.Context, on On, root int, buf []T, op func(dst, src []T)) *Pending {
	d, err := reduction(KindReduce, buf, op)
	if err == nil {
		err = checkRoot(on, KindReduce, root)
	}
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindReduce, root, d, reduceToRoot)
}

// Scan replaces buf by the buffers of ranks 0 to this one's reduced, as AllReduce does all
// of them. Ranks put parts together in different orders, so that sums of floats may differ in their
// last bits from AllReduce's.
func Scan[T any](ctx context.Context, on On, buf []T, op func(dst, src []T)) error {
	d, err := reduction(KindScan, buf, op)
	if err != nil {
		return err
	}
	return do(ctx, on, KindScan, 0, d, scan)
}

// StartScan starts Scan, as Team.StartBarrier does a barrier.
func StartScan[T any](ctx context.Context, on On, buf []T, op func(dst, src []T)) *Pending {
	d, err := reduction(KindScan, buf, op)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindScan, 0, d, scan)
}

// ExScan is Scan without this rank's own buffer: ranks 0 to the one before it. Rank 0 keeps what it
// has.
func ExScan[T any](ctx context.Context, on On, buf []T, op func(dst, src []T)) error {
	d, err := reduction(KindExScan, buf, op)
	if err != nil {
		return err
	}
	return do(ctx, on, KindExScan, 0, d, exScan)
}

// StartExScan starts ExScan, as Team.StartBarrier does a barrier.
func StartExScan[T any](ctx context.Context, on On, buf []T, op func(dst, src []T)) *Pending {
	d, err := reduction(KindExScan, buf, op)
	if err != nil {
		return refused(on, err)
	}
	return start(ctx, on, KindExScan, 0, d, exScan)
}

func reduction[T any](k Kind, buf []T, op func(dst, src []T)) (*payload, error) {
	if op == nil {
		return nil, fmt.Errorf("coll: %v: the function is nil; Sum is one", k)
	}
	d, err := payloadOf[T](k)
	if err != nil {
		return nil, err
	}
	d.dst.mem = bytesOf(buf)
	d.each, d.fold = len(d.dst.mem), foldOf[T](op)
	return d, nil
}
