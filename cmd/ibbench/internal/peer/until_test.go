package peer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// contestOf has rounds with these ratios.
func contestOf(ratios ...float64) *contest {
	x := &contest{}
	for _, r := range ratios {
		x.rounds = append(x.rounds, report.Round{Ours: report.Figures{P50: 1000 * r}, Theirs: report.Figures{P50: 1000}})
	}
	return x
}

func all(n int) []bool {
	kept := make([]bool, n)
	for i := range kept {
		kept[i] = true
	}
	return kept
}

func TestRoundsEndWhenMediansAreKnown(t *testing.T) {
	narrow := contestOf(1.50, 1.51, 1.52, 1.49, 1.5, 1.5)
	wide := contestOf(1.0, 1.51, 1.52, 1.49, 1.5, 1.5)
	judge := &contest{silent: true}
	for _, c := range []struct {
		name string
		all  []*contest
		kept []bool
		want bool
	}{
		{"narrow", []*contest{narrow, judge}, all(6), true},
		{"one is wide", []*contest{narrow, wide}, all(6), false},
		{"five rounds have no interval", []*contest{narrow}, []bool{true, true, false, true, true, true}, false},
	} {
		w := Until{Budget: time.Hour, Within: 0.05}.begin()
		w.round()
		if got := w.over(c.all, c.kept); got != c.want {
			t.Errorf("%s: over is %v", c.name, got)
		}
	}
}

func TestRoundsEndWhenNoFurtherOneFits(t *testing.T) {
	w := Until{Budget: time.Hour, Within: 0.05}.begin()
	w.begun = w.begun.Add(-time.Hour)
	if w.over(nil, nil) {
		t.Error("over before the first round, which is always measured")
	}
	w.begun = w.begun.Add(10 * time.Minute)
	w.last = w.last.Add(-5 * time.Minute)
	if w.round(); w.over([]*contest{contestOf(1)}, all(1)) {
		t.Errorf("a round of %v fits into 10 minutes", w.latest)
	}
	w.last = w.last.Add(-11 * time.Minute)
	if w.round(); !w.over([]*contest{contestOf(1, 1)}, all(2)) {
		t.Errorf("a round of %v does not fit into 10 minutes", w.latest)
	}
}

// comparisonOf has one point, whose tool does what the shell script says.
func comparisonOf(t *testing.T, body string, u Until) (*Comparison, []*contest) {
	t.Helper()
	pt := plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8}
	c := &Comparison{
		Peer: Perftest, Plan: &plan.Plan{Points: []plan.Point{pt}}, Until: u, Timeout: time.Minute, Say: func(string) {},
		Ours: func(context.Context, *plan.Plan) ([]*report.Series, error) {
			return nil, errors.New("no such device of ours")
		},
	}
	return c, []*contest{{of: Perftest, point: pt, pair: Pair{Path: script(t, body), Timeout: time.Minute}}}
}

// What a budget has no time for does not take what was measured away.
func TestARoundBeyondTheBudgetDoesNotCount(t *testing.T) {
	c, x := comparisonOf(t, "exec sleep 1000", Until{Budget: 50 * time.Millisecond, Within: 0.05})
	kept, err := c.rounds(t.Context(), x, x[0])
	if err == nil || !strings.Contains(err.Error(), "twice the budget of 50ms") || kept != nil {
		t.Errorf("the first round: %v, %v", kept, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.rounds(ctx, x, x[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

func TestARoundThatFailsIsRepeatedTwice(t *testing.T) {
	c, x := comparisonOf(t, "echo no such device >&2; exit 1", Until{Budget: time.Hour, Within: 0.05})
	said := 0
	c.Say = func(text string) {
		if strings.Contains(text, "failed and is repeated") {
			said++
		}
	}
	if _, err := c.rounds(t.Context(), x, x[0]); err == nil || !strings.Contains(err.Error(), "no such device") || said != 2 {
		t.Errorf("%d repetitions, %v", said, err)
	}
}

func TestAPointOfUCXIsReadExactly(t *testing.T) {
	const text = `|    Stage     | # iterations | 50.0%ile | average | overall |
[thread 0]             10000      0.500     0.900     0.900       39.15      39.15     5132159     5132159
Final:                 20000      0.180     0.195     0.212       39.15      39.15     5132159     5132159
`
	lat := plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8, Iters: 20000}
	got, err := parseUCX(text, lat)
	if err != nil || got.Figures != (report.Figures{P50: 180, Mean: 212}) || got.Iters != 20000 {
		t.Errorf("%+v, %v", got, err)
	}
	for text, want := range map[string]string{
		"": "no line of the whole run", "Final: 20000 0.1": "no line of the whole run",
		"Final: 20000 nan 0.1 0.2": "no time in us", "Final: 20000 0.1 0.1 -2": "no time in us",
		"Final: 20000 0.000 0.000 0.000": "the mean is 0",
	} {
		if _, err := parseUCX(text, lat); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// A median below the digits of a tool is none.
func TestAFigureOfZeroIsNoBestRound(t *testing.T) {
	theirs := []report.Figures{{P50: 1, Mean: 2}, {Mean: 3}, {P50: 2, Mean: 1}}
	x := &contest{times: 1, series: []*report.Series{{Result: report.Result{Unit: "ns"}}}, theirs: new(Output)}
	for _, f := range theirs {
		x.rounds = append(x.rounds, report.Round{Ours: report.Figures{P50: 4, Mean: 5, P99: 6}, Theirs: f})
	}
	s := x.report([]bool{true, true, true}, "")
	if p := s.Peer().Result; p.Min != 1 || p.P["50"] != 2 || p.Mean != 2 || s.Value("ratio.best") != 4 || s.Has("ratio.p99") {
		t.Errorf("%+v, ratio %+v", p, s.Metrics)
	}
}

func TestAMissingUCXSaysHowToInstallIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	c := &Comparison{Plan: &plan.Plan{Device: "sv0"}, Port: 1}
	if _, err := c.contest(UCX, plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8, Iters: 10}); !errors.Is(err, ErrNoUCX) || !strings.Contains(err.Error(), "apt-get install ucx-utils") {
		t.Error(err)
	}
}
