package report

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// Merge makes one series of the rounds of a point: figures are the medians of the rounds, the
// smallest Min and the largest Max; counts are sums, and histograms add up. What only one round has
// (the time series) is left out. The rounds may not be used any more.
func Merge(rounds []*Series) *Series {
	s := rounds[0]
	if len(rounds) == 1 {
		return s
	}
	of := func(pick func(*Result) float64) float64 {
		var all []float64
		for _, r := range rounds {
			all = append(all, pick(&r.Result))
		}
		return Round3(stats.Median(all))
	}
	for _, r := range rounds {
		s.Rounds = append(s.Rounds, r.Result.figures())
	}
	m := s.Result
	m.Mean, m.PerSecond = of(func(r *Result) float64 { return r.Mean }), of(func(r *Result) float64 { return r.PerSecond })
	m.P = maps.Clone(m.P)
	for p := range m.P {
		m.P[p] = of(func(r *Result) float64 { return r.P[p] })
	}
	var hists []*stats.Hist
	for i, r := range rounds {
		if i > 0 {
			m.Count += r.Result.Count
			m.Errors += r.Result.Errors
			m.Bytes += r.Result.Bytes
			m.ElapsedNS += r.Result.ElapsedNS
			m.Min, m.Max = min(m.Min, r.Result.Min), max(m.Max, r.Result.Max)
			if s.AM != nil && r.AM != nil {
				s.AM.Add(r.AM)
			}
			s.Notes = append(s.Notes, r.Notes...)
		}
		hists = append(hists, r.Hist)
	}
	slices.Sort(s.Notes)
	s.Notes = append(slices.Compact(s.Notes), fmt.Sprintf("figures are medians of %d rounds", len(rounds)))
	s.Result, s.Hist, s.Intervals = m, stats.MergeHists(hists), nil
	return s
}

// figures are those that rounds are compared by.
func (r *Result) figures() Figures { return Figures{P50: r.P["50"], Mean: r.Mean, P99: r.P["99"]} }
