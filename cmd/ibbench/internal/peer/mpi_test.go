package peer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

func collPoint(op string, size int64) plan.Point {
	return plan.Point{Kind: plan.Coll, Op: op, Size: size, Depth: 1, Lanes: 1, Iters: 3, Batch: 10}
}

func TestAPointOfMPIIsReadExactly(t *testing.T) {
	points := []plan.Point{collPoint(plan.Barrier, 0), collPoint(plan.Bcast, 64)}
	got, err := parseMPI("barrier 0 0 1000 3000 2000\nbcast 64 2 10 10 10\n", points)
	if err != nil {
		t.Fatal(err)
	}
	want := []*Output{{Iters: 3, Figures: report.Figures{P50: 200, Mean: 200, P99: 300}}, {Iters: 3, Errors: 2, Figures: report.Figures{P50: 1, Mean: 1, P99: 1}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestOtherOutputOfMPIIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "no line of 3 samples",
		"barrier 0 0 1 2":              "no line of 3 samples",
		"barrier 8 0 1 2 3":            "no line of 3 samples",
		"bcast 0 0 1 2 3":              "no line of 3 samples",
		"barrier 0 -1 1 2 3":           "no number of errors",
		"barrier 0 0 1 x 3":            "no time in ns",
		"barrier 0 0 1 -2 3":           "no time in ns",
		"barrier 0 0 1 2 3\nmore here": "2 lines for 1 point:",
	} {
		if _, err := parseMPI(text, []plan.Point{collPoint(plan.Barrier, 0)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func FuzzOutputOfMPIIsReadOrRefused(f *testing.F) {
	f.Add("barrier 0 0 1000 3000 2000\n")
	f.Add("barrier 0 0 9223372036854775807 9223372036854775807 9223372036854775807")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseMPI(s, []plan.Point{collPoint(plan.Barrier, 0)})
		if err == nil && (got[0].Errors < 0 || got[0].Figures.P50 < 0 || got[0].Figures.Mean < 0) {
			t.Errorf("%q: %+v", s, got)
		}
	})
}

// Without its programs the comparison does not begin.
func TestAMissingMPISaysHowToInstallIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	c := &Comparison{Peer: OpenMPI, Plan: &plan.Plan{Ranks: 2, Points: []plan.Point{collPoint(plan.Barrier, 0)}}, Rounds: 1, Timeout: time.Minute, Say: func(string) {},
		Ours: func(context.Context, *plan.Plan) ([]*report.Series, error) { return nil, errors.New("begun") }}
	if _, err := c.Run(t.Context()); !errors.Is(err, ErrNoMPI) || !strings.Contains(err.Error(), "apt-get install openmpi-bin libopenmpi-dev") {
		t.Error(err)
	}
}

// Errors of either side are the point's.
func TestRatiosToMPIAreMediansWithTheirInterval(t *testing.T) {
	m := contest{
		of: OpenMPI, times: 1, point: collPoint(plan.Barrier, 0), theirs: &Output{Iters: 3}, wrong: 2,
		series: []*report.Series{{Op: plan.Barrier, Plan: collPoint(plan.Barrier, 0), Result: report.Result{Unit: "ns", Errors: 1}}},
	}
	for i := range 21 {
		v := float64(100 + i)
		m.rounds = append(m.rounds, report.Round{Ours: report.Figures{P50: v, Mean: v, P99: v}, Theirs: report.Figures{P50: 100, Mean: 50, P99: 200}})
	}
	s := m.report(all(21), "4.1.4")
	if s.Value("ratio.p50") != 1.1 || s.Value("ratio.mean") != 2.2 || s.Result.Errors != 3 || s.Peer().Errors != 2 || s.Result.Count != 63 || s.Result.OpsPerSample != 10 {
		t.Errorf("%+v %+v", s.Metrics, s.Result)
	}
	if d := cmp.Diff([]float64{1.05, 1.15}, s.Peer().Interval); d != "" { // the 6th and the 16th of 21
		t.Error(d)
	}
}
