package report

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// Merge makes one series of the rounds of a point, which says that it is, and has their figures.
// The rounds may not be used any more.
func Merge(rounds []*Series) *Series {
	var figures []Figures
	for _, r := range rounds {
		figures = append(figures, r.Result.figures())
	}
	s := Combine(rounds)
	if len(rounds) > 1 {
		s.Rounds, s.Notes = figures, append(s.Notes, fmt.Sprintf("figures are medians of %d rounds", len(rounds)))
	}
	return s
}

// Combine makes one series of several measurements of a point: figures are their medians, the
// smallest Min and the largest Max; counts are sums, and histograms add up. What only one of them
// has (the time series) is left out. All have as many operations to a sample. They may not be used
// any more.
func Combine(rounds []*Series) *Series {
	s := rounds[0]
	if len(rounds) == 1 {
		return s
	}
	of := func(pick func(*Series) float64) float64 {
		var all []float64
		for _, r := range rounds {
			all = append(all, pick(r))
		}
		return stats.Median(all)
	}
	m := s.Result
	round := Rounding(m.OpsPerSample)
	m.Mean, m.PerSecond = round(of(func(s *Series) float64 { return s.Result.Mean })),
		RoundRate(of(func(s *Series) float64 { return s.Result.PerSecond }))
	m.P = maps.Clone(m.P)
	for p := range m.P {
		m.P[p] = round(of(func(s *Series) float64 { return s.Result.P[p] }))
	}
	s.combine(rounds)
	var hists []*stats.Hist
	for i, r := range rounds {
		if i > 0 {
			m.Count += r.Result.Count
			m.Errors += r.Result.Errors
			m.Bytes += r.Result.Bytes
			m.ElapsedNS += r.Result.ElapsedNS
			m.Min, m.Max = min(m.Min, r.Result.Min), max(m.Max, r.Result.Max)
			s.Notes = append(s.Notes, r.Notes...)
		}
		hists = append(hists, r.Hist)
	}
	slices.Sort(s.Notes)
	s.Notes = slices.Compact(s.Notes)
	s.Result, s.Hist, s.Intervals = m, stats.MergeHists(hists), nil
	return s
}

// figures are those that rounds are compared by.
func (r *Result) figures() Figures { return Figures{P50: r.P["50"], Mean: r.Mean, P99: r.P["99"]} }
