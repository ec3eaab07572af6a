package coll

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	if err := checkRoot(t, KindBroadcast, root); err != nil {
		return err
	}
	return t.run(ctx, broadcast(root, buf))
}

// AllGather returns every member's blob, by rank in the team. Lengths may differ. Together they
// have at most 4 GiB; with more it fails on every member, and the team goes on.
func (t *Team) AllGather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	err = t.run(ctx, allGather(mine, &all))
	return all, err
}

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
	if err := checkRoot(x.t, KindBroadcast, root); err != nil {
		return err
	}
	c := broadcast(root, buf)
	c.lanes = x.lanes
	return x.t.run(ctx, c)
}

// AllGather is Team.AllGather.
func (x Through) AllGather(ctx context.Context, mine []byte) (all [][]byte, err error) {
	c := allGather(mine, &all)
	c.lanes = x.lanes
	err = x.t.run(ctx, c)
	return all, err
}

func barrier(name string) *call {
	return &call{kind: KindBarrier, name: name, do: func(o *op) error { return o.rails.meet() }}
}

// broadcast is the operation.
func broadcast(root int, buf []byte) *call {
	return &call{kind: KindBroadcast, root: root, buf: buf, do: (*op).broadcast}
}

// allGather is the operation.
func allGather(mine []byte, all *[][]byte) *call {
	return &call{kind: KindAllGather, do: func(o *op) (err error) {
		*all, err = o.gather(mine)
		if v := (*volumeError)(nil); errors.As(err, &v) { // which all members find
			o.verdict, err = fmt.Errorf("coll: %v: %w", KindAllGather, err), nil
		}
		return err
	}}
}
