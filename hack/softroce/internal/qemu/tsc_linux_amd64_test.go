package qemu

import (
	"testing"
	"time"
)

func TestCounterSpeedIsTheSameInShortAndLongRuns(t *testing.T) {
	short, long := ticksPerMillisecond(10*time.Millisecond), ticksPerMillisecond(200*time.Millisecond)
	if short < 100_000 || long < 100_000 { // 100 MHz: no processor that has a constant counter is slower
		t.Fatal("ticks per millisecond:", short, long)
	}
	if d := float64(short)/float64(long) - 1; d > 0.01 || d < -0.01 { // the kernel's own bound for a refinement
		t.Errorf("ticks per millisecond: %d in 10 ms, %d in 200 ms", short, long)
	}
}
