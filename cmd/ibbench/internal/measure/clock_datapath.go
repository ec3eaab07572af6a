package measure

import (
	"math/bits"
	"time"
)

// epoch of the readings.
var epoch, origin = time.Now(), ticks()

// perTick is ns per tick of the processor's counter, in 32.32 fixed point; 0:
// the counter is not the clock.
var perTick = func() uint64 {
	if !countsTime() {
		return 0
	}
	return tickNS()
}()

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
