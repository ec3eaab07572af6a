package stats

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
