package stats

import hdr "github.com/HdrHistogram/hdrhistogram-go"

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

// Merge adds up histograms of one type and unit.
func Merge(hs ...*Hist) *Hist {
	all := hdr.New(1, maxValue, sigDigits)
	out := &Hist{Type: HistType, Unit: "ns", Buckets: []Bucket{}}
	for _, h := range hs {
		out.Unit = h.Unit
		for _, b := range h.Buckets {
			_ = all.RecordValues(min(max(b[1], 0), maxValue), b[2])
		}
	}
	for _, b := range all.Distribution() {
		if b.Count > 0 {
			out.Buckets = append(out.Buckets, Bucket{b.From, b.To, b.Count})
		}
	}
	return out
}
