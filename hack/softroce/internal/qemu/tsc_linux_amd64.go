package qemu

import (
	"fmt"
	"time"
)

// ticks reads the time stamp counter of this processor.
func ticks() uint64

// clockArgs gives the guest's kernel how fast its time stamp counter is, which under emulation is
// the host's (QEMU, include/qemu/timer.h, cpu_get_host_ticks). The kernel would measure it against
// the emulated HPET for 50 ms, and a busy host that stops the guest in that time makes its clock
// several times too fast for good. Parameter tsc_early_khz: kernel-parameters.txt.
func clockArgs() string {
	return fmt.Sprintf(" tsc_early_khz=%d", ticksPerMillisecond(100*time.Millisecond))
}

// ticksPerMillisecond measures for about d.
func ticksPerMillisecond(d time.Duration) uint64 {
	t0, n0 := moment()
	time.Sleep(d)
	t1, n1 := moment()
	return uint64(float64(n1-n0) * float64(time.Millisecond) / float64(t1.Sub(t0)))
}

// moment reads both clocks at the same time, as nearly as it can: the nearest of several readings,
// so that a goroutine that was stopped between two of them does no harm.
func moment() (at time.Time, n uint64) {
	least := time.Duration(1<<63 - 1)
	for range 20 {
		before := time.Now()
		ticks := ticks()
		if gap := time.Since(before); gap < least {
			least, at, n = gap, before.Add(gap/2), ticks
		}
	}
	return at, n
}
