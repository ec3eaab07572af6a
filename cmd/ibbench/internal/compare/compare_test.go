package compare

import (
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// series is a point with the p50 of each round, in ns.
func series(size int64, p50 ...float64) *report.Series {
	s := &report.Series{Schema: report.Schema, Kind: plan.Lat, Op: plan.Put, Size: size, Env: &report.Env{Fabric: "shm", Kernel: "6.1", Ranks: 2},
		Plan: plan.Point{Kind: plan.Lat, Op: plan.Put, Size: size, Depth: 1, Lanes: 1}, Result: report.Result{Unit: "ns", P: map[string]float64{"50": p50[0]}, Mean: p50[0]}}
	if len(p50) > 1 {
		for _, v := range p50 {
			s.Rounds = append(s.Rounds, report.Figures{P50: v, Mean: 2 * v, P99: 3 * v})
		}
	}
	return s
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name       string
		older, now []float64
		threshold  float64
		want       Verdict
	}{
		{"apart, upwards", []float64{10, 11, 12, 13}, []float64{20, 21, 22, 23}, 0, Slower},
		{"apart, downwards", []float64{20, 21, 22, 23}, []float64{10, 11, 12, 13}, 0, Faster},
		{"apart by less than the threshold", []float64{100, 101, 102, 103}, []float64{104, 105, 106, 107}, 5, None},
		{"apart by more than the threshold", []float64{100, 101, 102, 103}, []float64{104, 105, 106, 107}, 3, Slower},
		{"among each other", []float64{10, 12, 14, 16}, []float64{11, 13, 15, 17}, 0, None},
		{"all equal", []float64{10, 10, 10, 10}, []float64{10, 10, 10, 10}, 0, None},
		{"three rounds on one side", []float64{10, 11, 12, 13, 14, 15}, []float64{20, 21, 22}, 0, Few},
		{"a run a side", []float64{10}, []float64{99}, 0, Few},
		{"one outlier makes no difference", []float64{10, 11, 12, 13, 14}, []float64{10.5, 11.5, 12.5, 13.5, 9000}, 0, None},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := Compare([]*report.Series{series(8, c.older...)}, []*report.Series{series(8, c.now...)}, []string{"p50"}, c.threshold)
			if len(r.Rows) != 1 || r.Rows[0].Verdict != c.want || r.Slower() != (c.want == Slower) {
				t.Errorf("%+v, want %s", r.Rows, c.want)
			}
		})
	}
}

// Exact probabilities of the test: 2 of the 70 ways to deal out 8 figures to two sides are as far
// apart as these, 2 of 252 with 5 and 5.
func TestProbabilities(t *testing.T) {
	for n, want := range map[int]float64{4: 2.0 / 70, 5: 2.0 / 252} {
		var a, b []float64
		for i := range n {
			a, b = append(a, float64(1+i)), append(b, float64(100+i))
		}
		r := Compare([]*report.Series{series(8, a...)}, []*report.Series{series(8, b...)}, []string{"p50"}, 0)
		if p := r.Rows[0].P; p < want*.999 || p > want*1.001 {
			t.Errorf("%d and %d rounds: p is %v, want %v", n, n, p, want)
		}
	}
}

// Of a throughput more is better.
func TestMoreBytesASecondAreFaster(t *testing.T) {
	of := func(rates ...float64) *report.Series {
		s := series(8, rates...)
		s.Plan.Kind, s.Kind, s.Result.Unit = plan.BW, plan.BW, "B/s"
		return s
	}
	r := Compare([]*report.Series{of(10, 11, 12, 13)}, []*report.Series{of(20, 21, 22, 23)}, []string{"p50"}, 0)
	if len(r.Rows) != 1 || r.Rows[0].Verdict != Faster || r.Rows[0].Metric != "mean" {
		t.Errorf("%+v", r.Rows)
	}
}

// Several runs of one side are its rounds; rounds that a comparison with a peer has thrown away are
// none.
func TestRoundsComeFromRunsAndPeers(t *testing.T) {
	older := []*report.Series{series(8, 10), series(8, 11), series(8, 12), series(8, 13)}
	peer := series(8, 1)
	with := &report.Peer{Place: "perftest"}
	peer.Peers = []*report.Peer{with}
	for i, p50 := range []float64{20, 21, 22, 1, 23} {
		with.Rounds = append(with.Rounds, report.Round{Ours: report.Figures{P50: p50}, Theirs: report.Figures{P50: 5}, Discarded: i == 3})
	}
	r := Compare(older, []*report.Series{peer}, []string{"p50", "mean", "p99"}, 0)
	if len(r.Rows) != 1 || r.Rows[0].OldN != 4 || r.Rows[0].NewN != 4 || r.Rows[0].New != 21.5 || r.Rows[0].Verdict != Slower {
		t.Errorf("%+v", r.Rows)
	}
}

func TestOtherPointsAndMachinesAreNamed(t *testing.T) {
	other := series(64, 10)
	other.Env = &report.Env{Fabric: "shm", Kernel: "6.18", Ranks: 2}
	r := Compare([]*report.Series{series(8, 10)}, []*report.Series{other}, []string{"p50"}, 0)
	if len(r.Rows) != 0 || !slices.Equal(r.OnlyOld, []string{"lat put size 8 shm"}) || !slices.Equal(r.OnlyNew, []string{"lat put size 64 shm"}) {
		t.Errorf("%+v", r)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "kernel differs: 6.1, then 6.18") {
		t.Errorf("notes %q", r.Notes)
	}
}

// What had no end has no figures.
func TestARunThatFailedIsNoPoint(t *testing.T) {
	run := func(failed string) []*report.Series {
		s := series(2, 10)
		s.Kind, s.Metrics = plan.Flow, report.Metrics{"flow.arm": {Text: "normal"}, "flow.failed": {Text: failed}}
		if failed != "" {
			s.Result.P, s.Result.Mean = nil, 0
		}
		return []*report.Series{s, series(8, 10)}
	}
	r := Compare(run(""), run("killed"), []string{"p50"}, 0)
	if len(r.Rows) != 1 || !slices.Equal(r.OnlyOld, []string{"flow put size 2 normal ranks 2 shm"}) || r.OnlyNew != nil {
		t.Errorf("%+v", r)
	}
}

func TestAFigureOf0IsNotCompared(t *testing.T) {
	older := []*report.Series{series(8, 0, 0, 0, 1), series(64, 5, 5, 5, 5)}
	r := Compare(older, []*report.Series{series(8, 4, 4, 4, 4), series(64, 5, 5, 5, 5)}, []string{"p50"}, 0)
	want := []string{"lat put size 8 shm: its p50 in the first is 0 or was not reported, and no change can be told"}
	if len(r.Rows) != 1 || !slices.Equal(r.Skipped, want) || r.OnlyOld != nil || r.OnlyNew != nil {
		t.Errorf("%+v", r)
	}
}

// Of several files of a side none speaks for the others.
func TestWhatDiffersWithinASideIsNamed(t *testing.T) {
	one, other := series(8, 10), series(8, 11)
	other.Env = &report.Env{Fabric: "shm", Kernel: "6.18", Ranks: 2, Device: &report.Device{Name: "a"}}
	for _, of := range [][2][]*report.Series{{{one, other}, {one}}, {{one, other}, {one, other}}} {
		r := Compare(of[0], of[1], []string{"p50"}, 0)
		says := strings.Join(r.Notes, "\n")
		if !strings.Contains(says, "the kernel differs: 6.1 and 6.18, then 6.1") || strings.Contains(says, "device") {
			t.Errorf("notes %q", r.Notes)
		}
	}
}
