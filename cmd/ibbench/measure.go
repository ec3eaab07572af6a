package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
)

// sweep measures all points several times, one after the other, and reports a series for each of
// them.
func (c *swept) sweep(ctx context.Context, io streams, kind, server string, points []plan.Point) error {
	if c.Rounds < 1 || c.Rounds > maxRounds || c.Rounds*len(points) > maxPoints {
		return usageError{fmt.Errorf("--rounds %d of %s: want 1 to %d rounds, and %d measurements at most", c.Rounds,
			errtext.Count(len(points), "point"), maxRounds, maxPoints)}
	}
	c.server, c.points, c.rounds = server, len(points), c.Rounds
	return c.measure(ctx, io, kind, slices.Repeat(points, c.Rounds))
}

// Limits of --rounds.
const (
	maxRounds = 1000
	maxPoints = 100000
)

// measure runs the points on a fabric and reports them.
func (c *common) measure(ctx context.Context, io streams, kind string, points []plan.Point) error {
	as, err := assertions(c.Assert, kind)
	if err != nil {
		return usageError{err}
	}
	p, err := c.plan(points)
	if err != nil {
		return usageError{err}
	}
	p.Metrics = c.Metrics
	var boot bootstrap.Bootstrap
	if c.server != "" {
		p.Ranks = 2
	} else if boot, err = launched(ctx); err != nil {
		return err
	}
	if boot != nil {
		p.Ranks = boot.Size()
		if err := p.Validate(); err != nil {
			if err = (usageError{err}); boot.Rank() > 0 {
				err = codeError(exitUsage) // rank 0 says the same
			}
			return errors.Join(boot.Close(), err)
		}
	}
	if boot != nil && boot.Rank() > 0 {
		p.Pct = []float64{50}
		return quietly(measure.Rank(ctx, boot, p, measure.Events{}))
	}
	out, pct, err := c.writers(io)
	if err != nil {
		return err
	}
	p.Pct = percentiles(append(pct, 50, 99), as) // those of rounds, which compare reads
	r := &results{out: out, as: as, t: newTerminal(io.err, c.Quiet), rounds: make([][]*report.Series, c.points),
		want: c.rounds}
	events := measure.Events{Progress: r.t.live, Line: func(text string) { r.t.line("%s", text) }, Series: r.add}
	switch {
	case c.server != "":
		err = ask(ctx, c.server, p, events)
	case boot != nil:
		err = quietly(measure.Rank(ctx, boot, p, events))
	default:
		err = start(ctx, p, r.t, events)
	}
	return r.end(err)
}

// results are where series go, and whether one has failed.
type results struct {
	out    report.Tee
	as     []plan.Assertion
	each   func(*report.Series) // called before a series is reported; nil: nothing
	t      *terminal
	failed bool

	rounds [][]*report.Series // by point, where each is measured several times
	want   int                // rounds
	came   int                // series
}

// add reports a series, or keeps it until all rounds of its point are there.
func (r *results) add(s *report.Series) error {
	if len(r.rounds) == 0 {
		return r.report(s)
	}
	at := &r.rounds[r.came%len(r.rounds)]
	*at = append(*at, s)
	r.came++
	if len(*at) < r.want {
		return nil
	}
	all := *at
	*at = nil
	return r.report(report.Merge(all))
}

func (r *results) report(s *report.Series) error {
	if r.each != nil {
		r.each(s)
	}
	s.Check(r.as)
	r.failed = r.failed || s.Failed()
	r.t.clear()
	return r.out.Add(s)
}

// end writes all results, also before a failure.
func (r *results) end(err error) error {
	r.t.clear()
	for _, rounds := range r.rounds { // of points that were not finished
		if len(rounds) > 0 {
			err = errors.Join(err, r.report(report.Merge(rounds)))
		}
	}
	if err = errors.Join(err, r.out.Close()); err != nil {
		return err
	}
	if r.failed {
		return codeError(exitFailed)
	}
	return nil
}

// launched joins the job of a launcher; it returns nil where there is none.
func launched(ctx context.Context) (bootstrap.Bootstrap, error) {
	boot, err := bootstrap.New(ctx, bootstrap.Options{Log: slog.New(slog.DiscardHandler)})
	if errors.Is(err, bootstrap.ErrAlone) {
		return nil, nil // in the shell of an allocation: ibbench starts the second rank itself
	}
	if err != nil {
		return nil, err
	}
	if boot.Size() > 1 {
		return boot, nil
	}
	return nil, boot.Close()
}

// alone refuses a launcher: what a command says that it does has no use for its ranks.
func (io streams) alone(ctx context.Context, why string) error {
	boot, err := launched(ctx)
	if boot == nil || err != nil {
		return err
	}
	return errors.Join(usageError{fmt.Errorf("%s; run it without a launcher", why)}, boot.Close())
}

// start measures with ranks of our own on this machine.
func start(ctx context.Context, p *plan.Plan, t *terminal, events measure.Events) error {
	why, err := settle(p)
	if err != nil {
		return err
	}
	t.line("%d ranks on this machine, fabric %s: %s", p.Ranks, p.Fabric, why)
	return startRanks(ctx, p, events)
}

// settle turns the fabric of the plan into one that this machine has, and says why it is that one.
func settle(p *plan.Plan) (why string, err error) {
	if p.Fabric == "shm" {
		return "asked for", nil
	}
	d, chosen, err := machine.FindDevice(p.Device, p.GID)
	switch {
	case err == nil:
		p.Fabric, p.Device = "ibv", d.Name
		return fmt.Sprintf("device %s port %d, GID %d %s %s, MTU %d (%s)", d.Name, d.Port, d.GIDIndex, d.GID, d.GIDType,
			d.MTU, chosen), nil
	case p.Fabric == "ibv" || p.Device != "":
		return "", fmt.Errorf("fabric ibv: %w; ibbench doctor says what to do, and --fabric shm measures without RDMA", err)
	}
	p.Fabric = "shm"
	return fmt.Sprintf("no usable RDMA device (%v); ibbench doctor says what to do", err), nil
}
