package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/internal/errtext"
)

// text is for people: a header when something other than the size changes, a
// row for each series as it comes, notes at the end.
type text struct {
	w      io.Writer
	pct    []float64
	err    error
	header string
	all    []*Series
}

func (t *text) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

func (t *text) Add(s *Series) error {
	if h := header(s); h != t.header {
		if t.header != "" {
			t.printf("\n")
		}
		t.header = h
		t.printf("%s\n%s\n", h, line(columnsOf(s, t.pct), func(c column) string { return c.name }))
	}
	t.printf("%s\n", line(columnsOf(s, t.pct), func(c column) string { return c.of(s) }))
	t.all = append(t.all, s)
	return t.err
}

// Close prints the histogram of a single latency, verdicts, assertions and notes.
func (t *text) Close() error {
	if len(t.all) == 1 && t.all[0].Kind == plan.Lat && t.all[0].Hist != nil && len(t.all[0].Hist.Buckets) > 0 {
		t.printf("\n%s", bars(t.all[0].Hist))
	}
	t.printf("%s", verdicts(t.all))
	for _, a := range asserted(t.all) {
		t.printf("%s\n", a)
	}
	for _, n := range notes(t.all) {
		t.printf("note: %s\n", n)
	}
	return t.err
}

// asserted says what became of assertions.
func asserted(all []*Series) (lines []string) {
	for _, s := range all {
		for _, a := range s.Asserts {
			at := s.sizeText()
			if s.Kind == plan.Cache {
				at += " with the cache " + s.Text("cache.side")
			}
			if s.Plan.Regions > 0 {
				at += fmt.Sprintf(" with %s", errtext.Count(s.Plan.Regions, "region"))
			}
			lines = append(lines, fmt.Sprintf("assert %s: %s (%s %s at %s: %s)", a.Text, verdict(a.OK), s.Kind, s.Plan.OpName(),
				at, s.outcome(a)))
		}
	}
	return lines
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAILED"
}

// outcome prints an asserted figure so that it differs from a bound that it is not.
func (s *Series) outcome(a Assert) string {
	text := s.value(a.Value, a.Text)
	if a.Value != a.Bound && text == s.value(a.Bound, a.Text) {
		return fmt.Sprintf("%s, %s beside %s", text, plain(a.Value), plain(a.Bound))
	}
	return text
}

// value prints an asserted figure in its unit.
func (s *Series) value(v float64, assertion string) string {
	name := metricOf(assertion)
	d, of := s.asserted(name)
	switch {
	case of && d.unit == "x":
		return thousandths(v) + " x"
	case of && d.unit == "%":
		return hundredths(v) + " %"
	case of && d.unit == "":
		return plain(v)
	case s.Kind == plan.MR:
		return nanos(v) + " ns"
	case name == "rate":
		return mega(v) + " M/s"
	}
	return s.shown(v) + " " + shownUnit(s.Result.Unit)
}

// metricOf is the metric of an assertion's text.
func metricOf(assertion string) string {
	metric, _, _ := strings.Cut(assertion, "<")
	metric, _, _ = strings.Cut(metric, ">")
	return strings.TrimSpace(metric)
}

// title names a device and its port.
func (d *Device) title() string {
	name := fmt.Sprintf("%s port %d", d.Name, d.Port)
	if d.Software {
		name += " (software)"
	}
	return name
}

// header is the line above a table: operation, fabric, device, from -> to, MTU, depth, definition.
func header(s *Series) string {
	e := s.Env
	parts := []string{s.Kind + " " + s.Plan.OpName(), "fabric " + e.Fabric}
	switch s.Kind {
	case plan.Cache:
		parts[0] = s.Kind // one table for all kernels
	case plan.MR:
		parts = parts[:1]
		if e.Device == nil {
			parts = append(parts, "fake registrar")
		}
	}
	if e.Device != nil {
		parts = append(parts, e.Device.title())
	}
	host, _, _ := strings.Cut(e.From, " ")
	switch s.Kind {
	case plan.MR:
		parts = append(parts, e.From, mrTitles[s.Op])
	case plan.Flow:
		parts = append(parts, "on "+host, fmt.Sprintf("%d ranks", e.Ranks), "sizes in "+s.Text("flow.counts"), s.Definition)
	default:
		parts = append(parts, between(s)...)
	}
	return strings.Join(parts, ", ")
}

var mrTitles = map[string]string{
	plan.Reg:   "p50 of registering and deregistering one range, of copying it, of a hit",
	plan.Hit:   "Get and Put of a registered range",
	plan.Churn: "munmap, and map-write-munmap cycles, through hooks and straight to the kernel",
}

// between are the parts of the header of what goes from one rank to another.
func between(s *Series) []string {
	e := s.Env
	parts := []string{e.From + " -> " + e.To}
	if e.Ranks > 2 {
		parts = append(parts, fmt.Sprintf("%d ranks", e.Ranks))
	}
	if e.Device != nil {
		parts = append(parts, fmt.Sprintf("MTU %d", e.Device.MTU))
	}
	switch p := s.Peer(); {
	case s.Kind == plan.Coll:
		if parts = append(parts, s.Definition+": a loop of operations, on the slowest rank"); p != nil {
			parts = append(parts, "Open MPI "+p.Version)
		}
		return parts
	case p != nil && s.Plan.Kind == plan.Rate:
		parts = append(parts, fmt.Sprintf("depth %d", s.Plan.Depth), p.Tool+" "+p.Version)
	case p != nil:
		parts = append(parts, p.Tool+" "+p.Version)
	case s.Plan.Kind == plan.Lat:
		parts = append(parts, fmt.Sprintf("depth %d", s.Plan.Depth))
	}
	return append(parts, definition(s))
}

// definition of a series' numbers, with what they are to be compared with where that is not plain.
func definition(s *Series) string {
	switch {
	case s.Op != plan.AM || s.Plan.Kind != plan.Lat:
		return s.Definition
	case s.Kind == KindPerftest:
		return fmt.Sprintf("%s: request and reply beside %.0f x %s, which reports half round trips", s.Definition,
			s.Peer().Times, s.Peer().Tool)
	}
	return s.Definition + ": request and reply, to be set against 2 x ib_send_lat"
}

// notes gathers the notes of series and environments, once each.
func notes(all []*Series) (out []string) {
	seen := make(map[string]bool)
	add := func(n string) {
		if n != "" && !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	for _, s := range all {
		if d := s.Env.Device; d != nil && d.Software {
			add(fmt.Sprintf("%s is software RDMA: figures say nothing about hardware", d.Name))
		}
		for _, n := range s.Notes {
			add(n)
		}
	}
	for _, s := range all {
		switch {
		case s.Env.ClockNS > 0 && s.Kind == plan.MR:
			add(fmt.Sprintf("one reading of the clock costs %.0f ns; it is part of each sample", s.Env.ClockNS))
		case s.Env.ClockNS > 0:
			add(fmt.Sprintf("fabric %s: one reading of the clock costs %.0f ns; it is part of each sample", s.Env.Fabric,
				s.Env.ClockNS))
		}
	}
	return out
}

// Size of a picture of bars.
const (
	barRows  = 16
	barWidth = 50
)

// bars draws a histogram up to the 99th percentile, with the rest in a last row.
func bars(h *stats.Hist) string {
	scale, total, sum := h.Scale(), int64(0), int64(0)
	for _, b := range h.Buckets {
		total += b[2]
	}
	lo, hi, step := scale*float64(h.Buckets[0][0]), 0.0, scale
	for _, b := range h.Buckets {
		step = max(step, scale*float64(b[1]+1-b[0])) // a row of less would have none, or two
		hi = scale * float64(b[1]+1)
		if sum += b[2]; float64(sum) >= 0.99*float64(total) {
			break
		}
	}
	step = max((hi-lo)/barRows, step)
	counts := make([]int64, barRows+1)
	for _, b := range h.Buckets {
		counts[min(int((scale*float64(b[0]+b[1])/2-lo)/step), barRows)] += b[2]
	}
	rows := barRows
	for counts[rows-1] == 0 {
		rows-- // beyond the last value of few
	}
	var out strings.Builder
	for i, n := range counts {
		name := "from"
		switch {
		case i == barRows && n > 0:
			name = "beyond"
		case i >= rows:
			continue
		}
		bar := strings.Repeat("█", int(float64(n)/float64(slices.Max(counts))*barWidth+0.5))
		fmt.Fprintf(&out, "%8s %9s us %9d %s\n", name, micros(lo+float64(i)*step), n, bar)
	}
	return out.String()
}
