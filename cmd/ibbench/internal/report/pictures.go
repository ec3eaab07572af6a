package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/internal/errtext"
)

// draw makes the pictures that a section's series are fit for.
func (x *Section) draw() {
	add := func(name string, c *chart.Chart) {
		for _, l := range c.Lines {
			if len(l.Points) > 0 {
				x.Pictures = append(x.Pictures, Picture{x.ID + "-" + name, c})
				return
			}
		}
	}
	first := x.series[0]
	name := strings.TrimSpace(first.Kind + " " + first.Plan.OpName())
	switch first.Kind {
	case plan.Pairs: // it draws itself
		return
	case plan.Cache: // kernels of different sizes have no common axis: the table has their ratios
		return
	case plan.Flow:
		x.flow()
		return
	}
	if first.Result.Unit == "ns" {
		if x.sizes() > 1 {
			add("latency", x.latency(name))
		}
		add("distribution", x.distribution(name))
		if len(x.series) == 1 {
			add("time", overTime(name, first))
		}
	} else {
		add("throughput", x.throughput(name))
	}
	ratios := &chart.Chart{Title: name + ": ratio to " + first.peer(), X: "bytes", Y: "ratio", LogX: true, Binary: true, Base: 1}
	line := chart.Line{Name: "with its range"}
	for _, s := range x.series {
		if p, ok := s.ratio(); ok && p.X > 0 {
			line.Points = append(line.Points, p)
		}
	}
	ratios.Lines = []chart.Line{line}
	add("ratio", ratios)
}

// sizeUnit heads the column of sizes.
func (x *Section) sizeUnit() string {
	switch first := x.series[0]; first.Kind {
	case plan.Join:
		return "ranks"
	case plan.Flow:
		return first.Text("flow.counts")
	}
	return "size"
}

func (x *Section) sizes() int {
	seen := make(map[int64]bool)
	for _, s := range x.series {
		seen[s.Size] = true
	}
	return len(seen)
}

// besides is what tells series of one size apart in a legend.
func (x *Section) besides(s *Series) string {
	switch {
	case x.sizes() == len(x.series):
	case s.Plan.Regions > 0:
		return fmt.Sprintf(", %s", errtext.Count(s.Plan.Regions, "region"))
	case s.Plan.Live > 0:
		return fmt.Sprintf(", %d live", s.Plan.Live)
	}
	return ""
}

// latency against size: the median and a high percentile, and the peer's median.
func (x *Section) latency(name string) *chart.Chart {
	c := &chart.Chart{Title: name + ": latency", X: "bytes", Y: "us", LogX: true, LogY: true, Binary: true}
	if x.series[0].Kind == plan.Join {
		c.Title, c.X, c.Binary = name+": time to start", "ranks", false
	}
	lines := make(map[string]*chart.Line)
	var order []string
	put := func(line string, s *Series, r *Result, p string) {
		v, ok := r.P[p]
		if !ok || s.Size == 0 {
			return
		}
		if lines[line] == nil {
			lines[line] = &chart.Line{Name: line}
			order = append(order, line)
		}
		lines[line].Points = append(lines[line].Points, chart.Point{X: float64(s.Size), Y: v / 1e3})
	}
	for _, s := range x.series {
		put("p50"+x.besides(s), s, &s.Result, "50")
		put("p99"+x.besides(s), s, &s.Result, "99")
		if p := s.Peer(); p != nil {
			put(s.peer()+" p50", s, &p.Result, "50")
		}
		if p := s.Beside(); p != nil {
			put("UCX p50", s, &p.Result, "50")
		}
	}
	for _, n := range order {
		slices.SortFunc(lines[n].Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
		c.Lines = append(c.Lines, *lines[n])
	}
	return c
}

// mostCurves of a picture of distributions: more cannot be told apart.
const mostCurves = 8

// distribution is how many of the samples took no longer than a time. Of many series it has some,
// from the first to the last.
func (x *Section) distribution(name string) *chart.Chart {
	c := &chart.Chart{Title: name + ": share of samples within a time, by size", X: "us", Y: "%", LogX: true}
	has := slices.DeleteFunc(slices.Clone(x.series), func(s *Series) bool { return s.Hist == nil })
	curves := min(len(has), mostCurves)
	if curves < len(has) {
		c.Title += fmt.Sprintf(", %d of %d rows", curves, len(has))
	}
	for i := range curves {
		s := has[i*(len(has)-1)/max(curves-1, 1)]
		c.Lines = append(c.Lines, chart.Line{Name: s.sizeText() + x.besides(s), Points: cumulated(s.Hist)})
	}
	return c
}

// cumulated is a histogram as a curve, of some hundred points, without the last thousandth: one
// sample that was held up would squeeze the rest.
func cumulated(h *stats.Hist) (points []chart.Point) {
	var all, below int64
	for _, b := range h.Buckets {
		all += b[2]
	}
	perUnit := 1e-3 // us
	if h.Unit == "ps" {
		perUnit = 1e-6
	}
	last := -1.0
	for _, b := range h.Buckets {
		below += b[2]
		if y := 100 * float64(below) / float64(all); y-last >= 0.5 && y <= 99.9 {
			points = append(points, chart.Point{X: float64(b[1]) * perUnit, Y: y})
			last = y
		}
	}
	return points
}

// overTime is the time series of one point.
func overTime(name string, s *Series) *chart.Chart {
	c := &chart.Chart{Title: name + ": over time", X: "s", Y: "us", LogY: true}
	mid, most := chart.Line{Name: "p50"}, chart.Line{Name: "max"}
	for _, i := range s.Intervals {
		at := float64(i.StartNS) / 1e9
		mid.Points = append(mid.Points, chart.Point{X: at, Y: i.P50 / 1e3})
		most.Points = append(most.Points, chart.Point{X: at, Y: i.Max / 1e3})
	}
	c.Lines = []chart.Line{mid, most}
	return c
}

// throughput against what varies: sizes, else operations in flight, else lanes.
func (x *Section) throughput(name string) *chart.Chart {
	first := x.series[0]
	c := &chart.Chart{Title: name + ": throughput", Y: shownUnit(first.Result.Unit), LogX: true}
	of, rest := func(s *Series) int64 { return int64(s.Plan.Lanes) }, func(s *Series) string { return "mean" }
	depths := func(s *Series) int64 { return int64(s.Plan.Depth) }
	switch {
	case x.sizes() > 1:
		c.X, c.Binary = "bytes", true
		of = func(s *Series) int64 { return s.Size }
		rest = func(s *Series) string {
			if s.Op == plan.AM { // a job has one depth
				return fmt.Sprintf("lanes %d, goroutines %d", s.Plan.Lanes, s.Plan.Goroutines)
			}
			return fmt.Sprintf("depth %d, lanes %d", s.Plan.Depth, s.Plan.Lanes)
		}
	case slices.ContainsFunc(x.series, func(s *Series) bool { return depths(s) != depths(first) }):
		c.X, of = "operations in flight per lane", depths
		rest = func(s *Series) string { return fmt.Sprintf("lanes %d", s.Plan.Lanes) }
	default:
		c.X = "lanes"
		if first.Op == plan.AM {
			rest = func(s *Series) string { return fmt.Sprintf("goroutines %d", s.Plan.Goroutines) }
		}
	}
	put := func(line string, s *Series, v float64) {
		i := slices.IndexFunc(c.Lines, func(l chart.Line) bool { return l.Name == line })
		if i < 0 {
			i = len(c.Lines)
			c.Lines = append(c.Lines, chart.Line{Name: line})
		}
		c.Lines[i].Points = append(c.Lines[i].Points, chart.Point{X: float64(of(s)), Y: v / 1e6})
	}
	for _, s := range x.series {
		put(rest(s), s, s.Result.Mean)
		if p := s.Peer(); p != nil {
			put(s.peer(), s, p.Result.Mean)
		}
	}
	for _, l := range c.Lines {
		slices.SortFunc(l.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
	}
	return c
}
