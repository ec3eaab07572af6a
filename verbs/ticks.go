//go:build linux && cgo

package verbs

/*
#include "ibc_verbs.h"
*/
import "C"

import (
	"slices"
	"sync"
	"time"
)

// ticks reads the processor's counter.
func ticks() uint64 { return uint64(C.ibc_ticks()) }

// ticksPerMicrosecond measures the counter against the clock, once: half a millisecond. The median
// of several rounds does not mind a round that was interrupted.
var ticksPerMicrosecond = sync.OnceValue(func() uint64 {
	const rounds, length = 5, 100 * time.Microsecond
	var rates []uint64
	for range rounds {
		start, from := time.Now(), ticks()
		for time.Since(start) < length {
		}
		elapsed, to := time.Since(start), ticks()
		rates = append(rates, (to-from)*1000/uint64(elapsed))
	}
	slices.Sort(rates)
	return max(rates[rounds/2], 1)
})
