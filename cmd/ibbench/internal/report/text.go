package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
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
		t.printf("%s\n%s\n", h, t.columns(s))
	}
	t.printf("%s\n", t.row(s))
	t.all = append(t.all, s)
	return t.err
}

// Close prints the picture of a single latency, assertions and notes.
func (t *text) Close() error {
	if len(t.all) == 1 && t.all[0].Hist != nil && t.all[0].Kind == plan.Lat {
		t.printf("\n%s", bars(t.all[0]))
	}
	t.grid()
	t.findings()
	t.printf("%s", verdicts(t.all))
	for _, s := range t.all {
		if s.Sizes != nil {
			t.printf("\n%s", s.Sizes)
		}
		for _, a := range s.Asserts {
			at := s.sizeText()
			if s.Cache != nil {
				at += " with the cache " + s.Cache.Side
			}
			if s.Plan.Regions > 0 {
				at += fmt.Sprintf(" with %s", errtext.Count(s.Plan.Regions, "region"))
			}
			t.printf("assert %s: %s (%s %s at %s: %s)\n", a.Text, verdict(a.OK), s.Kind, opName(s), at, s.asserted(a))
		}
	}
	for _, n := range notes(t.all) {
		t.printf("note: %s\n", n)
	}
	return t.err
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAILED"
}

// asserted prints an asserted figure so that it differs from a bound that it is not.
func (s *Series) asserted(a Assert) string {
	text := s.value(a.Value, a.Text)
	if a.Value != a.Bound && text == s.value(a.Bound, a.Text) {
		return fmt.Sprintf("%s, %s beside %s", text, plain(a.Value), plain(a.Bound))
	}
	return text
}

// value prints an asserted figure in its unit.
func (s *Series) value(v float64, assertion string) string {
	switch {
	case s.Ratio != nil:
		return fmt.Sprintf("%.3f x", v)
	case s.Pairs != nil:
		return fmt.Sprintf("%.0f", v)
	case s.Heap != nil && (strings.HasPrefix(assertion, "frag") || strings.HasPrefix(assertion, "meta")):
		return fmt.Sprintf("%.2f %%", v)
	case s.Cache != nil && plan.Assertion{Metric: metricOf(assertion)}.Compares():
		return fmt.Sprintf("%.3f x", v)
	case s.MR != nil:
		return mrValue(v, metricOf(assertion))
	case s.Result.Unit == "ns":
		return micros(v) + " us"
	case strings.HasPrefix(assertion, "bw"):
		return mega(v) + " MB/s"
	}
	return mega(v) + " M/s"
}

// metricOf is the metric of an assertion's text.
func metricOf(assertion string) string {
	metric, _, _ := strings.Cut(assertion, "<")
	metric, _, _ = strings.Cut(metric, ">")
	return strings.TrimSpace(metric)
}

// header is the line above a table: operation, fabric, device, from -> to, MTU,
// depth, definition.
func header(s *Series) string {
	if s.MR != nil {
		return mrHeader(s)
	}
	if s.Pairs != nil {
		return pairsHeader(s)
	}
	e := s.Env
	name := s.Kind + " " + opName(s)
	if s.Cache != nil {
		name = s.Kind // one table for all kernels
	}
	parts := []string{name, "fabric " + e.Fabric}
	if d := e.Device; d != nil {
		name := fmt.Sprintf("%s port %d", d.Name, d.Port)
		if d.Software {
			name += " (software)"
		}
		parts = append(parts, name)
	}
	if s.Join != nil {
		return joinHeader(s, parts)
	}
	if s.Flow != nil {
		return flowHeader(s, parts)
	}
	parts = append(parts, e.From+" -> "+e.To)
	if e.Ranks > 2 {
		parts = append(parts, fmt.Sprintf("%d ranks", e.Ranks))
	}
	if e.Device != nil {
		parts = append(parts, fmt.Sprintf("MTU %d", e.Device.MTU))
	}
	switch {
	case s.Kind == KindPerftest && s.Plan.Kind == plan.Rate:
		parts = append(parts, fmt.Sprintf("depth %d", s.Plan.Depth), s.Perftest.Tool+" "+s.Perftest.Version)
	case s.Kind == KindPerftest:
		parts = append(parts, s.Perftest.Tool+" "+s.Perftest.Version)
	case s.Kind == plan.Coll:
		return collHeader(s, parts)
	case s.Plan.Kind == plan.Lat:
		parts = append(parts, fmt.Sprintf("depth %d", s.Plan.Depth))
	}
	return strings.Join(append(parts, definition(s)), ", ")
}

// definition of a series' numbers, with what they are to be compared with where that is not plain.
func definition(s *Series) string {
	switch {
	case s.Op != plan.AM || s.Plan.Kind != plan.Lat:
		return s.Definition
	case s.Kind == KindPerftest:
		return fmt.Sprintf("%s: request and reply beside %.0f x %s, which reports half round trips", s.Definition, s.Perftest.Times, s.Perftest.Tool)
	}
	return s.Definition + ": request and reply, to be set against 2 x ib_send_lat"
}

func opName(s *Series) string {
	name := s.Op
	if s.Plan.Ack {
		name += " --ack"
	}
	if s.Plan.Bidi {
		name += " --bidi"
	}
	if s.Plan.Local != "" {
		name += " --local " + s.Plan.Local
	}
	switch {
	case s.Plan.Variant == "":
	case s.Flow != nil:
		name += ", " + s.Plan.Variant
	default:
		name += " --variant " + s.Plan.Variant
	}
	return name
}

// columns and row must agree.
func (t *text) columns(s *Series) string {
	switch {
	case s.MR != nil:
		return t.mrColumns(s)
	case s.Pairs != nil:
		return pairsColumns(s)
	case s.Heap != nil:
		return t.heapColumns()
	case s.Join != nil:
		return joinColumns()
	case s.Flow != nil:
		return flowColumns()
	case s.Cache != nil:
		return t.cacheColumns()
	case s.Kind == plan.Coll:
		return t.collColumns(s)
	case s.Kind == KindPerftest && s.Result.Unit == "ns":
		peer := s.Perftest.name()
		return fmt.Sprintf("%8s %7s %9s %9s %7s %13s %9s %9s %7s %9s %9s %7s  %s", "size", "rounds",
			"p50", peer, "ratio", "range", "mean", peer, "ratio", "p99", peer, "ratio", "unit")
	case s.Kind == KindPerftest:
		return fmt.Sprintf("%8s %7s %9s %9s %7s %13s  %s", "size", "rounds", "ours", s.Perftest.name(), "ratio", "range", "unit")
	case s.Kind != plan.Lat && s.Op == plan.AM:
		return fmt.Sprintf("%8s %6s %6s %10s %10s %10s %10s %10s %10s  %-5s %11s", "size", "depth", "lanes", "goroutines", "ops", "min", "p50", "max", "mean", "unit", "Mop/s")
	case s.Kind != plan.Lat:
		return fmt.Sprintf("%8s %6s %6s %10s %10s %10s %10s %10s  %-5s %11s", "size", "depth", "lanes", "ops", "min", "p50", "max", "mean", "unit", "Mop/s")
	}
	line := fmt.Sprintf("%8s %9s %9s", "size", "samples", "min")
	for _, p := range t.pct {
		line += fmt.Sprintf(" %9s", "p"+Key(p))
	}
	return line + fmt.Sprintf(" %9s %9s  %s", "max", "mean", "unit")
}

func (t *text) row(s *Series) string {
	r := &s.Result
	switch {
	case s.MR != nil:
		return t.mrRow(s)
	case s.Pairs != nil:
		return pairsRows(s)
	case s.Heap != nil:
		return t.heapRow(s)
	case s.Join != nil:
		return joinRow(s)
	case s.Flow != nil:
		return flowRow(s)
	case s.Cache != nil:
		return t.cacheRow(s)
	case s.Kind == plan.Coll:
		return t.collRow(s)
	case s.Kind == KindPerftest:
		return peerRow(s)
	case s.Kind != plan.Lat:
		unit := "MB/s"
		if s.Kind == plan.Rate {
			unit = "Mop/s"
		}
		lanes := fmt.Sprintf("%6d", s.Plan.Lanes)
		if s.Op == plan.AM {
			lanes += fmt.Sprintf(" %10d", s.Plan.Goroutines)
		}
		return fmt.Sprintf("%8s %6d %s %10d %10s %10s %10s %10s  %-5s %11s", s.sizeText(), s.Plan.Depth, lanes, r.Count,
			mega(r.Min), mega(r.P["50"]), mega(r.Max), mega(r.Mean), unit, mega(r.PerSecond))
	}
	line := fmt.Sprintf("%8s %9d %9s", s.sizeText(), r.Count, micros(r.Min))
	for _, p := range t.pct {
		line += fmt.Sprintf(" %9s", micros(r.P[Key(p)]))
	}
	return line + fmt.Sprintf(" %9s %9s  us", micros(r.Max), micros(r.Mean))
}

func peerRow(s *Series) string {
	r, p, ratio := &s.Result, &s.Perftest.Result, s.Ratio
	rounds := len(s.Perftest.Rounds) - s.Perftest.Discarded
	if r.Unit != "ns" {
		return fmt.Sprintf("%8s %7d %9s %9s %7.3f %13s  %s", s.sizeText(), rounds, mega(r.Mean), mega(p.Mean), ratio.Mean.Median, span(ratio.Mean), shownUnit(r.Unit))
	}
	return fmt.Sprintf("%8s %7d %9s %9s %7s %13s %9s %9s %7s %9s %9s %7s  us", s.sizeText(), rounds,
		micros(r.P["50"]), percentileOf(p, "50"), ratio.P50.text(), span(cmp.Or(ratio.P50, ratio.Mean)),
		micros(r.Mean), micros(p.Mean), ratio.Mean.text(),
		micros(r.P["99"]), percentileOf(p, "99"), ratio.P99.text())
}

// percentileOf is a percentile that a peer may not report.
func percentileOf(r *Result, p string) string {
	if v, ok := r.P[p]; ok {
		return micros(v)
	}
	return "-"
}

// name is what tables call the peer.
func (p *Perftest) name() string {
	return cmp.Or(map[string]string{"ucx": "UCX", "mpi": "OSU"}[p.Peer], "perftest")
}

func (s *Spread) text() string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", s.Median)
}

func span(s *Spread) string { return fmt.Sprintf("%.2f to %.2f", s.Min, s.Max) }

// notes gathers what the series and their environments have to say, once each.
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
		case s.Join != nil: // milliseconds
		case s.Env.ClockNS > 0 && s.MR != nil:
			add(fmt.Sprintf("one reading of the clock costs %.0f ns; it is part of each sample", s.Env.ClockNS))
		case s.Env.ClockNS > 0:
			add(fmt.Sprintf("fabric %s: one reading of the clock costs %.0f ns; it is part of each sample", s.Env.Fabric, s.Env.ClockNS))
		}
	}
	return out
}

// sizeText names the size of a series.
func (s *Series) sizeText() string {
	if s.Op == plan.Barrier {
		return "-"
	}
	return SizeName(s.Op, s.Size)
}

// sizeText prints a size as users write it.
func sizeText(n int64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "G"}, {20, "M"}, {10, "K"}} {
		if n >= 1<<u.shift && n&(1<<u.shift-1) == 0 {
			return fmt.Sprintf("%d%s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprint(n)
}

// micros prints ns as us, with as many decimals as a figure has to say.
func micros(ns float64) string {
	us := ns / 1e3
	switch {
	case us < 0.1:
		return fmt.Sprintf("%.4f", us)
	case us < 10:
		return fmt.Sprintf("%.3f", us)
	case us < 1000:
		return fmt.Sprintf("%.2f", us)
	}
	return fmt.Sprintf("%.1f", us)
}

// mega prints millions.
func mega(v float64) string {
	m := v / 1e6
	switch {
	case m < 0.1:
		return fmt.Sprintf("%.6f", m)
	case m < 10:
		return fmt.Sprintf("%.4f", m)
	case m < 1000:
		return fmt.Sprintf("%.2f", m)
	}
	return fmt.Sprintf("%.0f", m)
}

const (
	barRows  = 16
	barWidth = 50
)

// bars draws the histogram up to the 99th percentile, with what lies beyond in
// a last row.
func bars(s *Series) string {
	scale := 1.0
	if s.Hist.Unit == "ps" {
		scale = 1e-3
	}
	total := int64(0)
	for _, b := range s.Hist.Buckets {
		total += b[2]
	}
	if total == 0 {
		return ""
	}
	lo, hi, widest := float64(s.Hist.Buckets[0][0])*scale, 0.0, scale
	sum := int64(0)
	for _, b := range s.Hist.Buckets {
		widest = max(widest, float64(b[1]+1-b[0])*scale) // a row of less would have none, or two
		if sum += b[2]; float64(sum) >= 0.99*float64(total) {
			hi = float64(b[1]+1) * scale
			break
		}
	}
	step := math.Max((hi-lo)/barRows, widest)
	counts := make([]int64, barRows+1)
	for _, b := range s.Hist.Buckets {
		mid := float64(b[0]+b[1]) / 2 * scale
		counts[min(int((mid-lo)/step), barRows)] += b[2]
	}
	rows := barRows
	for counts[rows-1] == 0 {
		rows-- // the rows beyond the last value of few
	}
	most := float64(max(slices.Max(counts), 1))
	var out strings.Builder
	line := func(name string, from float64, c int64) {
		fmt.Fprintf(&out, "%8s %9s us %9d %s\n", name, micros(from), c, strings.Repeat("█", int(float64(c)/most*barWidth+0.5)))
	}
	for i, c := range counts[:rows] {
		line("from", lo+float64(i)*step, c)
	}
	if c := counts[barRows]; c > 0 {
		line("beyond", lo+barRows*step, c)
	}
	return out.String()
}
