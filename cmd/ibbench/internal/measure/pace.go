package measure

import (
	"math"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// pace decides how long the next stretch is, from the time of the last ones.
type pace struct {
	pt    plan.Point
	perNS float64 // of a sample
}

// Stretches of a warm-up: the first is short, since nothing is known yet.
const (
	firstStretch  = 16
	firstBytes    = 64 << 20 // that it moves at most, if that is one operation at least
	warmupStretch = 100 * time.Millisecond

	replyBytes = 64 << 20 // that replies to a stretch of calls bring at most
)

// first is how many samples the first stretch has.
func (p *pace) first() int64 {
	if p.pt.Kind == plan.Coll { // a sample has many operations
		return max(1, min(p.pt.WarmupIters, firstStretch))
	}
	return min(firstStretch, max(1, firstBytes/max(p.pt.Size, 1)))
}

// learn takes the duration of a stretch into account.
func (p *pace) learn(n int, elapsed int64) {
	p.perNS = max(float64(elapsed)/float64(n), 0.1)
}

// fit is how many samples take a given time.
func (p *pace) fit(d time.Duration) int64 {
	return int64(min(max(float64(d)/p.perNS, 1), float64(p.most())))
}

// warm is the next stretch of the warm-up, 0 when it is over: both its time
// and its count are reached, and one stretch at least has been done. It need not
// reach its count where it would take longer than the measurement may.
func (p *pace) warm(done, elapsed int64) int64 {
	if done == 0 {
		return p.first()
	}
	left := max(int64(p.pt.Warmup)-elapsed, 0)
	missing := max(p.pt.WarmupIters-done, 0)
	if p.pt.Duration > 0 {
		missing = min(missing, int64(max(float64(int64(p.pt.Duration)-elapsed)/p.perNS, 0)))
	}
	if left == 0 && missing == 0 {
		return 0
	}
	return max(min(p.fit(warmupStretch), max(p.fit(time.Duration(left)), min(missing, p.most()))), 1)
}

// next is the next stretch of the measurement, 0 when it is over. Of
// iterations and duration the one that ends first counts.
func (p *pace) next(done, elapsed int64) int64 {
	parts := int64(p.pt.Intervals)
	if parts == 0 {
		parts = plan.DefaultIntervals
	}
	if p.pt.PerSecond > 0 {
		parts = 1 // a backlog must not be forgotten between two stretches
	}
	n := int64(math.MaxInt64)
	if p.pt.Iters > 0 {
		n = min((p.pt.Iters+parts-1)/parts, p.pt.Iters-done)
	}
	if p.pt.Duration > 0 {
		left := int64(p.pt.Duration) - elapsed
		if left <= 0 {
			return 0
		}
		n = min(n, p.fit(min(p.pt.Duration/time.Duration(parts)+1, time.Duration(left))))
	}
	return min(n, p.most())
}

// most bounds a stretch: by the room for readings, and by what replies with a payload allocate
// meanwhile.
func (p *pace) most() int64 {
	if p.pt.Op == plan.AM && p.pt.Size > 0 {
		return min(maxStretch, max(1, replyBytes/p.pt.Size))
	}
	return maxStretch
}

// stream is the only stretch of a throughput, per lane. It is four times the depth at least, since
// fewer would measure filling and draining, unless that takes twice the duration.
func (p *pace) stream() int64 {
	if p.pt.Duration == 0 {
		return p.pt.Iters
	}
	fit := float64(p.pt.Duration) / p.perNS
	n := int64(max(fit, min(float64(4*p.pt.Depth), 2*fit), 1))
	if p.pt.Iters > 0 {
		n = min(n, p.pt.Iters)
	}
	return n
}

// expect is how long a stretch will take, for ranks that sleep meanwhile.
func (p *pace) expect(n int64) int64 { return int64(float64(n) * p.perNS) }
