package plan

import (
	"fmt"
	"strconv"
	"strings"
)

// PeerKind is the kind of assertions about the ratio to perftest, or MPI, as "p50<1.15x".
func PeerKind(kind string) string {
	if kind == Coll {
		return "coll --peer mpi"
	}
	return "perftest " + kind
}

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
)

// ParseAssertion reads an assertion about a measurement of the given kind.
func ParseAssertion(s, kind string) (Assertion, error) {
	a := Assertion{Text: s}
	i := strings.IndexAny(s, "<>")
	if i < 0 {
		return a, fmt.Errorf("assertion %q: want METRIC<BOUND or METRIC>BOUND, such as %s", s, example(kind))
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
		return a, fmt.Errorf("assertion %q: bound %q: want a number with its unit, such as %s", s, strings.TrimSpace(rest), example(kind))
	}
	a.Bound = v * scale
	return a, nil
}

func unitsOf(metric, kind string) (map[string]float64, error) {
	switch {
	case (kind == PeerKind(Lat) || kind == PeerKind(Coll)) && (metric == "p50" || metric == "mean" || metric == "p99"), kind == PeerKind(BW) && metric == "bw", kind == PeerKind(Rate) && metric == "rate":
		return map[string]float64{"x": 1}, nil
	case kind == BW && metric == "bw":
		return bwUnits, nil
	case strings.HasPrefix(kind, MR):
		return mrUnits(kind, metric)
	case (kind == BW || kind == Rate) && metric == "rate":
		return rateUnits, nil
	case kind == Cache && Assertion{Metric: metric}.Compares():
		return map[string]float64{"x": 1}, nil
	case kind == Pairs && metric == "findings":
		return map[string]float64{"": 1}, nil
	case kind == Heap && (metric == "fragmentation" || metric == "meta"):
		return map[string]float64{"%": 1}, nil
	case timed(kind) && (metric == "min" || metric == "mean" || metric == "max"):
		return timeUnits, nil
	case timed(kind) && strings.HasPrefix(metric, "p"):
		_, err := percentile(metric[1:])
		return timeUnits, err
	}
	return nil, fmt.Errorf("%s has no metric %q; it has %s", kind, metric, map[string]string{
		Lat: "min, mean, max and percentiles such as p99.9", Join: "min, mean, max and percentiles such as p90", Coll: "min, mean, max and percentiles such as p99.9", BW: "bw and rate", Rate: "rate",
		Cache: "ratio, messages, bytes, min, mean, max and percentiles such as p90",
		Pairs: "findings",
		Heap:  "min, mean, max, percentiles such as p99.9, fragmentation and meta", PeerKind(Lat): "p50, mean and p99", PeerKind(Coll): "p50, mean and p99", PeerKind(BW): "bw", PeerKind(Rate): "rate",
	}[kind])
}

// timed are the kinds whose samples are times of an operation.
func timed(kind string) bool {
	return kind == Lat || kind == Heap || kind == Coll || kind == Cache || kind == Join
}

func example(kind string) string {
	if strings.HasPrefix(kind, MR) {
		return map[string]string{MRKind(Reg): "p99<1ms", MRKind(Hit): "p50<30ns", MRKind(Churn): "overhead<300ns"}[kind]
	}
	return map[string]string{Lat: "p99<5us", BW: "bw>1GB/s", Rate: "rate>1M/s", Heap: "p50<100ns", Cache: "ratio>2x", Coll: "p50<5us", Join: "p50<1s", Pairs: "findings<=0", PeerKind(Coll): "p50<=1x", PeerKind(Lat): "p50<1.15x", PeerKind(BW): "bw>0.9x", PeerKind(Rate): "rate>0.7x"}[kind]
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
