package main

import (
	"math"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
)

// svg draws the report as the paper's figures 2, 4 to 6a.
func (o *jacobiReport) svg() string {
	arms, sizes := o.names()
	var plots []*chart.Chart
	if len(o.Wave) > 0 {
		c := &chart.Chart{Title: "memory of a rank over time (fig. 2)", X: "seconds", Y: "MiB"}
		for _, w := range o.Wave {
			c.Lines = append(c.Lines, chart.Line{Name: w.Arm, Points: w.peaks(100)})
		}
		plots = append(plots, c)
	}
	if len(sizes) > 1 {
		by := func(title, y string, of func(*jacobiRun) float64) *chart.Chart {
			c := &chart.Chart{Title: title, X: "MiB of arrays of a rank", Y: y}
			for _, a := range arms {
				l := chart.Line{Name: a}
				for _, n := range sizes {
					if r := o.at(a, n); r != nil && r.Failed == "" {
						l.Points = append(l.Points, chart.Point{X: float64(r.Sizes.Persistent) / (1 << 20), Y: of(r)})
					}
				}
				c.Lines = append(c.Lines, l)
			}
			return c
		}
		bars := by("memory by size (fig. 4b)", "MiB", func(r *jacobiRun) float64 { return float64(r.Sizes.Persistent+r.Peak) / (1 << 20) })
		alone := chart.Line{Name: "arrays alone"}
		for _, p := range bars.Lines[len(arms)-1].Points {
			alone.Points = append(alone.Points, chart.Point{X: p.X, Y: p.X})
		}
		bars.Bars, bars.Lines = true, append(bars.Lines, alone)
		plots = append(plots,
			by("time by size (figs. 4a, 5a)", "s", func(r *jacobiRun) float64 { return r.Elapsed.Seconds() }),
			by("major faults by size (tables 1, 2)", "faults", func(r *jacobiRun) float64 { return float64(r.Faults) }),
			bars)
	}
	if len(o.Sweep) > 1 {
		l := chart.Line{Name: "tokens"}
		for _, r := range o.Sweep {
			l.Points = append(l.Points, chart.Point{X: float64(r.Tokens), Y: 1e3 * r.Elapsed.Seconds() / float64(o.Iterations)})
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
