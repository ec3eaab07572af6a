// Package chart draws lines with intervals, or bars, as SVG: one picture without script, fonts or
// anything else from outside, with a title for screen readers. Each point carries what it was drawn
// from (data-x, data-y).
package chart

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Chart is a picture of lines over a common X.
type Chart struct {
	Title  string
	X, Y   string // what the axes have, with the unit
	LogX   bool   // powers of two
	LogY   bool
	Binary bool    // X is in bytes
	Bars   bool    // points are bars from 0 instead, those of equal X side by side, without intervals
	Base   float64 // a line across at this Y, as 1 of ratios; 0: none
	Lines  []Line
}

// Line is a line of points, in ascending X.
type Line struct {
	Name   string
	Points []Point
}

// Point has an interval from Low to High, if they differ.
type Point struct{ X, Y, Low, High float64 }

// Sizes of a picture in CSS pixels.
const (
	width, height         = 760, 320
	left, right           = 74, 190
	top, bottom           = 36, 46
	innerWidth, innerHigh = width - left - right, height - top - bottom
	legendStep            = 18
	mostXTicks            = 10
	barWidth              = 6
)

// Lines are told apart by shape, too: not everyone sees colours, and prints may have none.
var (
	colors = []string{"#1b6ca8", "#c0392b", "#1e8449", "#7d3c98", "#b9770e", "#34495e", "#c2185b", "#00796b"}
	dashes = []string{"", "6 3", "2 3", "8 3 2 3", "12 4"}
)

// axis maps figures to places.
type axis struct {
	log        bool
	low, high  float64
	from, span float64
}

func (a axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	return a.from + (v-low)/(high-low)*a.span
}

// Column draws charts below each other, as one picture.
func Column(charts []*Chart) string {
	var b strings.Builder
	all := 0
	for _, c := range charts {
		fmt.Fprintf(&b, "<g transform=\"translate(0 %d)\">\n%s</g>\n", all, c.SVG())
		all += c.high()
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\">\n%s</svg>\n", width, all, width, all, b.String())
}

func (c *Chart) high() int { return max(height, top+legendStep*len(c.Lines)+bottom) }

// SVG draws the chart. A chart without points says so.
func (c *Chart) SVG() string {
	var b strings.Builder
	most := c.high()
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s" font-family="sans-serif" font-size="12">`+"\n",
		width, most, width, most, html.EscapeString(c.Title))
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(c.Title))
	text(&b, left, 14, "start", "title", c.Title)
	points := c.points()
	if len(points) == 0 {
		text(&b, left, top+20, "start", "", "nothing was measured")
	} else {
		x, y := c.axes(points)
		c.grid(&b, x, y)
		for i := range c.Lines {
			c.line(&b, i, x, y)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func text(b *strings.Builder, x, y float64, anchor, class, s string) {
	if class != "" {
		class = ` class="` + class + `"`
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="currentColor"%s>%s</text>`+"\n", x, y, anchor, class, html.EscapeString(s))
}

// points are those that can be drawn: of logarithms only what is above 0.
func (c *Chart) points() (all []Point) {
	for i := range c.Lines {
		l := &c.Lines[i]
		l.Points = slices.DeleteFunc(slices.Clone(l.Points), func(p Point) bool {
			return math.IsNaN(p.X+p.Y) || math.IsInf(p.X+p.Y, 0) || c.LogX && p.X <= 0 || c.LogY && p.Y <= 0
		})
		all = append(all, l.Points...)
	}
	return all
}

func (c *Chart) axes(points []Point) (x, y axis) {
	x = axis{log: c.LogX, low: math.Inf(1), high: math.Inf(-1), from: left, span: innerWidth}
	y = axis{log: c.LogY, low: math.Inf(1), high: math.Inf(-1), from: top + innerHigh, span: -innerHigh}
	for _, p := range points {
		x.low, x.high = min(x.low, p.X), max(x.high, p.X)
		y.low, y.high = min(y.low, p.Y), max(y.high, p.Y)
		if p.Low < p.High && (!c.LogY || p.Low > 0) {
			y.low, y.high = min(y.low, p.Low), max(y.high, p.High)
		}
	}
	if c.Base > 0 {
		y.low, y.high = min(y.low, c.Base), max(y.high, c.Base)
	}
	if c.Bars {
		pad := (x.high - x.low) / 20
		x.low, x.high = x.low-pad, x.high+pad
	}
	if x.low == x.high {
		if x.low, x.high = x.low-1, x.high+1; c.LogX {
			x.low, x.high = (x.low+1)/2, (x.high-1)*2
		}
	}
	if !c.LogY {
		y.low, y.high = min(y.low, 0), nice(y.high, true)
		return x, y
	}
	y.low, y.high = nice(y.low, false), nice(y.high, true)
	if y.low == y.high {
		y.high *= 2
	}
	return x, y
}

// nice is the next of 1, 2 and 5 times a power of ten, upwards or downwards.
func nice(v float64, up bool) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	steps := []float64{1, 2, 5, 10}
	for i, s := range steps {
		switch {
		case up && s*power >= v*(1-1e-9):
			return s * power
		case !up && i+1 < len(steps) && steps[i+1]*power > v*(1+1e-9):
			return s * power
		}
	}
	return 10 * power
}

// ticks of an axis: of a logarithm 1, 2 and 5 of each decade, or powers of ten where these are too
// many; else five steps.
func (a axis) ticks() (at []float64) {
	if !a.log {
		for i := range 6 {
			at = append(at, a.low+(a.high-a.low)*float64(i)/5)
		}
		return at
	}
	steps := []float64{1, 2, 5}
	if math.Log10(a.high/a.low) > 4 {
		steps = steps[:1]
	}
	for power := math.Pow(10, math.Floor(math.Log10(a.low))); power <= a.high; power *= 10 {
		for _, s := range steps {
			if v := s * power; v >= a.low*(1-1e-9) && v <= a.high*(1+1e-9) {
				at = append(at, v)
			}
		}
	}
	return at
}

// doublings are the ticks of an axis of powers of two: each, each second one, and so on.
func (a axis) doublings() (at []float64) {
	low, high := math.Ceil(math.Log2(a.low)-1e-9), math.Floor(math.Log2(a.high)+1e-9)
	step := math.Ceil((high - low + 1) / mostXTicks)
	for e := low; e <= high; e += step {
		at = append(at, math.Exp2(e))
	}
	return at
}

func (c *Chart) grid(b *strings.Builder, x, y axis) {
	for _, v := range y.ticks() {
		at := y.at(v)
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="currentColor" stroke-opacity="0.15"/>`+"\n", left, at, innerWidth)
		text(b, left-8, at+4, "end", "y", number(v))
	}
	ticks := x.ticks()
	if c.LogX {
		if ticks = x.doublings(); len(ticks) < 2 {
			ticks = []float64{x.low, x.high} // less than a power of two apart
		}
	}
	for _, v := range ticks {
		at := x.at(v)
		fmt.Fprintf(b, `<path d="M%.1f %dv5" stroke="currentColor" stroke-opacity="0.5"/>`+"\n", at, top+innerHigh)
		label := number(v)
		if c.Binary {
			label = Bytes(v)
		}
		text(b, at, top+innerHigh+18, "middle", "x", label)
	}
	text(b, left+innerWidth/2, top+innerHigh+38, "middle", "", c.X)
	text(b, left, top-10, "end", "", c.Y)
	if c.Base > 0 {
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="currentColor" stroke-dasharray="4 4"/>`+"\n", left, y.at(c.Base), innerWidth)
	}
}

// number is a figure with three digits, and all of those before the point up to a million.
func number(v float64) string {
	if a := math.Abs(v); a >= 1000 && a < 1e6 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// Bytes is a size in binary units.
func Bytes(v float64) string {
	for _, u := range []string{"", "K", "M", "G"} {
		if v < 1024 || u == "G" {
			return fmt.Sprintf("%.4g%s", v, u)
		}
		v /= 1024
	}
	return ""
}

func (c *Chart) line(b *strings.Builder, i int, x, y axis) {
	l, color := &c.Lines[i], colors[i%len(colors)]
	style := fmt.Sprintf(`stroke="%s" stroke-width="1.8" fill="none"`, color)
	if d := dashes[i/2%len(dashes)]; d != "" {
		style += fmt.Sprintf(` stroke-dasharray="%s"`, d)
	}
	var path strings.Builder
	for k, p := range l.Points {
		fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(k, 1)], x.at(p.X), y.at(p.Y))
	}
	fmt.Fprintf(b, `<g class="line" data-name="%s">`+"\n", html.EscapeString(l.Name))
	if len(l.Points) > 1 && !c.Bars {
		fmt.Fprintf(b, `<path d="%s" %s/>`+"\n", path.String(), style)
	}
	radius := 2.6
	if len(l.Points) > 40 {
		radius = 1.2
	}
	for _, p := range l.Points {
		if c.Bars {
			from := x.at(p.X) + barWidth*(float64(i)-float64(len(c.Lines))/2)
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%d" height="%.1f" fill="%s" data-x="%v" data-y="%v"><title>%s: %s</title></rect>`+"\n",
				from, y.at(p.Y), barWidth, y.at(0)-y.at(p.Y), color, p.X, p.Y, html.EscapeString(l.Name), number(p.Y))
			continue
		}
		if p.Low < p.High && (!c.LogY || p.Low > 0) {
			fmt.Fprintf(b, `<path d="M%.1f %.1fV%.1f" stroke="%s" stroke-width="1"/>`+"\n", x.at(p.X), y.at(p.Low), y.at(p.High), color)
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s" data-x="%v" data-y="%v"><title>%s: %s</title></circle>`+"\n",
			x.at(p.X), y.at(p.Y), radius, color, p.X, p.Y, html.EscapeString(l.Name), number(p.Y))
	}
	b.WriteString("</g>\n")
	at := float64(top + 8 + legendStep*i)
	fmt.Fprintf(b, `<path d="M%d %.1fh22" %s/>`+"\n", left+innerWidth+14, at-4, style)
	text(b, left+innerWidth+42, at, "start", "legend", l.Name)
}
