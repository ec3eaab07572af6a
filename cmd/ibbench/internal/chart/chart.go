// Package chart draws lines of points over a common axis as SVG: one picture without script, fonts
// or anything else from outside, with a title for screen readers. Both axes are logarithmic. Each
// point carries the figures that it was drawn from (data-x, data-y).
package chart

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Chart is a picture.
type Chart struct {
	Title string
	X, Y  string // what the axes have, with the unit
	Lines []Line
}

// Line is a line of points, in ascending X.
type Line struct {
	Name   string
	Points []Point
}

// Point is a point with figures above 0.
type Point struct{ X, Y float64 }

// Add adds a point to a line. One without logarithms is left out.
func (c *Chart) Add(name string, x, y float64) {
	if !(x > 0 && y > 0) || math.IsInf(x+y, 0) {
		return
	}
	i := slices.IndexFunc(c.Lines, func(l Line) bool { return l.Name == name })
	if i < 0 {
		i = len(c.Lines)
		c.Lines = append(c.Lines, Line{Name: name})
	}
	l := &c.Lines[i]
	at, _ := slices.BinarySearchFunc(l.Points, x, func(p Point, x float64) int { return cmp.Compare(p.X, x) })
	l.Points = slices.Insert(l.Points, at, Point{x, y})
}

// Sizes of a picture in CSS pixels.
const (
	width                 = 760
	left, right           = 74, 190
	top, bottom           = 36, 46
	innerWidth, innerHigh = width - left - right, 238
	legendStep            = 18
)

// Lines are told apart by shape, too: not everyone sees colours, and prints may have none.
var (
	colors = []string{"#1b6ca8", "#c0392b", "#1e8449", "#7d3c98", "#b9770e", "#34495e", "#c2185b", "#00796b"}
	dashes = []string{"", "6 3", "2 3", "8 3 2 3", "12 4"}
)

// axis maps logarithms of figures to places, from a power of its base to another.
type axis struct {
	base       float64
	low, high  float64 // exponents
	from, span float64
}

func newAxis(base float64, low, high, from, span float64) axis {
	log := func(v float64) float64 { return math.Log(v) / math.Log(base) }
	a := axis{base: base, low: math.Floor(log(low) + 1e-9), high: math.Ceil(log(high) - 1e-9), from: from, span: span}
	a.high = max(a.high, a.low+1)
	return a
}

func (a axis) at(v float64) float64 {
	return a.from + (math.Log(v)/math.Log(a.base)-a.low)/(a.high-a.low)*a.span
}

// ticks are the powers of the base, ten at most.
func (a axis) ticks() (at []float64) {
	step := math.Ceil((a.high - a.low + 1) / 10)
	for e := a.low; e <= a.high; e += step {
		at = append(at, math.Pow(a.base, e))
	}
	return at
}

// SVG draws the chart. A chart without points says so.
func (c *Chart) SVG() string {
	var b strings.Builder
	high := max(top+innerHigh, top+legendStep*len(c.Lines)) + bottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="sans-serif" font-size="12">`+"\n<title>%s</title>\n",
		width, high, width, high, html.EscapeString(c.Title))
	var xs, ys []float64
	for _, l := range c.Lines {
		for _, p := range l.Points {
			xs, ys = append(xs, p.X), append(ys, p.Y)
		}
	}
	if len(xs) == 0 {
		text(&b, "name", left, top+20, "start", "nothing was measured")
		return b.String() + "</svg>\n"
	}
	x := newAxis(2, slices.Min(xs), slices.Max(xs), left, innerWidth)
	y := newAxis(10, slices.Min(ys), slices.Max(ys), top+innerHigh, -innerHigh)
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<path d="M%d %.1fh%d" stroke="currentColor" stroke-opacity="0.15"/>`+"\n", left, y.at(v), innerWidth)
		text(&b, "y", left-8, y.at(v)+4, "end", fmt.Sprintf("%g", v))
	}
	for _, v := range x.ticks() {
		fmt.Fprintf(&b, `<path d="M%.1f %dv5" stroke="currentColor"/>`+"\n", x.at(v), top+innerHigh)
		text(&b, "x", x.at(v), top+innerHigh+18, "middle", short(v))
	}
	text(&b, "name", left+innerWidth/2, top+innerHigh+38, "middle", c.X)
	text(&b, "name", left, top-10, "end", c.Y)
	for i, l := range c.Lines {
		l.draw(&b, i, x, y)
	}
	return b.String() + "</svg>\n"
}

func text(b *strings.Builder, class string, x, y float64, anchor, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s" fill="currentColor">%s</text>`+"\n", class, x, y, anchor, html.EscapeString(s))
}

// short is a number with a binary unit.
func short(v float64) string {
	units := []string{"", "K", "M", "G"}
	for len(units) > 1 && v >= 1024 {
		v, units = v/1024, units[1:]
	}
	return fmt.Sprintf("%.4g%s", v, units[0])
}

// draw draws a line with its points, and its name in the legend.
func (l *Line) draw(b *strings.Builder, i int, x, y axis) {
	color := colors[i%len(colors)]
	style := fmt.Sprintf(`stroke="%s" stroke-width="1.8" fill="none" stroke-dasharray="%s"`, color, dashes[i/2%len(dashes)])
	var path strings.Builder
	for k, p := range l.Points {
		fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(k, 1)], x.at(p.X), y.at(p.Y))
	}
	fmt.Fprintf(b, `<path d="%s" %s/>`+"\n", path.String(), style)
	for _, p := range l.Points {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.6" fill="%s" data-x="%v" data-y="%v"><title>%s %.4g</title></circle>`+"\n",
			x.at(p.X), y.at(p.Y), color, p.X, p.Y, html.EscapeString(l.Name), p.Y)
	}
	at := float64(top + 8 + legendStep*i)
	fmt.Fprintf(b, `<path d="M%d %.1fh22" %s/>`+"\n", left+innerWidth+14, at-4, style)
	text(b, "legend", left+innerWidth+42, at, "start", l.Name)
}
