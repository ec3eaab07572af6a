//go:build linux && (amd64 || arm64)

package measure

import (
	"os"
	"strings"
	"time"
)

// ticks reads the processor's counter, as perftest does: a reading of the clock
// is a call and costs some ten times as much in an emulated machine.
func ticks() uint64

// countsTime reports whether the kernel itself takes the counter for its clock:
// it then runs at one rate, and alike on all processors (clocksource in the
// kernel's timekeeping documentation).
func countsTime() bool {
	b, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	name := strings.TrimSpace(string(b))
	return err == nil && (name == "tsc" || name == "arch_sys_counter")
}

// tickNS is ns per tick in 32.32 fixed point, measured against the clock.
func tickNS() uint64 {
	const length = 20 * time.Millisecond
	start, from := time.Now(), ticks()
	time.Sleep(length)
	elapsed, to := time.Since(start), ticks()
	return uint64(float64(elapsed) / float64(to-from) * (1 << 32))
}
