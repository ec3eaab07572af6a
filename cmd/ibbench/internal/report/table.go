package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// column is one of a table: its head, its format in the text, and what a series has in it. A page
// leaves out those that say nothing, or in each row the usual.
type column struct {
	name, format string
	of           func(*Series) string
	usual        string
}

// dimension is a column with a number of the plan.
func dimension(name, format string, of func(*plan.Point) int, usual string) column {
	return column{name, format, func(s *Series) string { return fmt.Sprint(of(&s.Plan)) }, usual}
}

// figure is a column with a figure of the result.
func figure(name, format string, show func(float64) string, of func(*Result) float64) column {
	return column{name: name, format: format, of: func(s *Series) string { return show(of(&s.Result)) }}
}

// metric is a column with a metric, empty where there is none.
func metric(name, format, metric string, show func(float64) string) column {
	return column{name: name, format: format, of: func(s *Series) string {
		switch m, ok := s.Metrics[metric]; {
		case !ok:
			return ""
		case byName[metric].form == label:
			return m.Text
		default:
			return show(m.Value)
		}
	}}
}

// bounded is a column with the interval of a metric, "-" where there is none.
func bounded(name, format, metric string, show func(Metric) string) column {
	return column{name: name, format: format, of: func(s *Series) string {
		if m, ok := s.Metrics[metric]; ok {
			return show(m)
		}
		return "-"
	}}
}

// constant is a column that has the same in each row.
func constant(name, format, value string) column {
	return column{name: name, format: format, of: func(*Series) string { return value }}
}

// Columns of several tables.
var (
	sizeColumn  = column{"size", "%8s", (*Series).sizeText, "-"}
	depths      = dimension("depth", "%6s", func(p *plan.Point) int { return p.Depth }, "1")
	lanes       = dimension("lanes", "%6s", func(p *plan.Point) int { return p.Lanes }, "1")
	goroutines  = dimension("goroutines", "%10s", func(p *plan.Point) int { return p.Goroutines }, "0")
	regions     = dimension("regions", "%8s", func(p *plan.Point) int { return p.Regions }, "0")
	loop        = dimension("loop", "%6s", func(p *plan.Point) int { return p.Batch }, "")
	samples     = column{"samples", "%9s", func(s *Series) string { return fmt.Sprint(s.Result.Count) }, ""}
	kernelNames = column{"kernel", "%-20s", func(s *Series) string { return strings.TrimSpace(s.Op + " " + s.Plan.Variant) }, ""}
)

func least(r *Result) float64 { return r.Min }
func most(r *Result) float64  { return r.Max }
func mean(r *Result) float64  { return r.Mean }

// percentile of a result.
func percentile(key string) func(*Result) float64 {
	return func(r *Result) float64 { return r.P[key] }
}

// as returns a column under another name, in another format.
func (c column) as(name, format string) column {
	c.name, c.format = name, format
	return c
}

// times are the columns of a latency.
func times(pct []float64, show func(float64) string, unit string) []column {
	all := []column{samples, figure("min", "%9s", show, least)}
	for _, p := range pct {
		all = append(all, figure("p"+Key(p), "%9s", show, percentile(Key(p))))
	}
	return append(all, figure("max", "%9s", show, most), figure("mean", "%9s", show, mean),
		constant("unit", " %-4s", unit))
}

// columnsOf are the columns of a table, by the kind of measurement. Kinds
// of earlier versions have the ones of a latency or a throughput.
func columnsOf(s *Series, pct []float64) []column {
	switch {
	case s.Kind == plan.MR && s.Op == plan.Churn:
		return churnColumns
	case s.Kind == plan.MR && s.Op == plan.Reg:
		return regColumns
	case s.Kind == plan.MR:
		return slices.Concat([]column{sizeColumn, regions}, times(pct, nanos, "ns"),
			[]column{metric("hits", "%7s", "mr.hit.percent", percents), metric("allocs", "%7s", "mr.hit.allocs_per_op", plain)})
	case s.Kind == plan.Cache:
		return cacheColumns
	case s.Kind == plan.Flow:
		return flowColumns(s)
	case s.Peer() != nil:
		return peerColumns(s)
	case s.Kind == plan.Coll:
		return slices.Concat([]column{sizeColumn, loop}, times(pct, micros, "us"))
	case s.Result.Unit != "ns":
		return streamColumns(s)
	}
	return slices.Concat([]column{sizeColumn}, times(pct, micros, "us"))
}

var regColumns = []column{
	sizeColumn, samples, metric("register", "%10s", "mr.reg.register.p50", micros),
	metric("deregister", "%10s", "mr.reg.deregister.p50", micros),
	figure("both", "%10s", micros, percentile("50")), figure("p99", "%10s", micros, percentile("99")),
	figure("max", "%10s", micros, most),
	metric("copy", "%10s", "mr.reg.copy.p50", micros), metric("hit", "%9s", "mr.reg.hit_ns", micros),
	constant("unit", " %s", "us"),
}

var churnColumns = []column{
	sizeColumn, regions, figure("munmap", "%7s", nanos, percentile("50")), metric("raw", "%7s", "mr.churn.raw.p50", nanos),
	metric("overhead", "%8s", "mr.churn.overhead_ns", nanos),
	bounded("range", "%14s", "mr.churn.overhead_ns", func(m Metric) string { return nanos(m.Low) + " to " + nanos(m.High) }),
	metric("cycle", "%7s", "mr.churn.cycle.p50", nanos), metric("raw", "%7s", "mr.churn.raw_cycle.p50", nanos),
	metric("ratio", "%6s", "mr.churn.ratio", thousandths), bounded("range", "%14s", "mr.churn.ratio", span),
	constant("unit", " %-5s", "ns"),
}

// flowColumns have a run a row. The header says of which things the size is a number.
func flowColumns(s *Series) []column {
	time := figure("ms", "%10s", millis, mean)
	if s.Result.Unit != "ns" {
		time = figure("MB/s", "%10s", mega, mean)
	}
	return []column{
		{name: "size", format: "%8s", of: func(s *Series) string { return fmt.Sprint(s.Size) }},
		metric("memory of messages", "%-18s", "flow.arm", nil),
		metric("limit MiB", "%9s", "flow.limit", mebi), time, metric("faults", "%8s", "flow.faults", plain),
		metric("peak MiB", "%9s", "flow.peak", mebi), metric("arrays MiB", "%10s", "flow.arrays", mebi),
		metric("failed", " %s", "flow.failed", nil),
	}
}

var cacheColumns = []column{
	kernelNames, {name: "size", format: "%8s", of: func(s *Series) string { return fmt.Sprint(s.Size) }},
	metric("cache", "%-5s", "cache.side", nil), samples.as("rounds", "%6s"),
	metric("median", "%10s", "cache.time", micros), bounded("95 % interval", "%-22s", "cache.time",
		func(m Metric) string { return micros(m.Low) + " to " + micros(m.High) }),
	constant("unit", " %-4s", "us"), metric("messages", "%9s", "cache.messages", plain),
	metric("bytes", "%11s", "cache.bytes", plain),
	otherSides("times as fast", " %-22s", func(s *Series) string {
		m := s.Metrics["cache.ratio"]
		return fmt.Sprintf("%.2f (%.2f to %.2f)", m.Value, m.Low, m.High)
	}),
	otherSides("messages", "%9s", func(s *Series) string { return thousandths(s.Value("cache.messages_ratio")) + "x" }),
	otherSides("bytes", "%9s", func(s *Series) string { return thousandths(s.Value("cache.bytes_ratio")) + "x" }),
	cached("hits", "%6s", func(s *Series) string {
		return percents(percent(s.Value("cache.hits"), s.Value("cache.hits")+s.Value("cache.misses")))
	}),
	cached("ahead", "%8s", func(s *Series) string { return plain(s.Value("cache.prefetched")) }),
	cached("unused", "%7s", func(s *Series) string {
		return percents(percent(s.Value("cache.unused"),
			s.Value("cache.prefetched")))
	}),
}

// otherSides is a column of the sides that are compared with the first.
func otherSides(name, format string, of func(*Series) string) column {
	return column{name: name, format: format, of: func(s *Series) string {
		if s.Value("cache.base") != 0 {
			return ""
		}
		return of(s)
	}}
}

// cached is a column of what caches did, if there was one.
func cached(name, format string, of func(*Series) string) column {
	return otherSides(name, format, func(s *Series) string {
		if s.Value("cache.hits")+s.Value("cache.misses")+s.Value("cache.prefetched") == 0 {
			return ""
		}
		return of(s)
	})
}

// percent is a part of a whole; of nothing it is 0.
func percent(part, whole float64) float64 { return 100 * part / max(whole, 1) }

// peerColumns set ours beside the peer's.
func peerColumns(s *Series) []column {
	rounds := column{name: "rounds", format: "%7s", of: func(s *Series) string { return fmt.Sprint(s.Peer().Counted()) }}
	unit := column{name: "unit", format: " %s", of: func(s *Series) string { return shownUnit(s.Result.Unit) }}
	ours := func(name, p string) column {
		return column{name: name, format: "%9s", of: func(s *Series) string { return s.shown(s.Result.figure(p)) }}
	}
	theirs := func(p string) column {
		return column{name: s.Peer().name(), format: "%9s",
			of: func(s *Series) string { return s.reported(&s.Peer().Result, p) }}
	}
	ratio := func(p string) column {
		return bounded("ratio", "%7s", "ratio."+p, func(m Metric) string { return thousandths(m.Value) })
	}
	spread := column{name: "range", format: "%13s", of: func(s *Series) string { return span(s.mainRatio()) }}
	switch {
	case s.Kind == plan.Coll:
		interval := column{name: "95 %", format: "%13s", of: func(s *Series) string {
			if i := s.Peer().Interval; len(i) == 2 {
				return fmt.Sprintf("%.2f to %.2f", i[0], i[1])
			}
			return "-"
		}}
		return []column{sizeColumn, loop, rounds, ours("p50", "50"), theirs("50"), ratio("p50"), interval, spread,
			ours("mean", ""), theirs(""), ratio("mean"), unit}
	case s.Result.Unit != "ns":
		return []column{sizeColumn, rounds, ours("ours", ""), theirs(""), ratio("mean"), spread, unit}
	}
	return []column{sizeColumn, rounds, ours("p50", "50"), theirs("50"), ratio("p50"), spread, ours("mean", ""),
		theirs(""), ratio("mean"), ours("p99", "99"), theirs("99"), ratio("p99"), unit}
}

// figure is a percentile of a result, or its mean.
func (r *Result) figure(p string) float64 {
	if p == "" {
		return r.Mean
	}
	return r.P[p]
}

// reported is a figure that a peer may not report.
func (s *Series) reported(r *Result, p string) string {
	if _, ok := r.P[p]; !ok && p != "" {
		return "-"
	}
	return s.shown(r.figure(p))
}

// mainRatio is the ratio to the peer: of the medians, where it has some, else of the means.
func (s *Series) mainRatio() Metric {
	if m, ok := s.Metrics["ratio.p50"]; ok {
		return m
	}
	return s.Metrics["ratio.mean"]
}

// name is what tables call the peer.
func (p *Peer) name() string {
	if p.Place == "mpi" {
		return "Open MPI"
	}
	return cmp.Or(map[string]string{"ucx": "UCX", "mpi": "OSU"}[p.Peer], "perftest")
}

// streamColumns are the columns of bandwidths and rates.
func streamColumns(s *Series) []column {
	all := []column{sizeColumn, depths, lanes}
	if s.Op == plan.AM {
		all = append(all, goroutines)
	}
	return append(all, samples.as("ops", "%10s"),
		figure("min", "%10s", mega, least), figure("p50", "%10s", mega, percentile("50")), figure("max", "%10s", mega, most),
		figure("mean", "%10s", mega, mean),
		column{name: "unit", format: " %-5s", of: func(s *Series) string { return shownUnit(s.Result.Unit) }},
		figure("Mop/s", "%11s", mega, func(r *Result) float64 { return r.PerSecond }))
}

// line joins a cell of each column, which of says.
func line(columns []column, of func(column) string) string {
	var cells []string
	for _, c := range columns {
		cells = append(cells, fmt.Sprintf(c.format, of(c)))
	}
	return strings.TrimRight(strings.Join(cells, " "), " ")
}
