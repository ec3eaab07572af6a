package measure

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// Uptime is a reading in ns of the clock that all processes of a host share.
func Uptime() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // fails for a clock that does not exist
	return t.Nano()
}

// steps are readings of Uptime at the end of each step of a rank's start.
type steps struct {
	Born, Met, Joined, Through int64
}

// Start is one rank's part in a job that is started to see how long that takes. born is Uptime when
// the process began. Only rank 0 calls back.
func Start(ctx context.Context, p *plan.Plan, born int64, out Events) (rank int, err error) {
	mine := steps{Born: born}
	boot, err := bootstrap.New(ctx, bootstrap.Options{})
	if err != nil {
		return 0, err
	}
	rank, mine.Met = boot.Rank(), Uptime()
	pt, launcher := p.Points[0], boot.Name()
	job, err := conduit.Join(ctx, conduit.Config{
		Bootstrap: boot, SegmentSize: pt.Segment, Workers: 1, Fabric: p.Fabric, Device: p.Device, GID: p.GID,
	})
	if err != nil {
		return rank, err
	}
	s := &session{ctx: ctx, plan: p, out: out, job: job}
	defer func() { err = errors.Join(err, s.close(err)) }()
	mine.Joined = Uptime()
	if err := job.Barrier(ctx); err != nil {
		return rank, err
	}
	mine.Through = Uptime()
	all, err := gather(s, mine)
	if err != nil {
		return rank, err
	}
	facts, err := gather(s, machine.Local())
	if err != nil || rank != 0 {
		return rank, err
	}
	if err := s.describe(newEnv(facts, launcher)); err != nil {
		return rank, err
	}
	series := started(p.Began, all)
	series.Describe(pt, s.env)
	return rank, out.Series(series)
}

// started is one start: a step ends when it has on the last rank.
func started(began int64, all []steps) *report.Series {
	var last steps
	for _, r := range all {
		last.Born, last.Met = max(last.Born, r.Born), max(last.Met, r.Met)
		last.Joined, last.Through = max(last.Joined, r.Joined), max(last.Through, r.Through)
	}
	total := float64(last.Through - began)
	s := &report.Series{Result: report.Result{Unit: "ns", Count: 1, Min: total, Max: total, Mean: total, P: map[string]float64{"50": total}}}
	s.Set("join.launch", float64(last.Born-began))
	s.Set("join.bootstrap", float64(last.Met-last.Born))
	s.Set("join.join", float64(last.Joined-last.Met))
	s.Set("join.barrier", float64(last.Through-last.Joined))
	return s
}
