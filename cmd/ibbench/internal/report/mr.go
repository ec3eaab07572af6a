package report

import (
	"fmt"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// MR is what a measurement of registrations says beside its Result, which is of registering and
// deregistering (reg), of Get and Put (hit), or of munmap while a cache listens (churn).
type MR struct {
	Registrar string `json:"registrar"` // the device, or Fake
	Reg       *Reg   `json:"reg,omitempty"`
	Hit       *Hit   `json:"hit,omitempty"`
	Churn     *Churn `json:"churn,omitempty"`
}

// Fake is the registrar that registers nothing.
const Fake = "fake"

// Reg is the cost of a registration in its parts, and that of doing without, in ns.
type Reg struct {
	Register   Figures `json:"register"`
	Deregister Figures `json:"deregister"`
	Copy       Figures `json:"copy"`   // into memory that is registered already
	HitNS      float64 `json:"hit_ns"` // p50 of Get and Put when the range is cached
}

// Hit says whether it was hits that were measured.
type Hit struct {
	Percent     float64 `json:"percent"` // of the Gets
	AllocsPerOp float64 `json:"allocs_per_op"`
}

// Churn compares with calls that go straight to the kernel, and counts what unmapping left behind.
type Churn struct {
	Raw      Figures `json:"raw"`         // munmap straight to the kernel
	Overhead Spread  `json:"overhead_ns"` // what the hook adds, over the parts of the time
	Cycle    Figures `json:"cycle"`       // map, write, unmap
	RawCycle Figures `json:"raw_cycle"`
	Ratio    Spread  `json:"ratio"` // of the cycles, over the parts of the time

	RSSGrowth  int64 `json:"rss_growth"`  // bytes, over plan.cycles cycles without a call of the cache
	HeapGrowth int64 `json:"heap_growth"` // bytes of the Go heap, over as many with a Get and a Put in each
	DeadMax    int   `json:"dead_max"`    // registrations that waited for their end at a time
	Misses     int64 `json:"misses"`      // of the Gets: all should be
	Uncached   int64 `json:"uncached"`    // of the Gets: with a registration for one operation
	Stale      int64 `json:"stale"`       // of the Gets: with a registration of other pages than the range has
}

// metric is one of those that are no times of an operation.
func (m *MR) metric(name string) (float64, bool) {
	switch {
	case m == nil:
	case m.Hit != nil && name == "hits":
		return m.Hit.Percent, true
	case m.Hit != nil && name == "allocs":
		return m.Hit.AllocsPerOp, true
	case m.Churn != nil && name == "overhead":
		return m.Churn.Overhead.Median, true
	case m.Churn != nil && name == "ratio":
		return m.Churn.Ratio.Median, true
	case m.Churn != nil && name == "rss":
		return float64(m.Churn.RSSGrowth), true
	}
	return 0, false
}

// mrValue prints an asserted figure in its unit.
func mrValue(v float64, metric string) string {
	switch metric {
	case "hits":
		return fmt.Sprintf("%.2f %%", v)
	case "allocs":
		return plain(v)
	case "ratio":
		return fmt.Sprintf("%.3f x", v)
	case "rss":
		return kilo(int64(v)) + " KiB"
	}
	return nanos(v) + " ns"
}

// mrHeader is the line above a table.
func mrHeader(s *Series) string {
	h := s.Kind + " " + s.Op
	if d := s.Env.Device; d != nil {
		h += fmt.Sprintf(", %s port %d", d.Name, d.Port)
		if d.Software {
			h += " (software)"
		}
	} else {
		h += ", fake registrar"
	}
	return h + ", " + s.Env.From + ", " + map[string]string{
		plan.Reg:   "p50 of registering and deregistering one range, of copying it, of a hit",
		plan.Hit:   "Get and Put of a registered range",
		plan.Churn: "munmap, and map-write-munmap cycles, through hooks and straight to the kernel",
	}[s.Op]
}

// mrColumns and mrRow must agree.
func (t *text) mrColumns(s *Series) string {
	switch s.Op {
	case plan.Reg:
		return fmt.Sprintf("%8s %9s %10s %10s %10s %10s %10s %10s %9s  %s", "size", "samples", "register", "deregister", "both", "p99", "max", "copy", "hit", "unit")
	case plan.Hit:
		line := fmt.Sprintf("%8s %8s %9s %8s", "size", "regions", "samples", "min")
		for _, p := range t.pct {
			line += fmt.Sprintf(" %8s", "p"+Key(p))
		}
		return line + fmt.Sprintf(" %9s %8s  %-5s %7s %7s", "max", "mean", "unit", "hits", "allocs")
	}
	return fmt.Sprintf("%8s %8s %7s %7s %8s %14s %7s %7s %6s %14s  %-5s %8s %8s %6s %7s %8s %6s", "size", "regions", "munmap", "raw", "overhead", "range",
		"cycle", "raw", "ratio", "range", "unit", "cycles", "rss KiB", "dead", "misses", "uncached", "stale")
}

func (t *text) mrRow(s *Series) string {
	r := &s.Result
	switch s.Op {
	case plan.Reg:
		m := s.MR.Reg
		return fmt.Sprintf("%8s %9d %10s %10s %10s %10s %10s %10s %9s  us", sizeText(s.Size), r.Count, micros(m.Register.P50), micros(m.Deregister.P50),
			micros(r.P["50"]), micros(r.P["99"]), micros(r.Max), micros(m.Copy.P50), micros(m.HitNS))
	case plan.Hit:
		line := fmt.Sprintf("%8s %8d %9d %8s", sizeText(s.Size), s.Plan.Regions, r.Count, nanos(r.Min))
		for _, p := range t.pct {
			line += " " + fmt.Sprintf("%8s", nanos(r.P[Key(p)]))
		}
		return line + fmt.Sprintf(" %9s %8s  %-5s %6.1f%% %7s", nanos(r.Max), nanos(r.Mean), "ns", s.MR.Hit.Percent, plain(s.MR.Hit.AllocsPerOp))
	}
	c := s.MR.Churn
	return fmt.Sprintf("%8s %8d %7s %7s %8s %14s %7s %7s %6.3f %14s  %-5s %8d %8s %6d %7d %8d %6d", sizeText(s.Size), s.Plan.Regions,
		nanos(r.P["50"]), nanos(c.Raw.P50), nanos(c.Overhead.Median), nanos(c.Overhead.Min)+" to "+nanos(c.Overhead.Max),
		nanos(c.Cycle.P50), nanos(c.RawCycle.P50), c.Ratio.Median, span(&c.Ratio), "ns",
		s.Plan.Cycles, kilo(c.RSSGrowth), c.DeadMax, c.Misses, c.Uncached, c.Stale)
}

// nanos prints ns with a decimal where it says something.
func nanos(v float64) string {
	if v > -100 && v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func kilo(bytes int64) string { return fmt.Sprintf("%.0f", float64(bytes)/1024) }

// mr adds the figures of a registration to a line of CSV.
func (t *table) mr(s *Series, add func(name, value string), number func(string, float64), integer func(string, int64)) {
	m := s.MR
	add("registrar", m.Registrar)
	integer("regions", int64(s.Plan.Regions))
	if r := m.Reg; r != nil {
		number("register_p50", r.Register.P50)
		number("deregister_p50", r.Deregister.P50)
		number("copy_p50", r.Copy.P50)
		number("hit_p50", r.HitNS)
	}
	if h := m.Hit; h != nil {
		number("hit_percent", h.Percent)
		number("allocs_per_op", h.AllocsPerOp)
	}
	if c := m.Churn; c != nil {
		number("raw_p50", c.Raw.P50)
		number("overhead", c.Overhead.Median)
		number("cycle_p50", c.Cycle.P50)
		number("raw_cycle_p50", c.RawCycle.P50)
		number("ratio", c.Ratio.Median)
		integer("cycles", s.Plan.Cycles)
		integer("rss_growth", c.RSSGrowth)
		integer("heap_growth", c.HeapGrowth)
		integer("dead_max", int64(c.DeadMax))
		integer("misses", c.Misses)
		integer("uncached", c.Uncached)
		integer("stale", c.Stale)
	}
}

// mrBench are the further values of a benchmark line.
func mrBench(m *MR) (line string) {
	value := func(v float64, unit string) { line += "\t" + plain(Round3(v)) + " " + unit }
	if r := m.Reg; r != nil {
		value(r.Register.P50, "register-ns")
		value(r.Deregister.P50, "deregister-ns")
		value(r.Copy.P50, "copy-ns")
	}
	if h := m.Hit; h != nil {
		value(h.AllocsPerOp, "allocs/op")
		value(h.Percent, "hit-%")
	}
	if c := m.Churn; c != nil {
		value(c.Raw.P50, "raw-ns")
		value(c.Overhead.Median, "overhead-ns")
		value(c.Cycle.P50, "cycle-ns")
		value(c.RawCycle.P50, "raw-cycle-ns")
		value(float64(c.RSSGrowth), "rss-growth-B")
	}
	return line
}
