package coll

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/fabric"
)

var errClosing = fmt.Errorf("the job is closing: %w", os.ErrClosed)

// Barrier blocks until every member has called it.
func (t *Team) Barrier(ctx context.Context) error { return t.run(ctx, barrier("")) }

// NamedBarrier is Barrier, of which all members must give the same name. Members in a barrier of
// another name get a *MismatchError.
func (t *Team) NamedBarrier(ctx context.Context, name string) error {
	return t.run(ctx, barrier(name))
}

// Broadcast copies root's buf into every member's buf. root is a rank of the team. buf is as long
// on all members: one with another length gets a *LengthError and keeps its buf, the others have
// theirs, and the team goes on. On root it returns when buf may be changed, which is before the
// others have it.
func (t *Team) Broadcast(ctx context.Context, root int, buf []byte) error {
	return t.broadcast(root, buf, nil, func(c call) error { return t.run(ctx, c) })
}

// AllGather returns every member's blob, by rank in the team. Lengths may differ. Together they
// have at most 4 GiB; with more it fails on every member, and the team goes on.
func (t *Team) AllGather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	var tooMuch error
	err = t.run(ctx, allGather(mine, nil, &all, &tooMuch))
	return all, errors.Join(err, tooMuch)
}

// Through is a team whose operations go through lanes that the caller uses, such as a worker's, and
// wait with them. What remains in flight there when an operation has ended is complete, or will be
// without an error that the lanes report.
type Through struct {
	t     *Team
	lanes env.Lanes
}

// Through returns the team with other lanes. A copy is as good; there is nothing to close.
func (t *Team) Through(lanes env.Lanes) Through { return Through{t, lanes} }

// Barrier is Team.Barrier.
func (x Through) Barrier(ctx context.Context) error { return x.NamedBarrier(ctx, "") }

// NamedBarrier is Team.NamedBarrier.
func (x Through) NamedBarrier(ctx context.Context, name string) error {
	c := barrier(name)
	c.lanes = x.lanes
	return x.t.run(ctx, c)
}

// Broadcast is Team.Broadcast.
func (x Through) Broadcast(ctx context.Context, root int, buf []byte) error {
	return x.t.broadcast(root, buf, x.lanes, func(c call) error { return x.t.run(ctx, c) })
}

// AllGather is Team.AllGather.
func (x Through) AllGather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	var tooMuch error
	err = x.t.run(ctx, allGather(mine, x.lanes, &all, &tooMuch))
	return all, errors.Join(err, tooMuch)
}

func barrier(name string) call { return call{kind: KindBarrier, name: name, do: (*op).meet} }

// broadcast checks and hands the operation to run. The error that only this member has breaks
// nothing.
func (t *Team) broadcast(root int, buf []byte, lanes env.Lanes, run func(call) error) error {
	if root < 0 || root >= t.n {
		return fmt.Errorf("coll: %w", &fabric.RankError{Op: KindBroadcast.String(), Rank: root, Size: t.n})
	}
	var total uint64
	err := run(call{kind: KindBroadcast, root: root, lanes: lanes, do: func(o *op) (err error) {
		total, err = o.broadcast(buf)
		return err
	}})
	if err == nil && total != uint64(len(buf)) {
		err = fmt.Errorf("coll: %w", &LengthError{Op: KindBroadcast.String(), Rank: t.me, Len: uint64(len(buf)), Root: root, RootLen: total})
	}
	return err
}

// allGather is the operation. tooMuch is the error that breaks nothing, as all members have it.
func allGather(mine []byte, lanes env.Lanes, all *[][]byte, tooMuch *error) call {
	return call{kind: KindAllGather, lanes: lanes, do: func(o *op) (err error) {
		*all, err = o.gather(mine)
		if v := (*volumeError)(nil); errors.As(err, &v) {
			*tooMuch = fmt.Errorf("coll: %v: %w", KindAllGather, err)
			return nil
		}
		return err
	}}
}
