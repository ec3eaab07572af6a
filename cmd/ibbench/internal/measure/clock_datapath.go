package measure

import "time"

// epoch of the readings.
var epoch = time.Now()

// now is a monotonic reading in ns. time.Since of a time with a monotonic part
// reads one clock, time.Now two.
func now() int64 { return int64(time.Since(epoch)) }
