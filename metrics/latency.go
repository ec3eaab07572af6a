package metrics

import (
	"math"

	"github.com/ibconduit/conduit"
)

// latencies are the histograms of a job that measures. Its buckets are read one after the other, so
// that what ends meanwhile may be in the sum and not in them.
func latencies(all map[string]map[string]conduit.Latency, add func(Figure)) {
	for network, ops := range all {
		for op, l := range ops {
			f := Figure{
				Name: "operation_latency_seconds", Kind: Histogram,
				Help:   "How long puts, gets and atomics took from their call until they were found complete, and flushes.",
				Labels: []string{"network", network, "op", op}, Value: l.Sum.Seconds(),
			}
			var count uint64
			for k, n := range l.Count {
				upTo := conduit.LatencyBound(k).Seconds()
				if k == conduit.LatencyBuckets-1 {
					upTo = math.Inf(1)
				}
				count += n
				f.Buckets = append(f.Buckets, Bucket{upTo, count})
			}
			add(f)
		}
	}
}
