package measure

import (
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

func collective(op string, size int64) plan.Point {
	return plan.Point{Kind: plan.Coll, Op: op, Size: size, Depth: 1, Lanes: 1, Iters: 4, Batch: 3, WarmupIters: 1}
}

var collectivePoints = []plan.Point{collective(plan.Barrier, 0), collective(plan.AllReduce, 8), collective(plan.AllReduce, 40<<10),
	collective(plan.AllToAll, 24), collective(plan.AllToAll, 20<<10), collective(plan.Bcast, 1), collective(plan.Bcast, 40<<10)}

func TestCollectivesAreMeasuredAndRight(t *testing.T) {
	for _, pt := range collectivePoints {
		ranks(t, planOf(pt), func(s *session) error {
			series, err := s.collPoint(pt)
			if err != nil || s.job.Rank() > 0 {
				return err
			}
			if r := series.Result; r.Errors != 0 || r.Count != 4 || r.OpsPerSample != 3 || r.Min <= 0 {
				return fmt.Errorf("%s size %d: %+v", pt.Op, pt.Size, r)
			}
			return nil
		})
	}
}

// A rank that only seems to take part leaves what is wrong on some rank.
func TestWrongCollectivesAreCounted(t *testing.T) {
	for _, pt := range collectivePoints {
		ranks(t, planOf(pt), func(s *session) error {
			c := &collectives{s: s, pt: pt}
			c.prepare()
			c.once = func() error { return nil }
			if s.job.Rank() > 0 { // rank 0 does not wait for it
				if err := s.job.Barrier(s.ctx); err != nil {
					return err
				}
			}
			err := c.check()
			if s.job.Rank() == 0 {
				if err := s.job.Barrier(s.ctx); err != nil {
					return err
				}
			}
			if err != nil {
				return err
			}
			all, err := gather(s, c.errors)
			if err == nil && all[0]+all[1] == 0 {
				err = fmt.Errorf("%s size %d: no error was found", pt.Op, pt.Size)
			}
			return err
		})
	}
}

// The time of a sample is that of the slowest rank.
func TestASampleIsOfTheSlowestRank(t *testing.T) {
	pt := collective(plan.Bcast, 8)
	pt.Iters = 1
	ranks(t, planOf(pt), func(s *session) error {
		c := &collectives{s: s, pt: pt}
		c.prepare()
		once := c.once
		c.once = func() error {
			if s.job.Rank() == 1 {
				begin := now()
				for now()-begin < 3e6 {
				}
			}
			return once()
		}
		err := c.stretch(command{N: 1})
		if err == nil && c.taken[0] < 9e6 {
			err = fmt.Errorf("%d ns on rank 0, rank 1 took 9 ms at least", c.taken[0])
		}
		return err
	})
}
