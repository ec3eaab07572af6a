package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
)

// Ours measures all points once, with ranks of ours, and returns a series for each.
type Ours func(ctx context.Context, p *plan.Plan) ([]*report.Series, error)

// Comparison says what to compare.
type Comparison struct {
	Plan    *plan.Plan // its points have an equivalent in the peer
	Peer    string     // Perftest
	Port    int        // of the device
	GID     int        // index
	Rounds  int        // that must count
	Until   Until      // instead of Rounds, where its Budget is not 0
	UCX     bool       // measure with UCX too
	Timeout time.Duration
	Extra   []string // further arguments of the peer's tools
	Ours    Ours
	Say     func(text string) // what goes on
}

// contest is one point and its counterpart.
type contest struct {
	point  plan.Point
	of     string // the counterpart's program
	tool   string
	pair   Pair
	times  float64 // what the tool's figures are multiplied by, to be of our definition
	rounds []report.Round
	series []*report.Series // ours, of each round
	theirs *Output          // the last one; all have the same settings
	wrong  int64            // checked operations of theirs that went wrong
	ucx    *contest         // beside it; nil: none
	beside bool             // it is such a one
	silent bool             // only there to tell whether the machine is quiet
}

// Run compares, and returns a series for each point. With an error these are of the rounds that
// were finished before, if there are any that count.
func (c *Comparison) Run(ctx context.Context) ([]*report.Series, error) {
	all, err := c.contests()
	if err != nil {
		return nil, err
	}
	var quiet *contest
	if i := slices.IndexFunc(all, func(x *contest) bool { return c.judges(x.point) }); i >= 0 {
		quiet = all[i]
	}
	kept, err := c.rounds(ctx, all, quiet)
	if count(kept) == 0 {
		return nil, cmp.Or(err, errors.New("no round can be used: other programs take the processors; try again on a quiet machine"))
	}
	ctx = context.WithoutCancel(ctx) // after an interrupt, too
	version, of := peers[c.Peer].version(ctx, all[0].pair.Path), ""
	if c.UCX {
		of = ucxVersion(ctx, "")
	}
	var out []*report.Series
	for _, x := range all {
		if x.silent {
			continue
		}
		s := x.report(kept, version)
		if x.ucx != nil {
			beside := x.ucx.peer(kept, of, "ns")
			beside.Ratio = ratios(beside.Rounds, func(f report.Figures) float64 { return f.P50 })
			s.Peers = append(s.Peers, beside)
		}
		out = append(out, s)
	}
	return out, err
}

// rounds measures until enough of them count, and says which do.
func (c *Comparison) rounds(ctx context.Context, all []*contest, quiet *contest) (kept []bool, err error) {
	watch := c.Until.begin()
	failures := 0
	for n := 0; ; n++ {
		if c.Until.Budget == 0 && (count(kept) >= c.Rounds || len(kept) >= 2*c.Rounds) || c.Until.Budget > 0 &&
			watch.over(all, kept) {
			return kept, nil
		}
		c.Say(c.progress(n, watch))
		within, cancel := watch.bound(ctx)
		err := c.round(within, all, n%2 == 1)
		late := within.Err() != nil
		cancel()
		watch.round()
		switch {
		case err == nil:
			if kept = slices.Repeat([]bool{true}, len(all[0].rounds)); quiet != nil {
				kept = judge(quiet.rounds)
			}
		case ctx.Err() == nil && late && count(kept) > 0:
			return kept, nil // the time is over: what is not finished does not count
		case late || failures == 2:
			return kept, fmt.Errorf("round %d: %w", n+1, err)
		default:
			failures++
			c.Say(fmt.Sprintf("round %d failed and is repeated: %v", n+1, err))
		}
	}
}

// judges finds the judge of rounds.
func (c *Comparison) judges(pt plan.Point) bool {
	j := peers[c.Peer].judge
	return pt.Kind == j.Kind && pt.Op == j.Op && pt.Size == j.Size
}

// contests pairs each point with a tool, and adds the judge of rounds.
func (c *Comparison) contests() (all []*contest, err error) {
	points, j := c.Plan.Points, peers[c.Peer].judge
	if j.Kind != "" && !slices.ContainsFunc(points, c.judges) {
		j.Depth, j.Lanes, j.Iters = 1, 1, 1000
		points = append(slices.Clip(points), j)
	}
	for i, pt := range points {
		x, err := c.contest(c.Peer, pt)
		if err != nil {
			return nil, err
		}
		if x == nil {
			return nil, fmt.Errorf("%s has no counterpart in %s", pt.Name(), peers[c.Peer].name)
		}
		if x.silent = i >= len(c.Plan.Points); c.UCX && !x.silent {
			if x.ucx, err = c.contest(UCX, pt); err != nil {
				return nil, err
			}
			if x.ucx != nil {
				x.ucx.beside = true
			}
		}
		all = append(all, x)
	}
	return all, nil
}

// contest pairs a point with a program's tool; nil: it has none.
func (c *Comparison) contest(of string, pt plan.Point) (*contest, error) {
	t, ok := peers[of].test(c, pt)
	if !ok {
		return nil, nil
	}
	x := &contest{point: pt, of: of, tool: t.tool, times: t.times,
		pair: Pair{Timeout: c.Timeout, Args: t.args, Env: t.env}}
	for i := range x.pair.CPUs {
		x.pair.CPUs[i] = machine.Share(c.Plan.CPUs, i, 2)
	}
	var err error
	x.pair.Path, err = find(x.tool, peers[of].missing)
	return x, err
}

// run measures once with a program.
func (c *Comparison) run(ctx context.Context, x *contest) (*Output, error) {
	text, err := x.pair.Text(ctx)
	if err != nil {
		return nil, err
	}
	return peers[x.of].parse(text, x.point)
}

// runAll measures once with all programs, by contest.
func (c *Comparison) runAll(ctx context.Context, all []*contest) (map[*contest]*Output, error) {
	out := make(map[*contest]*Output)
	for _, x := range all {
		for _, y := range x.programs() {
			o, err := c.run(ctx, y)
			if err != nil {
				return nil, err
			}
			out[y] = o
		}
	}
	return out, nil
}

// programs are the contests of a point.
func (x *contest) programs() []*contest {
	if x.ucx == nil {
		return []*contest{x}
	}
	return []*contest{x, x.ucx}
}

// round measures everything once on both sides and records it if all of it succeeded.
func (c *Comparison) round(ctx context.Context, all []*contest, oursFirst bool) error {
	var ours []*report.Series
	var theirs map[*contest]*Output
	steps := []func() error{func() (err error) {
		theirs, err = c.runAll(ctx, all)
		return err
	}, func() (err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout+time.Minute, errors.New("our ranks did not finish"))
		defer cancel()
		ours, err = c.Ours(ctx, c.Plan)
		return err
	}}
	if oursFirst {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if len(ours) != len(c.Plan.Points) {
		return fmt.Errorf("%d of %s of ours were measured", len(ours), errtext.Count(len(c.Plan.Points), "point"))
	}
	for i, x := range all {
		var r report.Round
		if !x.silent {
			x.series = append(x.series, ours[i])
			r.Ours = figures(&ours[i].Result)
		}
		for _, y := range x.programs() {
			by := y.times
			if y.point.Kind == plan.Rate {
				by /= float64(bytesOf(y.point))
			}
			y.theirs = theirs[y]
			y.wrong += y.theirs.Errors
			r.Theirs = times(y.theirs.Figures, by, y.rounding())
			y.rounds = append(y.rounds, r)
		}
	}
	return nil
}

// rounding of figures: a tool's digits show no more than ns, bytes or operations.
func (x *contest) rounding() func(float64) float64 { return report.Rounding(x.point.Batch) }
