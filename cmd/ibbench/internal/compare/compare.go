// Package compare says which points of two sets of results have become faster or slower.
//
// A figure of a point is one round's: of another run, of --rounds, or of a comparison with a peer.
// Whether the figures of both sides differ is said by the Mann-Whitney U test (Mann and Whitney
// 1947), which assumes no distribution: two-sided, exact for few rounds, with the
// correction for ties else. With fewer than MinRounds on a side there is no verdict.
package compare

import (
	"fmt"
	"maps"
	"math"
	"slices"

	mm "github.com/aclements/go-moremath/stats"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// MinRounds is the least number of figures of a side: with 4 and 4 the least two-sided probability
// that a rank test can give is 2/70, below Alpha; with 3 and 3 it is 2/20.
const MinRounds = 4

// Alpha is the probability of a verdict other than None where there is no difference.
const Alpha = 0.05

// Verdict on one figure of a point.
type Verdict string

// Verdicts.
const (
	Faster Verdict = "faster"
	Slower Verdict = "slower"
	None   Verdict = "no difference"
	Few    Verdict = "too few rounds"
)

// Row compares one figure of a point.
type Row struct {
	Point   string  `json:"point"`
	Metric  string  `json:"metric"` // p50, mean or p99
	Unit    string  `json:"unit"`
	Old     float64 `json:"old"` // medians of the rounds
	New     float64 `json:"new"`
	OldN    int     `json:"old_rounds"`
	NewN    int     `json:"new_rounds"`
	Change  float64 `json:"change"` // percent of Old
	P       float64 `json:"p"`      // of the test; 1 with too few rounds
	Verdict Verdict `json:"verdict"`
}

// Result of a comparison.
type Result struct {
	Rows    []Row    `json:"rows"`
	OnlyOld []string `json:"only_old,omitempty"` // points that the other side lacks
	OnlyNew []string `json:"only_new,omitempty"`
	Skipped []string `json:"not_compared,omitempty"` // figures that both have, with the reason
	Notes   []string `json:"notes,omitempty"`        // differences of the machines
}

// Slower reports whether a point is.
func (r *Result) Slower() bool {
	return slices.ContainsFunc(r.Rows, func(r Row) bool { return r.Verdict == Slower })
}

// point names what must be equal for two series to be compared.
func point(s *report.Series) string {
	p := &s.Plan
	name := s.Kind + " " + s.Op
	if s.Kind == report.KindPerftest { // of a latency, or a bandwidth, or a rate
		name = s.Kind + " " + p.Kind + " " + s.Op
	}
	add := func(ok bool, format string, args ...any) {
		if ok {
			name += " " + fmt.Sprintf(format, args...)
		}
	}
	add(p.Variant != "", "%s", p.Variant)
	add(p.Ack, "--ack")
	add(p.Bidi, "--bidi")
	add(p.Local != "", "--local %s", p.Local)
	add(true, "size %d", s.Size)
	add(s.Kind == plan.Cache, "cache %s", s.Text("cache.side"))
	add(s.Kind == plan.Flow, "%s", s.Text("flow.arm"))
	add(s.Value("flow.limit") > 0, "limit %.0f", s.Value("flow.limit"))
	throughput := p.Kind == plan.BW || p.Kind == plan.Rate
	add(p.Depth > 1 || throughput, "depth %d", p.Depth)
	add(p.Lanes > 1 || throughput, "lanes %d", p.Lanes)
	add(p.Goroutines > 0, "goroutines %d", p.Goroutines)
	add(p.PerSecond > 0, "at %g/s", p.PerSecond)
	add(p.Regions > 0, "regions %d", p.Regions)
	add(p.Origin != "", "origin %s", p.Origin)
	add(p.Steps > 0, "steps %d", p.Steps)
	add(p.Walk > 0, "walk %d", p.Walk)
	add(s.Env.Ranks > 2 || s.Kind == plan.Flow, "ranks %d", s.Env.Ranks)
	return name + " " + s.Env.Fabric
}

// rounds are the figures of a series, one of each round that counts.
func rounds(s *report.Series) (all []report.Figures) {
	p := s.Peer()
	switch {
	case p != nil:
		for _, r := range p.Rounds {
			if !r.Discarded {
				all = append(all, r.Ours)
			}
		}
	case len(s.Rounds) > 0:
		return s.Rounds
	default:
		all = []report.Figures{{P50: s.Result.P["50"], Mean: s.Result.Mean, P99: s.Result.P["99"]}}
	}
	return all
}

// side is one set of results.
type side struct {
	figures map[string][]report.Figures
	unit    map[string]string
}

func sideWith(all []*report.Series) side {
	x := side{map[string][]report.Figures{}, map[string]string{}}
	for _, s := range all {
		if s.Text("flow.failed") != "" {
			continue
		}
		name := point(s)
		x.figures[name] = append(x.figures[name], rounds(s)...)
		x.unit[name] = s.Result.Unit
	}
	return x
}

// metrics of a point's rounds.
var metrics = []struct {
	name string
	of   func(report.Figures) float64
}{
	{"p50", func(f report.Figures) float64 { return f.P50 }},
	{"mean", func(f report.Figures) float64 { return f.Mean }},
	{"p99", func(f report.Figures) float64 { return f.P99 }},
}

// Compare compares figures of the chosen metrics: of a latency some of p50, mean and
// p99, of a throughput its mean. A change of less than threshold percent is no difference. Neither
// side may be empty.
func Compare(older, newer []*report.Series, asked []string, threshold float64) *Result {
	x, y := sideWith(older), sideWith(newer)
	r := &Result{Notes: machines(older, newer)}
	for _, name := range slices.Sorted(maps.Keys(x.figures)) {
		if y.figures[name] == nil {
			r.OnlyOld = append(r.OnlyOld, name)
			continue
		}
		for _, m := range metrics {
			latency := x.unit[name] == "ns"
			if latency && !slices.Contains(asked, m.name) || !latency && m.name != "mean" {
				continue
			}
			a, b := pick(x.figures[name], m.of), pick(y.figures[name], m.of)
			if why := incomparable(m.name, a, b); why != "" {
				r.Skipped = append(r.Skipped, name+": "+why)
				continue
			}
			row := Row{Point: name, Metric: m.name, Unit: x.unit[name], OldN: len(a), NewN: len(b)}
			row.judge(a, b, latency, threshold)
			r.Rows = append(r.Rows, row)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(y.figures)) {
		if x.figures[name] == nil {
			r.OnlyNew = append(r.OnlyNew, name)
		}
	}
	return r
}

func pick(all []report.Figures, of func(report.Figures) float64) (v []float64) {
	for _, f := range all {
		v = append(v, of(f))
	}
	return v
}

// incomparable is why a figure of both sides, one of each round, is not compared, if it is not.
func incomparable(metric string, older, newer []float64) string {
	for i, v := range [][]float64{older, newer} {
		if stats.Median(v) <= 0 {
			return fmt.Sprintf("its %s in the %s is 0 or was not reported, and no change can be told", metric,
				[...]string{"first", "second"}[i])
		}
	}
	return ""
}

// judge fills in the verdict on the figures of both sides.
func (r *Row) judge(older, newer []float64, latency bool, threshold float64) {
	r.P = 1
	if t, err := mm.MannWhitneyUTest(older, newer, mm.LocationDiffers); err == nil { // else all figures are equal
		r.P = t.P
	}
	r.Old, r.New = stats.Median(older), stats.Median(newer)
	r.Change = 100 * (r.New - r.Old) / r.Old
	switch {
	case min(r.OldN, r.NewN) < MinRounds:
		r.P, r.Verdict = 1, Few
	case r.P >= Alpha || math.Abs(r.Change) < threshold || r.Change == 0:
		r.Verdict = None
	case r.Change < 0 == latency:
		r.Verdict = Faster
	default:
		r.Verdict = Slower
	}
}
