package report

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

func TestRoundsOfAPointBecomeOneSeries(t *testing.T) {
	var rounds []*Series
	for i, p50 := range []float64{30, 10, 20} {
		rounds = append(rounds, &Series{Metrics: Metrics{"am.sent": {Value: 5}}, Notes: []string{"same"}, Intervals: make([]Interval, 2), Result: Result{
			Unit: "ns", Count: 100, Errors: int64(i), Min: p50 / 2, Max: p50 * 2, Mean: p50 + 1, P: map[string]float64{"50": p50, "99": p50 + 5}},
			Hist: &stats.Hist{Type: stats.HistType, Unit: "ns", Buckets: []stats.Bucket{{int64(p50), int64(p50), 60}, {99, 99, 40}}}})
	}
	s := Merge(rounds)
	r := s.Result
	if r.P["50"] != 20 || r.P["99"] != 25 || r.Mean != 21 || r.Min != 5 || r.Max != 60 || r.Count != 300 || r.Errors != 3 || s.Value("am.sent") != 15 {
		t.Errorf("%+v, %+v", r, s.Metrics)
	}
	if want := []stats.Bucket{{10, 10, 60}, {20, 20, 60}, {30, 30, 60}, {99, 99, 120}}; !slices.Equal(s.Hist.Buckets, want) {
		t.Errorf("histogram %v", s.Hist.Buckets)
	}
	if want := []Figures{{30, 31, 35}, {10, 11, 15}, {20, 21, 25}}; !slices.Equal(s.Rounds, want) || s.Intervals != nil {
		t.Errorf("rounds %v, intervals %v", s.Rounds, s.Intervals)
	}
	if want := []string{"same", "figures are medians of 3 rounds"}; !slices.Equal(s.Notes, want) {
		t.Errorf("notes %q", s.Notes)
	}
}

func TestMediansOfEvenRoundsAreRounded(t *testing.T) {
	rounds := func(ops int) (all []*Series) {
		for _, p50 := range []float64{3, 4} {
			all = append(all, &Series{Result: Result{Unit: "ns", OpsPerSample: ops, Mean: p50, PerSecond: 2000 + p50, P: map[string]float64{"50": p50}}})
		}
		return all
	}
	for ops, want := range map[int]float64{1: 4, 16: 3.5} {
		if r := Merge(rounds(ops)).Result; r.P["50"] != want || r.Mean != want || r.PerSecond != 2004 || r.OpsPerSample != ops {
			t.Errorf("%d operations a sample: %+v", ops, r)
		}
	}
}

func TestARoundsOwnFiguresAreOfAllRounds(t *testing.T) {
	of := func(allocs, hits, sent float64) Metrics {
		return Metrics{"am.allocs_per_op": {Value: allocs}, "mr.hit.percent": {Value: hits}, "am.sent": {Value: sent}}
	}
	var rounds []*Series
	for i, allocs := range []float64{0, 2.5, 1.5} {
		rounds = append(rounds, &Series{Metrics: of(allocs, float64(97+i), float64(i+1))})
	}
	if d := cmp.Diff(of(1.5, 98, 6), Merge(rounds).Metrics); d != "" {
		t.Error(d)
	}
}
