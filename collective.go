package conduit

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
)

// Collectives are sizes of operations on data, equal on all ranks: coll.Config has the same fields,
// with their ranges and defaults. Join refuses values out of range; of Short or Long that differ
// between ranks the first operation that they matter to says so, with a *coll.MismatchError.
type Collectives struct {
	WindowBytes int // of memory for long data, a team
	Short       int // bytes of all members' data up to which the least number of messages is taken
	Long        int // bytes of a member's share from which a reduction is divided among the members
}

// coll is the part of the teams' configuration that their memory follows from.
func (c *Config) coll() coll.Config {
	return coll.Config{Slots: c.Teams, WindowBytes: c.Collectives.WindowBytes, Short: c.Collectives.Short,
		Long: c.Collectives.Long}
}

// collConfig is the configuration of the teams.
func collConfig(j *Job) coll.Config {
	c := j.cfg.coll()
	c.Learned = j.learned
	if r := knowsAll(j); r != nil {
		c.Watch = func(o coll.Operation) func() { return meeting(r, o) }
	}
	c.Check = func() error {
		if j.cfg.Handlers.InHandler() {
			return am.ErrInHandler
		}
		return nil
	}
	return c
}

// collNeeds are the needs of package coll.
func collNeeds(c *Config) needs {
	region := func(ranks int) (env.Spec, error) { return coll.Spec(ranks, c.coll()) }
	return needs{sized: []func(int) (env.Spec, error){region}, lanes: 1}
}

// Team is the team of all ranks, with which Barrier, Broadcast and AllGather work. Its Split makes
// others, its Shrink one without the dead ranks when it is broken. Its errors are package
// coll's.
func (j *Job) Team() *coll.Team { return j.coll.All() }

// Barrier blocks until every rank has called it. It does not complete a worker's implicit
// operations: Flush them first where that matters. Where a worker of this rank has a cache with
// writes that were not sent, it returns an error that matches [ErrUnsent] when all have met, as do
// the other collective operations of a job; [Worker.Barrier] sends them.
//
// A rank's death, or the end of ctx while this rank takes part, breaks the team of all ranks
// (Job.Team): this operation and all later ones of that team fail with an error that matches
// [ErrCollective], on every rank, and says which rank's operation was given up, or which rank is
// dead; then it matches [ErrPeerDown] where that is known. The job goes on, and so do teams of
// other ranks; the live ranks can go on with the team that Job.Team().Shrink returns.
func (j *Job) Barrier(ctx context.Context) error {
	lost := unsent(j)
	return withLost(lost, j.collective(j.Team().Barrier(ctx)))
}

// Broadcast copies root's buf into every rank's buf, which must be equally long
// everywhere. A rank with a buf of another
// length gets a *LengthError; its buf is unchanged, the others have theirs, and the job goes on.
// It fails as Barrier does.
// It is no barrier: a rank may return before another has called it, as of MPI_Bcast.
func (j *Job) Broadcast(ctx context.Context, root int, buf []byte) error {
	lost := unsent(j)
	return withLost(lost, j.collective(j.Team().Broadcast(ctx, root, buf)))
}

// AllGather returns every rank's blob, indexed by rank. Lengths may differ. Together they have at
// most 4 GiB; with more it fails on every rank, and the job goes on. It fails as Barrier does.
func (j *Job) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	lost := unsent(j)
	all, err := j.Team().AllGather(ctx, mine)
	return all, withLost(lost, j.collective(err))
}

// withLost joins the error of writes that were not sent, and the error of a collective operation.
func withLost(lost, err error) error {
	if lost == nil {
		return err
	}
	return errors.Join(lost, err)
}

// collective adds to the error of an operation that the job was cancelled, if so.
func (j *Job) collective(err error) error {
	if err != nil && j.life.Err() != nil {
		return errors.Join(errCancelled(j.life), err)
	}
	return err
}

// errTurn is why Close does not meet the others.
var errTurn = errors.New("waiting for another collective operation of this rank")

// last is the barrier of Close. Unlike the others it does not mind that a team is broken.
func (j *Job) last(ctx context.Context) error {
	if err := j.coll.Quiesce(ctx); err != nil {
		return fmt.Errorf("%w: %w", errTurn, err)
	}
	if err := j.members.first("close"); err != nil {
		return err
	}
	return j.boot.Barrier(ctx)
}

// BroadcastValue gives every rank root's v.
func BroadcastValue[T any](ctx context.Context, j *Job, root int, v T) (T, error) {
	if !pointerFree[T]() {
		return v, typeError[T]()
	}
	err := j.Broadcast(ctx, root, bytesOf(unsafe.Slice(&v, 1)))
	return v, err
}

// AllGatherValue returns every rank's v, indexed by rank. A rank whose caches have writes that
// were not sent has that error beside them.
func AllGatherValue[T any](ctx context.Context, j *Job, v T) ([]T, error) {
	if !pointerFree[T]() {
		return nil, typeError[T]()
	}
	blobs, err := j.AllGather(ctx, bytesOf(unsafe.Slice(&v, 1)))
	if blobs == nil {
		return nil, err
	}
	all := make([]T, j.size)
	for r, b := range blobs {
		if len(b) != int(unsafe.Sizeof(v)) {
			return nil, errors.Join(err, fmt.Errorf("conduit: all-gather: rank %d gave %d bytes where this rank gave %d", r,
				len(b), unsafe.Sizeof(v)))
		}
		copy(bytesOf(all[r:r+1]), b)
	}
	return all, err
}
