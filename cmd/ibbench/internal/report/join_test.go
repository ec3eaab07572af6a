package report

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

func TestStartsAreRoundsOfOneSeries(t *testing.T) {
	steps := func(launch, bootstrap, join, barrier float64) Metrics {
		return Metrics{"join.launch": {Value: launch}, "join.bootstrap": {Value: bootstrap}, "join.join": {Value: join}, "join.barrier": {Value: barrier}}
	}
	start := func(total float64, m Metrics) *Series {
		return &Series{Kind: plan.Join, Op: plan.Job, Size: 4, Result: Result{Unit: "ns", Count: 1, Min: total, Max: total, Mean: total}, Metrics: m}
	}
	s := Starts([]*Series{start(60, steps(10, 20, 29, 1)), start(100, steps(11, 60, 28, 1)), start(80, steps(12, 30, 37, 1))}, []float64{50})
	want := Result{Unit: "ns", Count: 3, OpsPerSample: 1, Min: 60, Max: 100, Mean: 80, P: map[string]float64{"50": 80}}
	if d := cmp.Diff(want, s.Result); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(steps(11, 30, 29, 1), s.Metrics); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]Figures{{60, 60, 60}, {100, 100, 100}, {80, 80, 80}}, s.Rounds); d != "" {
		t.Error(d)
	}
}
