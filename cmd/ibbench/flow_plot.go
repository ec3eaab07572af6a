package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// plot is a chart of lines, as SVG.
type plot struct {
	title, x, y string
	lines       []plotLine
	bars        bool // each line's points are bars instead, those of equal x side by side
}

// plotLine is one line, or the bars of one kind.
type plotLine struct {
	name string
	x, y []float64
}

const (
	plotWidth, plotHeight  = 640, 300
	plotLeft, plotRight    = 70, 150
	plotTop, plotBottom    = 34, 44
	plotTicks              = 5
	plotInnerX, plotInnerY = plotWidth - plotLeft - plotRight, plotHeight - plotTop - plotBottom
)

var plotColors = []string{"#c0392b", "#2471a3", "#1e8449", "#7d3c98", "#b9770e"}

// svg draws plots below each other.
func svg(plots []plot) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", plotWidth, plotHeight*len(plots))
	for i, p := range plots {
		fmt.Fprintf(&b, `<g transform="translate(0,%d)">`+"\n", i*plotHeight)
		p.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// ceil is the least of 1, 2 and 5 times a power of ten that is not below v.
func ceil(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if f*power >= v {
			return f * power
		}
	}
	return 10 * power
}

func (p plot) draw(b *strings.Builder) {
	minX, maxX, maxY := math.Inf(1), math.Inf(-1), 0.0
	for _, l := range p.lines {
		for i := range l.x {
			minX, maxX, maxY = min(minX, l.x[i]), max(maxX, l.x[i]), max(maxY, l.y[i])
		}
	}
	maxY = ceil(maxY)
	pad := 0.0
	if p.bars || minX >= maxX {
		pad = max((maxX-minX)/20, 0.5)
	}
	minX, maxX = minX-pad, maxX+pad
	atX := func(v float64) float64 { return plotLeft + (v-minX)/(maxX-minX)*plotInnerX }
	atY := func(v float64) float64 { return plotTop + (1-v/maxY)*plotInnerY }
	text := func(x, y float64, anchor, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
	}
	text(plotLeft, 16, "start", p.title)
	text(plotLeft+plotInnerX/2, plotHeight-8, "middle", p.x)
	text(plotLeft, plotTop-6, "end", p.y)
	for i := range plotTicks + 1 {
		v := float64(i) / plotTicks
		y := atY(v * maxY)
		fmt.Fprintf(b, `<path d="M%d %.1fH%d" stroke="#ddd"/>`+"\n", plotLeft, y, plotLeft+plotInnerX)
		text(plotLeft-6, y+4, "end", fmt.Sprintf("%.4g", v*maxY))
		x := minX + v*(maxX-minX)
		text(atX(x), plotTop+plotInnerY+16, "middle", fmt.Sprintf("%.4g", x))
	}
	width := float64(plotInnerX) / 40
	for n, l := range p.lines {
		color := plotColors[n%len(plotColors)]
		if p.bars {
			for i := range l.x {
				x := atX(l.x[i]) + (float64(n)-float64(len(p.lines))/2)*width
				fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, atY(l.y[i]), width, atY(0)-atY(l.y[i]), color)
			}
		} else if len(l.x) > 0 {
			var d strings.Builder
			for i := range l.x {
				fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(i, 1)], atX(l.x[i]), atY(l.y[i]))
			}
			fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.6"/>`+"\n", d.String(), color)
		}
		y := float64(plotTop + 16*n)
		fmt.Fprintf(b, `<rect x="%d" y="%.1f" width="10" height="10" fill="%s"/>`+"\n", plotWidth-plotRight+12, y, color)
		text(plotWidth-plotRight+28, y+9, "start", l.name)
	}
}

// svg draws the report as the paper's figures 2, 4 and 5.
func (o *jacobiReport) svg() string {
	arms, sizes := o.names()
	var plots []plot
	var wave plot
	for _, w := range o.Wave {
		l := plotLine{name: w.Arm, x: w.Seconds}
		for _, n := range w.Bytes {
			l.y = append(l.y, float64(n)/(1<<20))
		}
		wave.lines = append(wave.lines, l)
	}
	if wave.title, wave.x, wave.y = "memory of a rank over time (fig. 2)", "seconds", "MiB"; len(wave.lines) > 0 {
		plots = append(plots, wave)
	}
	if len(sizes) > 1 {
		lines := func(of func(*jacobiRun) float64) (all []plotLine) {
			for _, a := range arms {
				l := plotLine{name: a}
				for _, n := range sizes {
					if r := o.at(a, n); r != nil && r.Failed == "" {
						l.x, l.y = append(l.x, float64(r.Sizes.Persistent)/(1<<20)), append(l.y, of(r))
					}
				}
				all = append(all, l)
			}
			return all
		}
		bars := plot{title: "memory by size (fig. 4b)", x: "MiB of arrays of a rank", y: "MiB", bars: true}
		bars.lines = append(lines(func(r *jacobiRun) float64 { return float64(r.Sizes.Persistent+r.Peak) / (1 << 20) }),
			plotLine{name: "arrays alone"})
		last := &bars.lines[len(bars.lines)-1]
		last.x = bars.lines[len(arms)-1].x
		last.y = last.x
		plots = append(plots,
			plot{title: "time by size (figs. 4a, 5a)", x: "MiB of arrays of a rank", y: "s", lines: lines(func(r *jacobiRun) float64 { return r.Elapsed.Seconds() })},
			plot{title: "major faults by size (tables 1, 2)", x: "MiB of arrays of a rank", y: "faults", lines: lines(func(r *jacobiRun) float64 { return float64(r.Faults) })},
			bars)
	}
	if len(o.Sweep) > 1 {
		l := plotLine{name: "tokens"}
		for _, r := range o.Sweep {
			l.x, l.y = append(l.x, float64(r.Tokens)), append(l.y, 1e3*r.Elapsed.Seconds()/float64(o.Iterations))
		}
		plots = append(plots, plot{title: "time against tokens (fig. 6a)", x: "tokens", y: "ms an iteration", lines: []plotLine{l}})
	}
	return svg(plots)
}
