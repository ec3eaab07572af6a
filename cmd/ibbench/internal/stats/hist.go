package stats

import (
	"cmp"
	"slices"
)

// Hist is a histogram as it is written to a file.
type Hist struct {
	Type    string   `json:"type"` // HistType
	Unit    string   `json:"unit"` // ns or ps, per operation
	Buckets []Bucket `json:"buckets"`
}

// HistType names how values were put into buckets: an HdrHistogram with three
// significant digits. Histograms of one type and unit add up bucket by bucket.
const HistType = "hdr3"

// Bucket is [from, to, count]: how many values v had from <= v <= to.
type Bucket [3]int64

// Hist returns the buckets that are not empty.
func (s *Samples) Hist() *Hist {
	h := &Hist{Type: HistType, Unit: "ns", Buckets: []Bucket{}}
	if s.perOp*s.div == 1000 {
		h.Unit = "ps"
	}
	for _, b := range s.hist.Distribution() {
		if b.Count > 0 {
			h.Buckets = append(h.Buckets, Bucket{b.From, b.To, b.Count})
		}
	}
	return h
}

// Scale is how many nanoseconds the unit has.
func (h *Hist) Scale() float64 {
	if h.Unit == "ps" {
		return 1e-3
	}
	return 1
}

// MergeHists adds histograms up; nil where one is missing or of another unit.
func MergeHists(all []*Hist) *Hist {
	sum := make(map[[2]int64]int64)
	for _, h := range all {
		if h == nil || h.Type != all[0].Type || h.Unit != all[0].Unit {
			return nil
		}
		for _, b := range h.Buckets {
			sum[[2]int64{b[0], b[1]}] += b[2]
		}
	}
	if len(all) == 0 {
		return nil
	}
	m := &Hist{Type: all[0].Type, Unit: all[0].Unit, Buckets: make([]Bucket, 0, len(sum))}
	for at, n := range sum {
		m.Buckets = append(m.Buckets, Bucket{at[0], at[1], n})
	}
	slices.SortFunc(m.Buckets, func(a, b Bucket) int { return cmp.Compare(a[0], b[0]) })
	return m
}
