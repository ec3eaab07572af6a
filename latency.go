package conduit

import (
	"context"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// LatencyBuckets is how many buckets a Latency has. Bucket k counts what took up to its bound, and
// longer than the bound before; the last one has none.
const LatencyBuckets = 29

// LatencyBound is the upper end of bucket k: 64 ns, 128 ns, and so on to 8.6 s.
func LatencyBound(k int) time.Duration { return 64 << k }

// Latency is a histogram of how long operations took.
type Latency struct {
	Count [LatencyBuckets]uint64
	Sum   time.Duration
}

// The operations that Config.Latency measures.
const (
	latencyPut = iota
	latencyGet
	latencyAtomic
	latencyFlush
	latencyOps
)

var latencyNames = [latencyOps]string{"put", "get", "atomic", "flush"}

// Latencies are the histograms of a job with Config.Latency, by network and operation: "put" and
// "get", "atomic", each from its call until it was found complete, "flush". nil without it.
func Latencies(j *Job) map[string]map[string]Latency {
	if j.latencies == nil {
		return nil
	}
	all := make(map[string]map[string]Latency)
	for i, n := range j.networks.all {
		ops := make(map[string]Latency)
		for op, name := range latencyNames {
			ops[name] = j.latencies[i][op].load()
		}
		all[n.Name()] = ops
	}
	return all
}

// latencies are a job's, by network.
type latencies [maxNetworks][latencyOps]latency

func newLatencies(measure bool) *latencies {
	if !measure {
		return nil
	}
	return new(latencies)
}

type latency struct {
	count [LatencyBuckets]atomic.Uint64
	sum   atomic.Uint64
}

func (l *latency) since(begin time.Time) {
	took := max(time.Since(begin), 0)
	l.count[latencyBucket(took)].Add(1)
	l.sum.Add(uint64(took))
}

// latencyBucket is the first one with a bound not less than d.
func latencyBucket(d time.Duration) int {
	return min(bits.Len64(uint64(max(d, 1)-1)>>6), LatencyBuckets-1)
}

func (l *latency) load() (s Latency) {
	for k := range s.Count {
		s.Count[k] = l.count[k].Load()
	}
	s.Sum = time.Duration(l.sum.Load())
	return s
}

// timedLane measures the operations of a lane. It stands in the lane's place, so that a worker
// that measures nothing has nothing to look at.
type timedLane struct {
	fabric.Lane
	took  *[latencyOps]latency
	begun map[fabric.Handle]begun // operations in flight that have handles
}

type begun struct {
	op int
	at time.Time
}

// timed puts measuring lanes in the place of lanes. Without measuring t is nil.
func (t *latencies) timed(lanes []fabric.Lane) {
	if t == nil {
		return
	}
	for i, l := range lanes {
		lanes[i] = &timedLane{Lane: l, took: &t[i], begun: make(map[fabric.Handle]begun)}
	}
}

// started notes an operation, or that it is complete. Of an implicit one no caller learns that.
func (l *timedLane) started(op int, at time.Time, h fabric.Handle, f fabric.Flag, err error) {
	switch {
	case err != nil || f&fabric.Implicit != 0:
	case h == fabric.Done:
		l.took[op].since(at)
	default:
		l.begun[h] = begun{op, at}
	}
}

// ended notes that an operation is complete. One that failed is not measured: its waiter drops it.
func (l *timedLane) ended(h fabric.Handle, err error) {
	if b, ok := l.begun[h]; ok && err == nil {
		l.took[b.op].since(b.at)
		delete(l.begun, h)
	}
}

func (l *timedLane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	at := time.Now()
	h, err := l.Lane.Put(peer, off, src, f)
	l.started(latencyPut, at, h, f, err)
	return h, err
}

func (l *timedLane) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	at := time.Now()
	h, err := l.Lane.Get(peer, off, dst, f)
	l.started(latencyGet, at, h, f, err)
	return h, err
}

func (l *timedLane) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, fabric.Handle, error) {
	at := time.Now()
	old, h, err := l.Lane.Atomic(peer, off, a, f)
	l.started(latencyAtomic, at, h, f, err)
	return old, h, err
}

func (l *timedLane) Test(h fabric.Handle) (uint64, bool, error) {
	old, done, err := l.Lane.Test(h)
	if done {
		l.ended(h, err)
	}
	return old, done, err
}

func (l *timedLane) Wait(ctx context.Context, h fabric.Handle) (uint64, error) {
	old, err := l.Lane.Wait(ctx, h)
	l.ended(h, err)
	return old, err
}

func (l *timedLane) Abandon(h fabric.Handle) {
	delete(l.begun, h)
	l.Lane.Abandon(h)
}

func (l *timedLane) Flush(ctx context.Context) error {
	at := time.Now()
	err := l.Lane.Flush(ctx)
	if err == nil {
		l.took[latencyFlush].since(at)
	}
	return err
}

// SetContext passes on what bounds a lane (fabric.Bounded).
func (l *timedLane) SetContext(ctx context.Context) {
	if b, ok := l.Lane.(fabric.Bounded); ok {
		b.SetContext(ctx)
	}
}
