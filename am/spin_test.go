package am

import (
	"testing"
	"time"
)

func TestPollingBeforeASleepGrowsWhileSleepsAreShorterThanItCouldBe(t *testing.T) {
	const first = 75 * time.Microsecond
	l := &Lane{cfg: Config{SpinFor: first}}
	l.engine.spin = first
	after := func(slept time.Duration, times int) time.Duration {
		for range times {
			l.adapt(slept)
		}
		return l.engine.spin
	}
	if d := after(100*time.Microsecond, 1); d != 2*first {
		t.Errorf("after one short sleep: %v", d)
	}
	if d := after(100*time.Microsecond, 20); d != spinMost*first {
		t.Errorf("after many short sleeps: %v", d)
	}
	if d := after(spinMost*first, 1); d != spinMost*first/2 {
		t.Errorf("after a sleep that polling would not have met the end of: %v", d)
	}
	if d := after(time.Second, 20); d != first {
		t.Errorf("after many long sleeps: %v", d)
	}
	l.cfg.SpinFor, l.engine.spin = 0, 0
	if d := after(time.Microsecond, 20); d != 0 {
		t.Errorf("who is not to poll does for %v", d)
	}
}
