package chart

import (
	"encoding/xml"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

type place struct {
	X    float64 `xml:"x,attr"`
	Y    float64 `xml:"y,attr"`
	CX   float64 `xml:"cx,attr"`
	CY   float64 `xml:"cy,attr"`
	DX   float64 `xml:"data-x,attr"`
	DY   float64 `xml:"data-y,attr"`
	Kind string  `xml:"class,attr"`
	Text string  `xml:",chardata"`
	Side string  `xml:"text-anchor,attr"`
}

// drawn takes a picture apart.
func drawn(t *testing.T, svg string) (texts, circles []place) {
	t.Helper()
	var root struct {
		Texts []place `xml:"text"`
		Lines []struct {
			Circles []place `xml:"circle"`
		} `xml:"g"`
	}
	if err := xml.Unmarshal([]byte(svg), &root); err != nil {
		t.Fatalf("%v in\n%s", err, svg)
	}
	for _, l := range root.Lines {
		circles = append(circles, l.Circles...)
	}
	return root.Texts, circles
}

// Where a figure is drawn must be where the labels of the axes say that it is.
func TestPointsLieWhereTheirFiguresAre(t *testing.T) {
	for _, c := range []Chart{
		{Title: "linear", Lines: []Line{{"a", []Point{{X: 0, Y: 3}, {X: 5, Y: 9}, {X: 10, Y: 1, Low: .5, High: 12}}}}},
		{Title: "logarithms", LogX: true, LogY: true, Binary: true, Lines: []Line{{"a", []Point{{X: 8, Y: .3}, {X: 4096, Y: 2}, {X: 1 << 20, Y: 120}}}, {"b", []Point{{X: 64, Y: 7}}}}},
		{Title: "one point", LogX: true, Lines: []Line{{"a", []Point{{X: 8, Y: 5}}}}},
		{Title: "between two powers of two", LogX: true, Binary: true, Lines: []Line{{"a", []Point{{X: 5, Y: 5}, {X: 6, Y: 6}, {X: 7, Y: 7}}}}},
		{Title: "close together", LogX: true, Lines: []Line{{"a", []Point{{X: .17, Y: 5}, {X: .19, Y: 50}, {X: .22, Y: 99}}}}},
		{Title: "ratios", Base: 1, LogX: true, Lines: []Line{{"a", []Point{{X: 8, Y: .5}, {X: 16, Y: .7}}}}},
	} {
		t.Run(c.Title, func(t *testing.T) {
			texts, circles := drawn(t, c.SVG())
			want := 0
			for _, l := range c.Lines {
				want += len(l.Points)
			}
			if len(circles) != want {
				t.Fatalf("%d points are drawn, want %d", len(circles), want)
			}
			for _, p := range circles {
				if x := read(t, texts, "x", p.CX, c.LogX); math.Abs(x-p.DX) > .02*math.Max(math.Abs(p.DX), 1) {
					t.Errorf("a point of X %v is drawn where the axis has %v", p.DX, x)
				}
				if y := read(t, texts, "y", p.CY, c.LogY); math.Abs(y-p.DY) > .02*math.Max(math.Abs(p.DY), .1) {
					t.Errorf("a point of Y %v is drawn where the axis has %v", p.DY, y)
				}
			}
		})
	}
}

// read is the figure at a place of an axis, by two of its labels.
func read(t *testing.T, texts []place, axis string, at float64, log bool) float64 {
	t.Helper()
	var v, where []float64
	for _, s := range texts {
		if s.Kind != axis {
			continue
		}
		v = append(v, value(t, s.Text))
		if axis == "x" {
			where = append(where, s.X)
		} else {
			where = append(where, s.Y-4)
		}
	}
	last := len(v) - 1
	if last < 1 {
		t.Fatalf("axis %s has %d labels", axis, last+1)
	}
	part := (at - where[0]) / (where[last] - where[0])
	if log {
		return math.Exp(math.Log(v[0]) + part*(math.Log(v[last])-math.Log(v[0])))
	}
	return v[0] + part*(v[last]-v[0])
}

func value(t *testing.T, label string) float64 {
	t.Helper()
	unit := 1.0
	if i := strings.IndexAny(label, "KMG"); i > 0 {
		unit = map[byte]float64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}[label[i]]
		label = label[:i]
	}
	v, err := strconv.ParseFloat(label, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v * unit
}

// A label is some 7 pixels a letter wide, and 12 high.
func TestLabelsDoNotOverlap(t *testing.T) {
	wide := Chart{Title: "from a byte to a gigabyte", X: "bytes", Y: "us", LogX: true, LogY: true, Binary: true}
	for i := range 14 {
		l := Line{Name: "line " + strconv.Itoa(i)}
		for e := range 31 {
			l.Points = append(l.Points, Point{X: math.Exp2(float64(e)), Y: math.Pow(1.7, float64(e)) * float64(i+1)})
		}
		wide.Lines = append(wide.Lines, l)
	}
	long := Chart{Title: "long figures", X: "seconds", Y: "faults", Lines: []Line{{"a", []Point{{X: 0.001, Y: 123456}, {X: 98765, Y: 987654}}}}}
	for _, c := range []Chart{wide, long} {
		texts, _ := drawn(t, c.SVG())
		for i, a := range texts {
			if a.X < 0 || a.X > width {
				t.Errorf("%s: %q is outside of the picture", c.Title, a.Text)
			}
			for _, b := range texts[i+1:] {
				if overlap(a, b) {
					t.Errorf("%s: %q and %q overlap", c.Title, a.Text, b.Text)
				}
			}
		}
	}
}

func overlap(a, b place) bool {
	from := func(p place) (lo, hi float64) {
		w := 7 * float64(len(p.Text))
		switch p.Side {
		case "middle":
			return p.X - w/2, p.X + w/2
		case "end":
			return p.X - w, p.X
		}
		return p.X, p.X + w
	}
	alo, ahi := from(a)
	blo, bhi := from(b)
	return alo < bhi && blo < ahi && math.Abs(a.Y-b.Y) < 12
}

func TestNamesAreEscapedAndNothingIsFetched(t *testing.T) {
	c := Chart{Title: `<b>"R&D"</b>`, Lines: []Line{{`</svg><script>`, []Point{{X: 1, Y: 1}}}}}
	svg := c.SVG()
	drawn(t, svg)
	if strings.Contains(svg, "<script") || strings.Contains(svg, "<b>") {
		t.Error("a name is taken for markup")
	}
	if other := regexp.MustCompile(`(href|src|url\(|@import)`).FindString(svg); other != "" {
		t.Errorf("the picture refers to something else: %s", other)
	}
}

func TestNothingIsDrawnOfNothing(t *testing.T) {
	for _, c := range []Chart{{Title: "empty"}, {Title: "zeros", LogY: true, Lines: []Line{{"a", []Point{{X: 1, Y: 0}}}}}, {Title: "no number", Lines: []Line{{"a", []Point{{X: 1, Y: math.NaN()}}}}}} {
		texts, circles := drawn(t, c.SVG())
		if len(circles) != 0 || !strings.Contains(texts[len(texts)-1].Text, "nothing was measured") {
			t.Errorf("%s: %v", c.Title, texts)
		}
	}
}

// Bars stand on 0, and those of a line are beside the others'. A column has one chart below the
// other.
func TestBarsStandBesideEachOtherInAColumn(t *testing.T) {
	bars := Chart{Title: "bars", Bars: true, Lines: []Line{{"a", []Point{{X: 1, Y: 5}, {X: 9, Y: 10}}}, {"b", []Point{{X: 1, Y: 2.5}}}}}
	line := Chart{Title: "a line", Lines: []Line{{"a", []Point{{X: 1, Y: 5}}}}}
	var column struct {
		Height int `xml:"height,attr"`
		Charts []struct {
			At  string `xml:"transform,attr"`
			SVG struct {
				Height int `xml:"height,attr"`
				Lines  []struct {
					Bars []struct {
						X      float64 `xml:"x,attr"`
						Y      float64 `xml:"y,attr"`
						Width  float64 `xml:"width,attr"`
						Height float64 `xml:"height,attr"`
					} `xml:"rect"`
				} `xml:"g"`
			} `xml:"svg"`
		} `xml:"g"`
	}
	if err := xml.Unmarshal([]byte(Column([]*Chart{&bars, &line})), &column); err != nil {
		t.Fatal(err)
	}
	if c := column.Charts; len(c) != 2 || c[0].SVG.Height+c[1].SVG.Height != column.Height || c[1].At != "translate(0 "+strconv.Itoa(c[0].SVG.Height)+")" {
		t.Fatalf("%+v", column)
	}
	a, b := column.Charts[0].SVG.Lines[0].Bars, column.Charts[0].SVG.Lines[1].Bars
	if len(a) != 2 || len(b) != 1 || a[0].X+a[0].Width > b[0].X || b[0].X+b[0].Width > a[1].X {
		t.Fatalf("%+v, %+v", a, b)
	}
	for i, high := range map[int]float64{0: innerHigh / 2, 1: innerHigh} {
		if bar := a[i]; math.Abs(bar.Height-high) > .1 || math.Abs(bar.Y+bar.Height-(top+innerHigh)) > .2 {
			t.Errorf("%+v", bar)
		}
	}
}
