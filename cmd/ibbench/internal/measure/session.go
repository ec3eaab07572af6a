package measure

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// session is one rank's part in a job.
type session struct {
	ctx     context.Context
	plan    *plan.Plan
	out     Events
	job     *conduit.Job
	workers []*conduit.Worker
	env     *report.Env // on rank 0
	hosts   []string    // of the ranks
	clockNS float64
	stamps  []int64 // readings of one stretch
	local   []byte  // what this rank sends from or reads into at the point

	messages *messages
	sides    []*side            // of a plan of kernels
	batches  map[plan.Point]int // operations per sample that the first round of a point has chosen
}

// operations is how many of them make a sample of a point: as many as the plan has, or as its
// rounds before had, or as the time of one says.
func (s *session) operations(pt plan.Point, opNS float64) int {
	return cmp.Or(pt.Batch, s.batches[pt], BatchFor(max(opNS, 0.1), s.clockNS))
}

// keepBatch has all further rounds of a point take the same.
func (s *session) keepBatch(pt plan.Point, batch int) {
	if s.batches == nil {
		s.batches = make(map[plan.Point]int)
	}
	s.batches[pt] = batch
}

// agree ends all ranks where one of them has failed: the others would wait for the first point, and
// it for them to close.
func (s *session) agree(failed error) error {
	verdicts, err := conduit.AllGatherValue(s.ctx, s.job, failed != nil)
	switch {
	case failed != nil:
		return failed
	case err == nil && slices.Contains(verdicts, true):
		return ErrElsewhere
	}
	return err
}

func (s *session) progress(format string, args ...any) {
	if s.job.Rank() == 0 {
		s.out.Progress(fmt.Sprintf(format, args...))
	}
}

// command is what rank 0 broadcasts before each stretch.
type command struct {
	N        int64 // samples, or operations per lane; 0: the point is over
	Batch    int   // operations per sample
	Measured bool  // the warm-up is over
	SleepNS  int64 // what the stretch is expected to take
}

// lead announces a stretch.
func (s *session) lead(c command) error {
	_, err := conduit.BroadcastValue(s.ctx, s.job, 0, c)
	return err
}

// follow waits for a stretch to be announced. A rank without a part in it
// sleeps nearly until it is over.
func (s *session) follow(idle bool) (command, error) {
	c, err := conduit.BroadcastValue(s.ctx, s.job, 0, command{})
	if err == nil && idle && c.N > 0 {
		if d := time.Duration(c.SleepNS) * 9 / 10; d >= 2*time.Millisecond {
			select {
			case <-time.After(d):
			case <-s.ctx.Done():
				return c, context.Cause(s.ctx)
			}
		}
	}
	return c, err
}

// gather gives every rank what each contributes.
func gather[T any](s *session, mine T) ([]T, error) {
	b, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	blobs, err := s.job.AllGather(s.ctx, b)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(blobs))
	for r := range blobs {
		if err := json.Unmarshal(blobs[r], &out[r]); err != nil {
			return nil, fmt.Errorf("outcome of rank %d: %w", r, err)
		}
	}
	return out, nil
}
