package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
)

func (o *jacobiReport) series() (all []*report.Series) {
	grid := fmt.Sprintf("%d points of cubes of %d^3", o.Points, o.Edge)
	for _, r := range slices.Concat(o.Runs, o.Sweep) {
		all = append(all, flowTime("jacobi", grid, int64(r.Cubes), r.Elapsed, o.Iterations,
			flowMemory{arm: r.name(), counts: "cubes along x", limit: o.Limit, peak: r.Peak, faults: r.Faults, failed: r.Failed}))
	}
	if o.Hog == nil {
		return all
	}
	for _, r := range o.Hog.Rows {
		f := flowMemory{arm: r.name(), counts: "cubes along x", limit: o.Limit, failed: r.Failed}
		all = append(all, flowTime("jacobi before a hog", grid, int64(o.Hog.Cubes), r.Phase1, 1, f))
		f.faults = r.Faults
		all = append(all, flowTime("jacobi with a hog", grid, int64(o.Hog.Cubes), r.Phase2, 1, f))
	}
	return all
}

// Text has faults and seconds as the paper's tables 1 and 2, and memory as its figure 4b.
func (o *jacobiReport) Text() string {
	var t flowText
	in := ""
	if o.Limit > 0 {
		in = fmt.Sprintf(", each in %s MiB", mib(o.Limit))
	}
	t.line("Jacobi, %d points, cubes of %d^3, %d ranks over %s%s; %s; results verified", o.Points, o.Edge, o.Ranks, o.Fabric, in, errtext.Count(o.Iterations, "iteration"))
	grid := func(r *flowRun) string { return fmt.Sprintf("%d*%d*%d", r.Cubes*o.Edge, o.Ranks*o.Edge, 2*o.Edge) }
	t.grid("major faults", "grid", o.Runs, grid, faults)
	t.grid("seconds", "grid", o.Runs, grid, seconds)
	t.grid("peak of faces in MiB", "grid", o.Runs, grid, peak)
	t.grid("arrays of a rank in MiB", "grid", o.Runs, grid, func(r *flowRun) string { return mib(r.Sizes.Persistent) })
	if o.Touched > 0 {
		t.line("\nof the limit %s MiB can be touched without a major fault (M)", mib(o.Touched))
	}
	rows := [][]string{{"largest that fits", "tau", "model cubes", "measured", "M_A MiB", "fixed MiB", "ratio", "model", "a step"}}
	for _, k := range o.Knees {
		rows = append(rows, []string{k.Arm, thousandths(k.Tau), fmt.Sprintf("%.1f", k.Predicted), strconv.Itoa(k.Measured), mib(k.Own), mib(o.Fixed[k.Arm]),
			thousandths(k.Ratio), thousandths(k.Model), thousandths(k.Step)})
	}
	t.table("knees", rows)
	rows = [][]string{{"tokens", "ms an iteration", "faults", "peak KiB"}}
	for _, r := range o.Sweep {
		rows = append(rows, []string{strconv.Itoa(r.Tokens), fmt.Sprintf("%.1f", o.millis(&r)), faults(&r), fmt.Sprint(r.Peak >> 10)})
	}
	if len(o.Sweep) > 0 {
		t.table(errtext.Count(o.Sweep[0].Cubes, "cube")+" along x", rows)
	}
	o.Hog.text(&t)
	t.failures(slices.Concat(o.Runs, o.Sweep), o.Left, func(r *flowRun) string { return errtext.Count(r.Cubes, "cube") })
	return t.String()
}

func thousandths(v float64) string { return fmt.Sprintf("%.3f", v) }

// millis of an iteration.
func (o *jacobiReport) millis(r *flowRun) float64 {
	return 1e3 * r.Elapsed.Seconds() / float64(o.Iterations)
}

// SVG draws the report as the paper's figures 2, 4 to 6a.
func (o *jacobiReport) SVG() string {
	var plots []*chart.Chart
	if len(o.Wave) > 0 {
		c := &chart.Chart{Title: "memory of a rank over time (fig. 2)", X: "seconds", Y: "MiB"}
		for _, w := range o.Wave {
			c.Lines = append(c.Lines, chart.Line{Name: w.Arm, Points: w.peaks(100)})
		}
		plots = append(plots, c)
	}
	if slices.ContainsFunc(o.Runs, func(r flowRun) bool { return r.Cubes != o.Runs[0].Cubes }) {
		arrays := func(r *flowRun) float64 { return float64(r.Sizes.Persistent) / (1 << 20) }
		by := func(c chart.Chart, of func(*flowRun) float64) *chart.Chart {
			c.X = "MiB of arrays of a rank"
			return curves(c, o.Runs, arrays, of)
		}
		bars := by(chart.Chart{Title: "memory by size (fig. 4b)", Y: "MiB", Bars: true}, func(r *flowRun) float64 { return arrays(r) + float64(r.Peak)/(1<<20) })
		if alone := by(chart.Chart{}, arrays).Lines; len(alone) > 0 {
			alone[len(alone)-1].Name = "arrays alone"
			bars.Lines = append(bars.Lines, alone[len(alone)-1])
		}
		plots = append(plots, by(chart.Chart{Title: "time by size (figs. 4a, 5a)", Y: "s"}, secondsOf),
			by(chart.Chart{Title: "major faults by size (tables 1, 2)", Y: "faults"}, faultsOf), bars)
	}
	if len(o.Sweep) > 1 {
		l := chart.Line{Name: "tokens"}
		for _, r := range o.Sweep {
			l.Points = append(l.Points, chart.Point{X: float64(r.Tokens), Y: o.millis(&r)})
		}
		plots = append(plots, &chart.Chart{Title: "time of an iteration against tokens (fig. 6a)", X: "tokens", Y: "ms", LogX: true, Lines: []chart.Line{l}})
	}
	return chart.Column(plots)
}

// peaks are n points at most, each the largest of as many samples.
func (w *jacobiWave) peaks(n int) (all []chart.Point) {
	step := (len(w.Bytes) + n - 1) / n
	for i, used := range w.Bytes {
		p := chart.Point{X: math.Round(1e3*w.Seconds[i]) / 1e3, Y: float64(used) / (1 << 20)}
		if last := len(all) - 1; i%step == 0 {
			all = append(all, p)
		} else if p.Y > all[last].Y {
			all[last] = p
		}
	}
	return all
}
