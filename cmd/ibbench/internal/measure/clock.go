package measure

import (
	"math/bits"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// ClockCost is what one reading of the clock takes in ns, the median of a few averages.
func ClockCost() float64 {
	const runs, reads = 9, 1000
	var costs []float64
	for range runs {
		begin := now()
		for range reads {
			now()
		}
		costs = append(costs, float64(now()-begin)/(reads+1))
	}
	return stats.Median(costs)
}

// A sample of which the clock takes more than a twentieth of it holds several
// operations, so many that the clock costs at most a hundredth.
const (
	clockTolerance = 20
	clockShare     = 100
	maxBatch       = 1 << 16
)

// BatchFor chooses how many operations of opNS each make a sample.
func BatchFor(opNS, clockNS float64) int {
	if opNS >= clockTolerance*clockNS {
		return 1
	}
	if opNS*maxBatch <= clockShare*clockNS {
		return maxBatch
	}
	n := uint(clockShare*clockNS/opNS) + 1
	return min(1<<bits.Len(n-1), maxBatch)
}
