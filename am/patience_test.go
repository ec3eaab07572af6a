package am

import (
	"testing"
	"time"
)

func TestPollingAdaptsToSleeps(t *testing.T) {
	const least, most = 10 * time.Microsecond, spinMost * 10 * time.Microsecond
	p := newPatience(least)
	for _, c := range []struct{ slept, polls time.Duration }{
		{most - 1, 2 * least}, {0, 4 * least}, {least, most}, {least, most}, // short: more polling would have met it
		{most, most / 2}, {time.Second, most / 4}, {time.Second, least}, {time.Second, least}, // long: it was in vain
	} {
		if p.slept(c.slept); p.now != c.polls {
			t.Fatalf("after a sleep of %v it polls for %v, want %v", c.slept, p.now, c.polls)
		}
	}
	if p = newPatience(0); p.now != 0 {
		t.Error("it polls though it must not")
	}
	if p.slept(0); p.now != 0 {
		t.Error("it polls though it must not")
	}
}
