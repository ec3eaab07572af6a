package metrics

// Kind says how a figure behaves over time.
type Kind uint8

const (
	// Counter never goes back. Its name ends in _total.
	Counter Kind = iota
	// Gauge goes up and down.
	Gauge
	// Histogram counts by size: Buckets, and Value, which is the sum of all. Its name has its unit.
	Histogram
)

// Figure is one number of a Source, at one moment.
type Figure struct {
	// Name without the prefix ibconduit_, with the unit and, for a counter,
	// _total at its end: "cache_hits_total", "pool_free_bytes".
	Name string
	Help string // one sentence; the same at every call
	Kind Kind
	// Labels are pairs of name and value: "network", "shm". The names are the
	// same for every figure of one Name; the values come from a small, fixed set.
	Labels []string
	Value  float64
	// Buckets are the upper ends of a Histogram's, in order, each with how much there was up to it;
	// the last one, with an infinite end, has all.
	Buckets []Bucket
}

// Bucket is how much there was up to some value.
type Bucket struct {
	UpTo  float64
	Count uint64
}

// Source is something that counts. Figures calls add for each of its numbers.
// It is called at each scrape, by any goroutine, perhaps by several at once, and
// must not wait. It must give every Name at every call, with 0 where nothing has
// happened yet.
type Source interface {
	Figures(add func(Figure))
}

// SourceFunc is a function as a Source.
type SourceFunc func(add func(Figure))

// Figures calls f.
func (f SourceFunc) Figures(add func(Figure)) { f(add) }
