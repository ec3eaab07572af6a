package report

import "github.com/ibconduit/conduit/cmd/ibbench/internal/stats"

// Starts makes one series of the starts of a number of ranks, each of which is a round. They may
// not be used any more.
func Starts(all []*Series, pct []float64) *Series {
	s := all[0]
	samples := stats.New(int64(len(all)), 1, false)
	s.Rounds = nil
	for _, r := range all {
		samples.Add(int64(r.Result.Mean))
		s.Rounds = append(s.Rounds, Figures{P50: r.Result.Mean, Mean: r.Result.Mean, P99: r.Result.Mean})
	}
	s.combine(all)
	s.Result, s.Hist = Latency(samples, pct, 1), samples.Hist()
	return s
}
