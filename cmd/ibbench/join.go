package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// joinCmd is ibbench join.
type joinCmd struct {
	output
	Device  string        `short:"d" placeholder:"DEV" help:"Verbs device. Default: the best with an active port."`
	GID     string        `name:"gid" default:"auto" placeholder:"N|auto" help:"GID table index. Default: auto, RoCEv2 over IPv4 first."`
	Fabric  string        `default:"auto" placeholder:"F" help:"ibv, shm or auto; several, as ibv,shm, are measured one after the other. Default: auto."`
	Ranks   string        `short:"n" default:"2,4,8,16" placeholder:"LIST" help:"Numbers of ranks of the jobs, on this host, as 4 or 2..64 (doubling). Default: 2,4,8,16."`
	Rounds  int           `default:"7" placeholder:"N" help:"Starts of each number of ranks, in turns, after one that does not count. Default: 7."`
	Segment string        `default:"1M" placeholder:"BYTES" help:"Bytes of each rank's segment. Default: 1M."`
	Timeout time.Duration `default:"1m" placeholder:"D" help:"End a job that has not started and ended after this time. Default: 1m."`
	Assert  []string      `sep:"none" placeholder:"A" help:"Fail with exit code 1 unless this holds for every number of ranks: 'p50<1s'. Repeatable."`
	Quiet   bool          `short:"q" help:"No progress on standard error."`
}

func (c *joinCmd) run(ctx context.Context, io streams) error {
	points, fabrics, err := c.points()
	if err != nil {
		return usageError{err}
	}
	as, err := assertions(c.Assert, plan.Join)
	if err != nil {
		return usageError{err}
	}
	if err := io.alone(ctx, "join starts its ranks on this machine"); err != nil {
		return err
	}
	out, pct, err := c.writers(io)
	if err != nil || io.check {
		return err
	}
	p := &plan.Plan{Device: c.Device, GID: c.GID, Pct: percentiles(append(pct, 50), as)}
	r := &results{out: out, as: as, t: newTerminal(io.err, c.Quiet), rounds: make([][]*report.Series, len(points)), want: c.Rounds,
		merge: func(all []*report.Series) *report.Series { return report.Starts(all, p.Pct) }}
	for _, f := range fabrics {
		one := *p
		var why string
		if why, err = settle(&one, f); err != nil {
			break
		}
		r.t.line("jobs on this machine, fabric %s: %s", one.Fabric, why)
		if err = c.starts(ctx, &one, points, r); err != nil {
			break
		}
	}
	return r.end(err)
}

// points are one for each number of ranks.
func (c *joinCmd) points() (points []plan.Point, fabrics []string, err error) {
	counts, err := plan.Counts("ranks", c.Ranks, plan.MaxRanks)
	if err != nil {
		return nil, nil, fmt.Errorf("--ranks: %w", err)
	}
	segment, err := bytesFlag("--segment", c.Segment, "")
	switch {
	case err != nil:
		return nil, nil, err
	case c.Rounds < 1 || c.Rounds > maxRounds:
		return nil, nil, fmt.Errorf("--rounds %d: want 1 to %d", c.Rounds, maxRounds)
	case c.Timeout <= 0:
		return nil, nil, fmt.Errorf("--timeout %v: want a time above 0", c.Timeout)
	}
	for _, n := range counts {
		pt := plan.Point{Kind: plan.Join, Op: plan.Job, Size: int64(n), Segment: segment, Depth: 1, Lanes: 1, Chain: 1, Iters: int64(c.Rounds)}
		if err := (&plan.Plan{Fabric: "auto", Ranks: n, Points: []plan.Point{pt}}).Validate(); err != nil {
			return nil, nil, fmt.Errorf("--ranks %d, --segment %s: %w", n, c.Segment, err)
		}
		points = append(points, pt)
	}
	fabrics, err = network{Fabric: c.Fabric}.fabrics()
	return points, fabrics, err
}

// starts starts jobs of each number of ranks in turns.
func (c *joinCmd) starts(ctx context.Context, p *plan.Plan, points []plan.Point, r *results) error {
	if _, err := c.once(ctx, p, points[0]); err != nil { // reads the program from its disk
		return err
	}
	for n := range c.Rounds {
		for _, pt := range points {
			r.t.live(fmt.Sprintf("round %d of %d, %d ranks", n+1, c.Rounds, pt.Size))
			s, err := c.once(ctx, p, pt)
			if err != nil {
				return fmt.Errorf("%d ranks: %w", pt.Size, err)
			}
			if err := r.add(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// once starts one job, and waits for its end.
func (c *joinCmd) once(ctx context.Context, p *plan.Plan, pt plan.Point) (found *report.Series, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("not started and ended within %v", c.Timeout))
	defer cancel()
	one := *p
	one.Ranks, one.Points = int(pt.Size), []plan.Point{pt}
	one.Began = measure.Uptime()
	err = startRanks(ctx, &one, measure.Events{Progress: func(string) {}, Line: func(string) {}, Series: func(s *report.Series) error {
		found = s
		return nil
	}})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return found, err
}
