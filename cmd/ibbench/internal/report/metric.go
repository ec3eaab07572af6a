package report

import (
	"math"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// Metric is a figure of a point beside its Result, or a label.
type Metric struct {
	Value     float64
	Low, High float64 // around Value, of a figure with an interval
	Text      string  // of a label
}

// Metrics of a point, by name.
type Metrics map[string]Metric

// form is how a metric stands in the JSON.
type form int

const (
	number   form = iota
	label         // a string
	truth         // a boolean
	spread        // a median with its range
	estimate      // a median with an interval of 95 %
	bounds        // such an interval by itself
)

// declaration has all that is known of a metric. README.md says what each means.
type declaration struct {
	name   string // its place in the JSON
	form   form
	unit   string // ns, B, %, x; "": a number of something
	csv    string // its column; "": none
	bench  string // its unit on a benchmark line; "": none
	assert string // its name in assertions; "": none

	sum   bool // rounds of a point add up; else their median counts
	exact bool // the median of rounds keeps three decimals

	plan func(*plan.Point) any // a column of the CSV that is no metric, but a dimension of the section
}

// declared are all metrics, in the order of their columns.
var declared = flatten(
	group("ratio", // ours to the peer's: below 1 ours are faster in latency, above 1 in bandwidth
		declaration{name: "p50", form: spread, unit: "x", assert: "p50"},
		declaration{name: "mean", form: spread, unit: "x", assert: "mean"},
		declaration{name: "p99", form: spread, unit: "x", assert: "p99"}, declaration{name: "best", unit: "x"},
		declaration{name: "interval", form: bounds, unit: "x"}),
	group("goal", declaration{name: "ratio", unit: "x"}, declaration{name: "verdict", form: label}),
	group("mr", declaration{name: "registrar", form: label, csv: "registrar"},
		declaration{csv: "regions", plan: func(p *plan.Point) any { return p.Regions }}),
	figures("mr.reg.register", "register"), figures("mr.reg.deregister", "deregister"), figures("mr.reg.copy", "copy"),
	group("mr.reg", declaration{name: "hit_ns", unit: "ns", csv: "hit_p50"}),
	group("mr.hit", declaration{name: "percent", unit: "%", csv: "hit_percent", bench: "hit-%", assert: "hits"},
		declaration{name: "allocs_per_op", csv: "allocs_per_op", bench: "allocs/op", assert: "allocs"}),
	figures("mr.churn.raw", "raw"),
	group("mr.churn", declaration{name: "overhead_ns", form: spread, unit: "ns", csv: "overhead", bench: "overhead-ns",
		assert: "overhead"}),
	figures("mr.churn.cycle", "cycle"), figures("mr.churn.raw_cycle", "raw_cycle"),
	group("mr.churn", declaration{name: "ratio", form: spread, unit: "x", csv: "ratio", assert: "ratio"},
		declaration{name: "rss_growth", assert: "rss"}), // of earlier versions
	counts("am", "sent handled rnr no_credit no_buffer no_reply queue_full controls copies parks sleeps hand_overs",
		declaration{sum: true}),
	group("am", declaration{name: "allocs_per_op", bench: "allocs/op", exact: true}),
	group("flow", declaration{name: "arm", form: label, csv: "arm"},
		declaration{name: "counts", form: label, csv: "counts"}),
	counts("flow", "limit peak faults arrays", declaration{csv: "*"}),
	group("flow", declaration{name: "failed", form: label, csv: "failed"}),
	group("cache", declaration{name: "side", form: label, csv: "side"}, declaration{name: "base", form: truth}),
	counts("cache", "messages requests bytes hits misses prefetched unused fetched used", declaration{csv: "*"}),
	group("cache", declaration{name: "time", form: estimate, unit: "ns"},
		declaration{name: "ratio", form: estimate, unit: "x", csv: "ratio", assert: "ratio"},
		declaration{name: "messages_ratio", unit: "x", assert: "messages"},
		declaration{name: "bytes_ratio", unit: "x", assert: "bytes"}),
)

func flatten(groups ...[]declaration) (all []declaration) {
	for _, g := range groups {
		all = append(all, g...)
	}
	return all
}

// group declares metrics of one object of the JSON.
func group(object string, all ...declaration) []declaration {
	for i := range all {
		all[i].name = object + "." + all[i].name
	}
	return all
}

// counts declares metrics that differ by name only; "*" stands for it.
func counts(object, names string, like declaration) (all []declaration) {
	for name := range strings.FieldsSeq(names) {
		d := like
		d.name, d.csv = name, strings.ReplaceAll(d.csv, "*", name)
		all = append(all, d)
	}
	return group(object, all...)
}

// figures declares the Figures of a time, of which tables have the median.
func figures(object, short string) []declaration {
	return group(object, declaration{name: "p50", unit: "ns", csv: short + "_p50",
		bench: strings.ReplaceAll(short, "_", "-") + "-ns"},
		declaration{name: "mean", unit: "ns"}, declaration{name: "p99", unit: "ns"})
}

var byName = func() map[string]declaration {
	all := make(map[string]declaration, len(declared))
	for _, d := range declared {
		all[d.name] = d
	}
	return all
}()

// put sets a metric, which must be declared.
func (s *Series) put(name string, m Metric) {
	if _, ok := byName[name]; !ok {
		panic("report: no metric " + name)
	}
	if s.Metrics == nil {
		s.Metrics = make(Metrics)
	}
	s.Metrics[name] = m
}

// Set sets a figure.
func (s *Series) Set(name string, v float64) { s.put(name, Metric{Value: v}) }

// SetText sets a label.
func (s *Series) SetText(name, text string) { s.put(name, Metric{Text: text}) }

// SetSpread sets a figure with an interval, or leaves it out where there is none.
func (s *Series) SetSpread(name string, v *Spread) {
	if v != nil {
		s.put(name, Metric{Value: v.Median, Low: v.Min, High: v.Max})
	}
}

// SetBounds sets an interval by itself.
func (s *Series) SetBounds(name string, low, high float64) { s.put(name, Metric{Low: low, High: high}) }

// SetFigures sets the three figures of a time.
func (s *Series) SetFigures(name string, f Figures) {
	s.Set(name+".p50", f.P50)
	s.Set(name+".mean", f.Mean)
	s.Set(name+".p99", f.P99)
}

// Has reports whether a metric was measured.
func (s *Series) Has(name string) bool {
	_, ok := s.Metrics[name]
	return ok
}

// Value is a figure, 0 where it was not measured.
func (s *Series) Value(name string) float64 { return s.Metrics[name].Value }

// Text is a label, "" where there is none.
func (s *Series) Text(name string) string { return s.Metrics[name].Text }

// section reports whether a metric has the object that a name is in.
func (s *Series) section(name string) bool {
	object := name[:strings.LastIndexByte(name, '.')+1]
	for other := range s.Metrics {
		if strings.HasPrefix(other, object) {
			return true
		}
	}
	return false
}

// asserted finds the metric that an assertion means: of a comparison the mean where the
// peer has no other, as of throughputs.
func (s *Series) asserted(metric string) (d declaration, ok bool) {
	for _, d := range declared {
		if d.assert == metric && s.Has(d.name) {
			return d, true
		}
	}
	return byName["ratio.mean"], s.Has("ratio.mean")
}

// combine makes the metrics of rounds one: sums, or medians.
func (s *Series) combine(rounds []*Series) {
	for name, m := range s.Metrics {
		d := byName[name]
		if d.form == label || d.form == truth {
			continue
		}
		var all []float64
		sum := 0.0
		for _, r := range rounds {
			all = append(all, r.Value(name))
			sum += r.Value(name)
		}
		switch m.Value = stats.Median(all); {
		case d.sum:
			m.Value = sum
		case d.exact:
			m.Value = Round3(m.Value)
		default:
			m.Value = math.Round(m.Value)
		}
		s.Metrics[name] = m
	}
}

// encode returns the metric as it stands in the JSON.
func (d *declaration) encode(m Metric) any {
	switch d.form {
	case label:
		return m.Text
	case truth:
		return m.Value != 0
	case spread:
		return Spread{m.Value, m.Low, m.High}
	case estimate:
		return map[string]float64{"median": m.Value, "low": m.Low, "high": m.High}
	case bounds:
		return []float64{m.Low, m.High}
	}
	return m.Value
}

// decode reads a metric of the JSON.
func (d *declaration) decode(v any) (m Metric, ok bool) {
	switch d.form {
	case label:
		m.Text, ok = v.(string)
	case truth:
		var set bool
		if set, ok = v.(bool); set {
			m.Value = 1
		}
	case spread, estimate:
		var object map[string]any
		object, ok = v.(map[string]any)
		of := func(name string) float64 {
			f, _ := object[name].(float64)
			return f
		}
		m = Metric{Value: of("median"), Low: of("min") + of("low"), High: of("max") + of("high")} // it has one pair of them
	case bounds:
		if list, _ := v.([]any); len(list) == 2 {
			m.Low, ok = list[0].(float64)
			m.High, _ = list[1].(float64)
		}
	default:
		m.Value, ok = v.(float64)
	}
	return m, ok
}
