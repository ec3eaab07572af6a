package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/internal/errtext"
)

// Ours measures all points once, with ranks of ours, and returns a series for
// each.
type Ours func(ctx context.Context, p *plan.Plan) ([]*report.Series, error)

// Comparison says what to compare.
type Comparison struct {
	Plan    *plan.Plan // its points have an equivalent in the peer
	Peer    string     // Perftest, UCX or OSU
	Port    int        // of the device
	GID     int        // index
	Rounds  int        // that must count
	Until   Until      // instead of Rounds, where its Budget is not 0
	UCX     bool       // measure with UCX too
	Timeout time.Duration
	Extra   []string // further arguments of the peer's tools, or of mpirun
	Ours    Ours
	Say     func(text string) // what goes on
	Line    func(text string) // what should stay to be read
}

// contest is one point and its counterpart.
type contest struct {
	point  plan.Point
	tool   string
	pair   Pair    // with OSU mpirun and its command line
	times  float64 // what the tool's figures are multiplied by, to be of our definition
	rounds []report.Round
	series []*report.Series // ours, of each round
	theirs *Output          // the last one; all have the same settings
	ucx    *ucx             // nil: not compared with UCX
	silent bool             // only there to tell whether the machine is quiet
}

// Run compares, and returns a series for each point. With an error these are of the rounds that
// were finished before, if there are any that count.
func (c *Comparison) Run(ctx context.Context) ([]*report.Series, error) {
	all, err := c.contests()
	if err != nil {
		return nil, err
	}
	quiet := all[slices.IndexFunc(all, func(x *contest) bool { return c.judges(x.point) })]
	kept, err := c.rounds(ctx, all, quiet)
	if count(kept) == 0 {
		return nil, cmp.Or(err, errors.New("no round can be used: other programs take the processors; try again on a quiet machine"))
	}
	ctx = context.WithoutCancel(ctx) // after an interrupt, too
	version, of := peers[c.Peer].version(ctx, quiet.pair.Path), ""
	if c.UCX {
		of = ucxVersion(ctx, "")
	}
	var out []*report.Series
	for _, x := range all {
		if x.silent {
			continue
		}
		s := x.report(kept, version)
		if c.Peer != Perftest {
			s.Peers[0].Peer = c.Peer
		}
		if x.ucx != nil {
			s.Peers = append(s.Peers, x.ucx.report(x.rounds, kept, of))
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
		if c.Until.Budget == 0 && (count(kept) >= c.Rounds || len(kept) >= 2*c.Rounds) || c.Until.Budget > 0 && watch.over(all, kept) {
			return kept, nil
		}
		c.Say(c.progress(n, watch, all, kept))
		within, cancel := watch.bound(ctx)
		err := c.round(within, all, n%2 == 1)
		late := within.Err() != nil
		cancel()
		watch.round()
		switch {
		case err == nil:
			if kept = judge(quiet.rounds); len(kept) == 1 {
				c.first(all)
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
	return pt.Kind == j.Kind && pt.Op == j.Op && pt.Size == j.Size && pt.Ack == j.Ack
}

// contests pairs each point with a tool, and adds the judge of rounds.
func (c *Comparison) contests() ([]*contest, error) {
	var all []*contest
	points, of := c.Plan.Points, peers[c.Peer]
	if !slices.ContainsFunc(points, c.judges) {
		j := of.judge
		j.Depth, j.Lanes, j.Chain, j.Iters = 1, 1, 1, 1000
		points = append(slices.Clip(points), j)
	}
	for i, pt := range points {
		t, ok := of.test(c, pt)
		if !ok {
			return nil, fmt.Errorf("%s has no counterpart in %s", pt.Name(), of.name)
		}
		path, err := find(t.tool, of.missing)
		if err != nil {
			return nil, err
		}
		x := &contest{point: pt, tool: t.tool, times: t.times, silent: i >= len(c.Plan.Points)}
		x.pair = Pair{Path: path, Timeout: c.Timeout, Args: t.args, Env: t.env}
		if c.Peer == OSU {
			x.pair.Args = append(mpirunArgs(2, c.Plan.CPUs, c.Extra), append([]string{path}, t.args...)...)
			if x.pair.Path, err = find("mpirun.openmpi", ErrNoMPI); err != nil {
				return nil, err
			}
		}
		if c.UCX && !x.silent {
			if x.ucx, err = c.newUCX(pt); err != nil {
				return nil, err
			}
		}
		for i := range x.pair.CPUs {
			x.pair.CPUs[i] = machine.Share(c.Plan.CPUs, i, 2)
		}
		if x.ucx != nil {
			x.ucx.pair.CPUs = x.pair.CPUs
		}
		all = append(all, x)
	}
	return all, nil
}

// run measures once with the peer.
func (c *Comparison) run(ctx context.Context, x *contest) (*Output, error) {
	var text string
	var err error
	if c.Peer == OSU {
		text, err = mpirun(ctx, x.pair.Path, x.pair.Args, c.Timeout)
	} else {
		text, err = x.pair.Text(ctx)
	}
	if err != nil {
		return nil, err
	}
	return peers[c.Peer].parse(text, x.point)
}

// round measures everything once on both sides and records it if all of it
// succeeded.
func (c *Comparison) round(ctx context.Context, all []*contest, oursFirst bool) error {
	var ours []*report.Series
	theirs, ucxs := make([]*Output, len(all)), make([]report.Figures, len(all))
	measureOurs := func() (err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout+time.Minute, errors.New("our ranks did not finish"))
		defer cancel()
		ours, err = c.Ours(ctx, c.Plan)
		return err
	}
	measureTheirs := func() (err error) {
		for i, x := range all {
			if theirs[i], err = c.run(ctx, x); err != nil {
				return err
			}
			if x.ucx == nil {
				continue
			}
			if ucxs[i], err = x.ucx.run(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	steps := []func() error{measureTheirs, measureOurs}
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
		by := x.times
		if x.point.Kind == plan.Rate {
			by /= float64(bytesOf(x.point))
		}
		r := report.Round{Theirs: times(theirs[i].Figures, by)}
		x.theirs = theirs[i]
		if !x.silent {
			x.series = append(x.series, ours[i])
			r.Ours = figures(&ours[i].Result)
		}
		x.rounds = append(x.rounds, r)
		if x.ucx != nil {
			x.ucx.rounds = append(x.ucx.rounds, ucxs[i])
		}
	}
	return nil
}

// times multiplies a tool's figures, whose digits show no more than ns, bytes or operations.
func times(f report.Figures, by float64) report.Figures {
	return report.Figures{P50: math.Round(f.P50 * by), Mean: math.Round(f.Mean * by), P99: math.Round(f.P99 * by)}
}

func figures(r *report.Result) report.Figures {
	if r.Unit != "ns" {
		return report.Figures{Mean: r.Mean}
	}
	return report.Figures{P50: r.P["50"], Mean: r.Mean, P99: r.P["99"]}
}

// judge says which rounds count: those whose figure of the judge is within half of the
// median, which of an even number is the faster one of the two in the middle.
func judge(rounds []report.Round) []bool {
	var v []float64
	for _, r := range rounds {
		v = append(v, judged(r.Theirs))
	}
	kept := make([]bool, len(v))
	if len(v) == 0 {
		return kept
	}
	sorted := slices.Sorted(slices.Values(v))
	m := sorted[(len(v)-1)/2] // of two in the middle the faster: between a quiet and a busy half lies no round at all
	for i := range v {
		kept[i] = math.Abs(v[i]-m) <= m/2
	}
	return kept
}

func count(kept []bool) (n int) {
	for _, k := range kept {
		if k {
			n++
		}
	}
	return n
}

// report sums up the rounds that count.
func (x *contest) report(kept []bool, version string) *report.Series {
	s := report.Combine(x.series)
	s.Kind, s.Hist, s.Intervals = report.KindPerftest, nil, nil
	wrong := s.Result.Errors // in all rounds
	p := &report.Peer{Place: Perftest, Tool: x.tool, Version: version, Args: x.pair.Args, Settings: x.theirs.Settings, Discarded: len(kept) - count(kept)}
	if p.Settings == nil {
		p.Settings = map[string]string{}
	}
	if x.times != 1 {
		p.Times = x.times
	}
	for i, r := range x.rounds {
		r.Discarded = !kept[i]
		p.Rounds = append(p.Rounds, r)
	}
	ours := func(r report.Round) report.Figures { return r.Ours }
	theirs := func(r report.Round) report.Figures { return r.Theirs }
	unit := s.Result.Unit
	s.Result = medians(p.Rounds, ours, unit, math.Round)
	p.Result = medians(p.Rounds, theirs, unit, math.Round)
	n := int64(count(kept))
	s.Result.Errors = wrong
	s.Result.Count, p.Result.Count = n*x.point.Iters, n*x.theirs.Iters
	s.Peers = []*report.Peer{p}
	setRatios(s, p.Rounds)
	ownBest := s.Result
	if _, ok := p.Result.P["50"]; !ok { // then means are compared
		ownBest = medians(p.Rounds, func(r report.Round) report.Figures { return report.Figures{Mean: r.Ours.Mean} }, unit, math.Round)
	}
	s.Set("ratio.best", report.Round3(best(&ownBest)/best(&p.Result)))
	if low, high, ok := x.interval(kept); ok {
		s.SetBounds("ratio.interval", low, high)
	}
	s.Notes = append(s.Notes, x.terms())
	if p.Discarded > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("rounds thrown away: %d of %d, since what the peer measures first was off its median by half, another program had the processors", p.Discarded, len(kept)))
	}
	return s
}

// best is the least median of the rounds, or the largest throughput.
func best(r *report.Result) float64 {
	if r.Unit == "ns" {
		return r.Min
	}
	return r.Max
}

// terms says what both sides were set to, alike for all sizes.
func (x *contest) terms() string {
	theirs := fmt.Sprintf("%s: %d iterations", x.tool, x.theirs.Iters)
	for _, key := range []string{"TX depth", "CQ Moderation", "Max inline data", "Outstand reads"} {
		if v, ok := x.theirs.Settings[key]; ok {
			theirs += fmt.Sprintf(", %s %s", key, v)
		}
	}
	if by := x.times; by != 1 {
		theirs += fmt.Sprintf(", its figures times %.0f", by)
	}
	place := ""
	switch {
	case x.point.Op == plan.AM:
		place = "credits and a handler, "
	case x.point.Place:
		place = "all at one place, "
	}
	return fmt.Sprintf("%s; ours: %d iterations after a few untimed ones, depth %d, %sinlining and signalling as the library does; two processes each, one device",
		theirs, x.point.Iters, x.point.Depth, place)
}

// medians of the rounds that count, rounded.
func medians(rounds []report.Round, side func(report.Round) report.Figures, unit string, round func(float64) float64) report.Result {
	of := func(pick func(report.Figures) float64) []float64 {
		var v []float64
		for _, r := range rounds {
			if f := pick(side(r)); !r.Discarded && f > 0 { // 0: not reported, or less than a tool's digits show
				v = append(v, f)
			}
		}
		return v
	}
	mean := of(func(f report.Figures) float64 { return f.Mean })
	r := report.Result{Unit: unit, Min: slices.Min(mean), Max: slices.Max(mean), Mean: round(stats.Median(mean)), P: map[string]float64{}}
	r.P["50"] = r.Mean // of a bandwidth each round has one figure
	if unit == "ns" {
		delete(r.P, "50")
		if p50 := of(func(f report.Figures) float64 { return f.P50 }); len(p50) > 0 { // some report no more than the mean
			r.Min, r.Max = slices.Min(p50), slices.Max(p50)
			r.P["50"] = round(stats.Median(p50))
		}
		if p99 := of(func(f report.Figures) float64 { return f.P99 }); len(p99) > 0 {
			r.P["99"] = round(stats.Median(p99))
		}
	}
	return r
}

// setRatios sets those of all figures that both sides have.
func setRatios(s *report.Series, rounds []report.Round) {
	s.SetSpread("ratio.mean", ratios(rounds, func(f report.Figures) float64 { return f.Mean }))
	if s.Result.Unit == "ns" {
		s.SetSpread("ratio.p50", ratios(rounds, func(f report.Figures) float64 { return f.P50 }))
		s.SetSpread("ratio.p99", ratios(rounds, func(f report.Figures) float64 { return f.P99 }))
	}
}

// ratios of ours to theirs, round by round; nil where they have no such figure.
func ratios(rounds []report.Round, pick func(report.Figures) float64) *report.Spread {
	var v []float64
	for _, r := range rounds {
		if t := pick(r.Theirs); !r.Discarded && t > 0 {
			v = append(v, report.Round3(pick(r.Ours)/t))
		}
	}
	if len(v) == 0 {
		return nil
	}
	return &report.Spread{Median: report.Round3(stats.Median(v)), Min: slices.Min(v), Max: slices.Max(v)}
}
