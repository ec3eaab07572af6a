package stats

import (
	"math"
	"slices"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Bounds of kept samples.
const (
	maxExact  = 1 << 22        // samples kept as they are: 32 MiB
	sigDigits = 3              // of the histogram
	maxValue  = int64(1) << 50 // of the histogram: 13 days in ns, 18 minutes in ps
)

// Samples collects durations. Add does not allocate.
type Samples struct {
	exact  []int64 // raw: ns for Div operations
	hist   *hdr.Histogram
	perOp  float64 // histogram units of one raw unit
	div    float64
	count  int64
	sum    float64
	lo, hi int64
	sorted bool
}

// New makes room for up to n samples, each the time in ns that div operations
// took; div is also 2 for half a round trip. The histogram is in ns, or in ps
// with fine.
func New(n int64, div float64, fine bool) *Samples {
	s := &Samples{
		exact: make([]int64, 0, min(n, maxExact)),
		hist:  hdr.New(1, maxValue, sigDigits),
		perOp: 1 / div, div: div, lo: math.MaxInt64,
	}
	if fine {
		s.perOp = 1000 / div
	}
	return s
}

// Add adds one sample. A clock that steps back counts as no time.
func (s *Samples) Add(raw int64) {
	raw = max(raw, 0)
	s.count++
	s.sum += float64(raw)
	s.lo, s.hi = min(s.lo, raw), max(s.hi, raw)
	if len(s.exact) < cap(s.exact) {
		s.exact = append(s.exact, raw)
		s.sorted = false
	}
	// RecordValue refuses only values above maxValue.
	_ = s.hist.RecordValue(min(int64(float64(raw)*s.perOp+0.5), maxValue))
}

// Count is the number of samples.
func (s *Samples) Count() int64 { return s.count }

// Exact reports whether percentiles come from the samples themselves.
func (s *Samples) Exact() bool { return s.count == int64(len(s.exact)) }

// Min, Max and Mean are in ns per operation; 0 without samples.
func (s *Samples) Min() float64 {
	if s.count == 0 {
		return 0
	}
	return float64(s.lo) / s.div
}

// Max is the largest sample.
func (s *Samples) Max() float64 { return float64(s.hi) / s.div }

// Mean is the arithmetic mean.
func (s *Samples) Mean() float64 {
	if s.count == 0 {
		return 0
	}
	return s.sum / float64(s.count) / s.div
}

// Percentile is in ns per operation.
func (s *Samples) Percentile(p float64) float64 {
	if s.count == 0 {
		return 0
	}
	if !s.Exact() {
		return float64(s.hist.ValueAtQuantile(p)) / (s.perOp * s.div)
	}
	if !s.sorted {
		slices.Sort(s.exact)
		s.sorted = true
	}
	return float64(s.exact[Rank(p, len(s.exact))]) / s.div
}

// Rank is the index of the p-th percentile among n sorted values.
func Rank(p float64, n int) int {
	// The product is rounded before it is raised: 99.9 % of 1000 is 999, not 999.0000000000001.
	k := int(math.Ceil(math.Round(p*float64(n)*1e6) / 1e8))
	return min(max(k, 1), n) - 1
}

// Median of a few figures; 0 of none. It reorders them.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// MedianInterval is an interval that holds the median of the sampled distribution with a
// probability of 95 % at least: between two of them, by the binomial distribution of how many lie
// below it (Conover, Practical Nonparametric Statistics, 3.2). Fewer than 6 figures have none. It
// reorders them.
func MedianInterval(v []float64) (low, high float64, ok bool) {
	slices.Sort(v)
	n := len(v)
	// k figures may lie on either side as long as that has a probability of 2.5 % at most.
	k, below, one := 0, 0.0, math.Exp2(-float64(n)) // one: of exactly k
	if n > 1000 {                                   // one would be 0: the normal approximation
		k = int(float64(n)/2 - 1.96*math.Sqrt(float64(n))/2)
	} else {
		for ; below+one <= 0.025; k++ {
			below += one
			one *= float64(n-k) / float64(k+1)
		}
	}
	if k == 0 {
		return 0, 0, false
	}
	return v[k-1], v[n-k], true
}
