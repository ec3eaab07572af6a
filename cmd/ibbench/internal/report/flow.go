package report

import (
	"cmp"
	"slices"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
)

// flow draws figures and faults against size, and against the limit of memory, where these vary.
func (x *Section) flow() {
	unit := shownUnit(x.series[0].Result.Unit)
	figure := func(s *Series) float64 {
		if unit == "us" {
			return s.Result.Mean / 1e3
		}
		return s.Result.Mean / 1e6
	}
	size := func(s *Series) float64 { return float64(s.Size) }
	limit := func(s *Series) float64 { return s.Value("flow.limit") / (1 << 20) }
	faults := func(s *Series) float64 { return s.Value("flow.faults") }
	by := x.series[0].Text("flow.counts")
	for _, p := range []struct {
		name, x, y string
		of, fixed  func(*Series) float64
		value      func(*Series) float64
	}{
		{"size", by, unit, size, limit, figure},
		{"faults", by, "major faults", size, limit, faults},
		{"limit", "limit, MiB", unit, limit, size, figure},
		{"limit-faults", "limit, MiB", "major faults", limit, size, faults},
	} {
		c := &chart.Chart{Title: x.series[0].Op + ": " + p.y + " by " + p.x, X: p.x, Y: p.y}
		c.Lines = x.curves(p.of, p.fixed, p.value)
		if len(c.Lines) == 0 {
			continue
		}
		c.LogX = !slices.ContainsFunc(c.Lines, func(l chart.Line) bool { return l.Points[len(l.Points)-1].X < 100*l.Points[0].X })
		x.Pictures = append(x.Pictures, Picture{x.ID + "-" + p.name, c})
	}
}

// curves are lines of several points, one for each kind of memory and each value of what is fixed,
// unless all of their values are 0.
func (x *Section) curves(of, fixed, value func(*Series) float64) []chart.Line {
	type curve struct {
		arm   string
		fixed float64
	}
	points := make(map[curve][]chart.Point)
	var order []curve
	for _, s := range x.series {
		if s.Text("flow.failed") != "" {
			continue
		}
		k := curve{s.Text("flow.arm"), fixed(s)}
		if points[k] == nil {
			order = append(order, k)
		}
		if !slices.ContainsFunc(points[k], func(p chart.Point) bool { return p.X == of(s) }) {
			points[k] = append(points[k], chart.Point{X: of(s), Y: value(s)})
		}
	}
	order = slices.DeleteFunc(order, func(k curve) bool { return len(points[k]) < 2 })
	var lines []chart.Line
	says := false
	for _, k := range order {
		slices.SortFunc(points[k], func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
		says = says || slices.ContainsFunc(points[k], func(p chart.Point) bool { return p.Y > 0 })
		name := k.arm
		if slices.ContainsFunc(order, func(o curve) bool { return o.arm == k.arm && o.fixed != k.fixed }) {
			name += ", " + plain(Round3(k.fixed))
		}
		lines = append(lines, chart.Line{Name: name, Points: points[k]})
	}
	if !says {
		return nil
	}
	return lines
}
