package plan

import (
	"fmt"
	"strconv"
	"strings"
)

// PeerKind is the kind of assertions about the ratio to perftest, as "p50<1.15x".
func PeerKind(kind string) string { return "perftest " + kind }

// Assertion is a bound on a result, as "p99<5us", "bw>=1GB/s" or "rate>1M/s".
type Assertion struct {
	Text   string
	Metric string  // min, mean, max, p50, p99.9, bw, rate
	Cmp    string  // < <= > >=
	Bound  float64 // ns, bytes per second, operations per second, or a ratio
}

// The units of each dimension. Decimal prefixes are powers of 1000, Ki, Mi and
// Gi are powers of 1024, a small b is a bit.
var (
	timeUnits = map[string]float64{"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
	sizeUnits = map[string]float64{"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
	bwUnits   = map[string]float64{
		"B/s": 1, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "KiB/s": 1 << 10, "MiB/s": 1 << 20, "GiB/s": 1 << 30,
		"b/s": 1. / 8, "Kb/s": 1e3 / 8, "Mb/s": 1e6 / 8, "Gb/s": 1e9 / 8,
	}
	rateUnits = map[string]float64{"/s": 1, "k/s": 1e3, "K/s": 1e3, "M/s": 1e6, "G/s": 1e9}
	ratios    = map[string]float64{"x": 1}
	percents  = map[string]float64{"%": 1}
	numbers   = map[string]float64{"": 1}
)

// ParseAssertion reads an assertion about a measurement of the given kind.
func ParseAssertion(s, kind string) (Assertion, error) {
	a := Assertion{Text: s}
	i := strings.IndexAny(s, "<>")
	if i < 0 {
		return a, fmt.Errorf("assertion %q: want METRIC<BOUND or METRIC>BOUND, such as %s", s, assertables[kind].example)
	}
	a.Metric = strings.TrimSpace(s[:i])
	rest := s[i+1:]
	a.Cmp = s[i : i+1]
	if strings.HasPrefix(rest, "=") {
		a.Cmp, rest = a.Cmp+"=", rest[1:]
	}
	units, err := unitsOf(a.Metric, kind)
	if err != nil {
		return a, fmt.Errorf("assertion %q: %w", s, err)
	}
	number, unit := split(rest)
	scale, ok := units[unit]
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !ok || v < 0 || !finite(v*scale) {
		return a, fmt.Errorf("assertion %q: bound %q: want a number with its unit, such as %s", s, strings.TrimSpace(rest),
			assertables[kind].example)
	}
	a.Bound = v * scale
	return a, nil
}

// assertable is what assertions of a kind can be about.
type assertable struct {
	timed   bool     // min, mean, max and percentiles, times of an operation
	metrics []metric // further ones
	example string
}

type metric struct {
	name  string
	units map[string]float64
}

var assertables = map[string]assertable{
	Lat:            {true, nil, "p99<5us"},
	Coll:           {true, nil, "p50<5us"},
	BW:             {false, []metric{{"bw", bwUnits}, {"rate", rateUnits}}, "bw>1GB/s"},
	Rate:           {false, []metric{{"rate", rateUnits}}, "rate>1M/s"},
	Cache:          {true, []metric{{"ratio", ratios}, {"messages", ratios}, {"bytes", ratios}}, "ratio>2x"},
	MRKind(Reg):    {true, nil, "p99<1ms"},
	MRKind(Hit):    {true, []metric{{"hits", percents}, {"allocs", numbers}}, "p50<30ns"},
	MRKind(Churn):  {true, []metric{{"overhead", timeUnits}, {"ratio", ratios}, {"rss", sizeUnits}}, "overhead<300ns"},
	PeerKind(Lat):  {false, []metric{{"p50", ratios}, {"mean", ratios}, {"p99", ratios}}, "p50<1.15x"},
	PeerKind(BW):   {false, []metric{{"bw", ratios}}, "bw>0.9x"},
	PeerKind(Rate): {false, []metric{{"rate", ratios}}, "rate>0.7x"},
}

func unitsOf(name, kind string) (map[string]float64, error) {
	of, has := assertables[kind], []string(nil)
	if of.timed {
		if name == "min" || name == "mean" || name == "max" {
			return timeUnits, nil
		}
		if strings.HasPrefix(name, "p") {
			_, err := percentile(name[1:])
			return timeUnits, err
		}
		has = []string{"min", "mean", "max", "percentiles such as p99.9"}
	}
	for _, m := range of.metrics {
		if m.name == name {
			return m.units, nil
		}
		has = append(has, m.name)
	}
	return nil, fmt.Errorf("%s has no metric %q; it has %s", kind, name, strings.Join(has, ", "))
}

// Percentile is the percentile that the assertion is about, if any.
func (a Assertion) Percentile() (float64, bool) {
	if !strings.HasPrefix(a.Metric, "p") {
		return 0, false
	}
	p, err := percentile(a.Metric[1:])
	return p, err == nil
}

// Holds reports whether a measured value fulfils the assertion.
func (a Assertion) Holds(v float64) bool {
	switch a.Cmp {
	case "<":
		return v < a.Bound
	case "<=":
		return v <= a.Bound
	case ">":
		return v > a.Bound
	}
	return v >= a.Bound
}

// Compares says that the assertion is about one side of a measurement of Cache against the other.
func (a Assertion) Compares() bool {
	return a.Metric == "ratio" || a.Metric == "messages" || a.Metric == "bytes"
}
