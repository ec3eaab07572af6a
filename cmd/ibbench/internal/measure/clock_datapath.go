package measure

import (
	"math/bits"
	"sync"
	"time"
)

// epoch of the readings.
var epoch, origin = time.Now(), ticks()

// perTick is ns per tick of the processor's counter, in 32.32 fixed point; 0:
// the counter is not the clock.
var perTick uint64

// Calibrate makes the counter the clock where it can be, which takes 20 ms: before anything is
// measured, but for the start of a job, where it would be most of the time.
var Calibrate = sync.OnceFunc(func() {
	if countsTime() {
		perTick = tickNS()
	}
})

// Now is a monotonic reading in ns, for measurements of other packages.
func Now() int64 { return now() }

// now is a monotonic reading in ns.
func now() int64 {
	if perTick != 0 {
		hi, lo := bits.Mul64(ticks()-origin, perTick)
		return int64(hi<<32 | lo>>32)
	}
	return int64(time.Since(epoch)) // reads one clock, where time.Now reads two
}
