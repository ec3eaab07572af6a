package chart

import (
	"encoding/xml"
	"math"
	"regexp"
	"slices"
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
		Texts   []place `xml:"text"`
		Circles []place `xml:"circle"`
	}
	if err := xml.Unmarshal([]byte(svg), &root); err != nil {
		t.Fatalf("%v in\n%s", err, svg)
	}
	return root.Texts, root.Circles
}

// Where a figure is drawn must be where the labels of the axes say that it is.
func TestPointsLieWhereTheirFiguresAre(t *testing.T) {
	for _, c := range []Chart{
		{Title: "decades", Lines: []Line{{"a", []Point{{8, .3}, {4096, 2}, {1 << 20, 120}}}, {"b", []Point{{64, 7}}}}},
		{Title: "one point", Lines: []Line{{"a", []Point{{8, 5}}}}},
		{Title: "between two powers", Lines: []Line{{"a", []Point{{5, 5}, {6, 6}, {7, 7}}}}},
		{Title: "far apart", Lines: []Line{{"a", []Point{{1, 1e-4}, {1 << 30, 1e9}}}}},
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
				if x := read(t, texts, "x", p.CX); math.Abs(x-p.DX) > .02*math.Max(math.Abs(p.DX), 1) {
					t.Errorf("a point of X %v is drawn where the axis has %v", p.DX, x)
				}
				if y := read(t, texts, "y", p.CY); math.Abs(y-p.DY) > .02*math.Max(math.Abs(p.DY), .1) {
					t.Errorf("a point of Y %v is drawn where the axis has %v", p.DY, y)
				}
			}
		})
	}
}

// read is the figure at a place of an axis, by two of its labels.
func read(t *testing.T, texts []place, axis string, at float64) float64 {
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
	return math.Exp(math.Log(v[0]) + part*(math.Log(v[last])-math.Log(v[0])))
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
	wide := Chart{Title: "from a byte to a gigabyte", X: "bytes", Y: "us"}
	for i := range 14 {
		l := Line{Name: "line " + strconv.Itoa(i)}
		for e := range 31 {
			l.Points = append(l.Points, Point{X: math.Exp2(float64(e)), Y: math.Pow(1.7, float64(e)) * float64(i+1)})
		}
		wide.Lines = append(wide.Lines, l)
	}
	for _, c := range []Chart{wide} {
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
	var c Chart
	for _, p := range []Point{{1, 0}, {0, 1}, {-1, 1}, {1, math.NaN()}, {math.Inf(1), 1}} {
		c.Add("a", p.X, p.Y)
	}
	texts, circles := drawn(t, c.SVG())
	if len(circles) != 0 || !strings.Contains(texts[len(texts)-1].Text, "nothing was measured") {
		t.Errorf("%v", texts)
	}
}

func TestALineGoesFromTheLeftToTheRight(t *testing.T) {
	var c Chart
	for _, x := range []float64{8, 2, 4} {
		c.Add("a", x, 10*x)
	}
	if l := c.Lines; len(l) != 1 || !slices.Equal(l[0].Points, []Point{{2, 20}, {4, 40}, {8, 80}}) {
		t.Errorf("%+v", l)
	}
}
