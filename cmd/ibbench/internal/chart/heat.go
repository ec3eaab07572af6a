package chart

import (
	"fmt"
	"html"
	"strings"
)

// Picture is something that can be drawn.
type Picture interface{ SVG() string }

// Heat is a map of a square of cells, each at a level.
type Heat struct {
	Title         string
	Rows, Columns string // what the axes have
	Legend        string // what the levels are of
	Levels        []string
	Cells         [][]Cell // by row and column
}

// Cell has a level, -1 for none.
type Cell struct {
	Level int
	Text  string // for who points at it, and for screen readers
}

// Levels are told apart by brightness, also in print; the highest two have a mark besides.
var heatColors = []string{"#dbe9f6", "#9ecae1", "#fdae6b", "#e6550d", "#7f1d00"}

// Sizes of a heat map in CSS pixels.
const (
	heatSide    = 440
	heatBiggest = 44
	heatLeft    = 60
	heatTop     = 60
)

// SVG draws the map.
func (h *Heat) SVG() string {
	var b strings.Builder
	n := max(len(h.Cells), 1)
	side := min(heatBiggest, float64(heatSide)/float64(n))
	edge := side * float64(n)
	high := max(heatTop+edge+20, heatTop+30+float64(legendStep*len(h.Levels)))
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img" aria-label="%s" font-family="sans-serif" font-size="12">`+"\n",
		width, high, width, high, html.EscapeString(h.Title))
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(h.Title))
	text(&b, heatLeft, heatTop-30, "start", "", h.Columns)
	text(&b, 4, heatTop-8, "start", "", h.Rows)
	step := 1 // of the numbers, so that they do not overlap
	for side*float64(step) < 24 {
		step *= 2
	}
	for i, row := range h.Cells {
		y := heatTop + side*float64(i)
		if i%step == 0 {
			text(&b, heatLeft-6, y+side/2+4, "end", "y", fmt.Sprint(i))
			text(&b, heatLeft+side*(float64(i)+0.5), heatTop-8, "middle", "x", fmt.Sprint(i))
		}
		for j, c := range row {
			if c.Level < 0 {
				continue
			}
			x := heatLeft + side*float64(j)
			fmt.Fprintf(&b, `<g class="cell" data-level="%d"><rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/><title>%s</title>`, c.Level, x, y, side, side,
				heatColors[c.Level], html.EscapeString(c.Text))
			if c.Level >= len(heatColors)-2 {
				fmt.Fprintf(&b, `<path d="M%.1f %.1fl%.1f %.1fm0 %.1fl%.1f %.1f" stroke="#fff" stroke-width="1.5"/>`, x+side/4, y+side/4, side/2, side/2, -side/2, -side/2, side/2)
			}
			b.WriteString("</g>\n")
		}
	}
	at := heatLeft + edge + 30
	text(&b, at, heatTop+8, "start", "", h.Legend)
	for k, name := range h.Levels {
		y := heatTop + 18 + float64(legendStep*k)
		fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="14" height="14" fill="%s"/>`+"\n", at, y, heatColors[k])
		text(&b, at+22, y+11, "start", "legend", name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
