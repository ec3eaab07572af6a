package jobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/coll"
)

// teamsProgram: rank 1 is killed, which breaks the teams that it is in and no other. The live ranks
// go on with what Shrink returns. The error is that of the team of all.
func teamsProgram(ctx context.Context, j *conduit.Job) error {
	all := j.Team()
	live, err := all.Split(ctx, j.Rank()%2, 0) // ranks 0 and 2, and rank 1
	if err != nil {
		return err
	}
	upper, err := all.Split(ctx, min(j.Rank(), 1), -j.Rank()) // rank 0, and ranks 2 and 1
	if err != nil {
		return err
	}
	if err := errors.Join(live.Barrier(ctx), upper.Barrier(ctx), all.Barrier(ctx)); err != nil {
		return err
	}
	if j.Rank() == 1 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	lost := all.Barrier(ctx)
	var b *coll.BrokenError
	if !errors.As(lost, &b) || b.Reason != coll.Died || b.Rank != 1 || !errors.Is(j.Barrier(ctx), conduit.ErrCollective) {
		return fmt.Errorf("the team of all: %v", lost)
	}
	if err := upper.Barrier(ctx); (j.Rank() == 0) != (err == nil) {
		return fmt.Errorf("rank 0, or ranks 2 and 1: %v", err)
	}
	after, err := all.Shrink(ctx)
	if err != nil {
		return err
	}
	for _, t := range []*coll.Team{live, after} {
		if t.Size() != 2 || t.Member(1) != 2 {
			return fmt.Errorf("%v has rank %d", t, t.Member(1))
		}
		for i := range 50 {
			buf, want := make([]byte, 3000), bytes.Repeat([]byte{byte(i + 1)}, 3000)
			if t.Rank() == i%2 {
				copy(buf, want)
			}
			if err := errors.Join(t.Broadcast(ctx, i%2, buf), t.Barrier(ctx)); err != nil || !bytes.Equal(buf, want) {
				return fmt.Errorf("broadcast %d: %w", i, err)
			}
		}
		blobs, err := t.AllGather(ctx, []byte(fmt.Sprint(j.Rank())))
		if err != nil || string(bytes.Join(blobs, nil)) != "02" {
			return fmt.Errorf("%q: %w", blobs, err)
		}
		if err := t.Free(ctx); err != nil {
			return err
		}
	}
	return lost
}
