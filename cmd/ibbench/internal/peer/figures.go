package peer

import (
	"fmt"
	"math"
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// times multiplies a tool's figures.
func times(f report.Figures, by float64, round func(float64) float64) report.Figures {
	return report.Figures{P50: round(f.P50 * by), Mean: round(f.Mean * by), P99: round(f.P99 * by)}
}

func figures(r *report.Result) report.Figures {
	if r.Unit != "ns" {
		return report.Figures{Mean: r.Mean}
	}
	return report.Figures{P50: r.P["50"], Mean: r.Mean, P99: r.P["99"]}
}

// judge says which rounds count: the ones in which the figure of the judge is within half of the
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
	s.Hist, s.Intervals = nil, nil
	wrong, unit := s.Result.Errors+x.wrong, s.Result.Unit // in all rounds
	p := x.peer(kept, version, unit)
	s.Result = medians(p.Rounds, func(r report.Round) report.Figures { return r.Ours }, unit, x.rounding())
	s.Result.Errors, s.Result.Count, s.Result.OpsPerSample = wrong, int64(count(kept))*x.point.Iters, p.Result.OpsPerSample
	s.Peers = []*report.Peer{p}
	setRatios(s, p.Rounds)
	low, high, ok := x.interval(kept)
	s.Kind = report.KindPerftest
	s.Set("ratio.best", report.Round3(best(&s.Result)/best(&p.Result)))
	if ok {
		s.SetBounds("ratio.interval", low, high)
	}
	s.Notes = append(s.Notes, x.terms())
	if p.Discarded > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("rounds thrown away: %d of %d, since what the peer measures first was off its median by half, another program had the processors", p.Discarded, len(kept)))
	}
	return s
}

// peer sums up what a program found in the rounds that count.
func (x *contest) peer(kept []bool, version, unit string) *report.Peer {
	p := &report.Peer{Version: version, Args: x.pair.Args, Errors: x.wrong, Discarded: len(kept) - count(kept)}
	if x.times != 1 {
		p.Times = x.times
	}
	for i, r := range x.rounds {
		r.Discarded = !kept[i]
		p.Rounds = append(p.Rounds, r)
	}
	p.Result = medians(p.Rounds, func(r report.Round) report.Figures { return r.Theirs }, unit, x.rounding())
	p.Result.Count = int64(count(kept)) * x.theirs.Iters
	switch {
	case x.beside:
		p.Place = UCX
	default:
		p.Place, p.Tool, p.Settings = Perftest, x.tool, x.theirs.Settings
	}
	return p
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
func medians(rounds []report.Round, side func(report.Round) report.Figures, unit string,
	round func(float64) float64) report.Result {
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
	r := report.Result{Unit: unit, Min: slices.Min(mean), Max: slices.Max(mean), Mean: round(stats.Median(mean)),
		P: map[string]float64{}}
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

// setRatios sets the ratios of all figures that both sides have.
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
