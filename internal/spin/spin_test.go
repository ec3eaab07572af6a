package spin

import (
	"testing"
	"time"
)

// A waiter spins first, and reports a pause only now and then.
func TestPauseSpinsBeforeItGivesWay(t *testing.T) {
	var w Waiter
	for i := 1; i < spins; i++ {
		if w.Pause() {
			t.Fatalf("turn %d gave way, want %d turns of spinning", i, spins)
		}
	}
	if !w.Pause() {
		t.Errorf("turn %d did not give way", spins)
	}
	w.Reset()
	if w.Pause() {
		t.Error("the first turn after Reset gave way")
	}
}

// Where cores are short each turn gives way.
func TestACrowdedWaiterNeverSpins(t *testing.T) {
	w := Waiter{Crowded: true}
	for i := range 5 {
		if !w.Pause() {
			t.Errorf("turn %d spun", i)
		}
	}
}

// A long wait costs few turns: it sleeps.
func TestALongWaitSleeps(t *testing.T) {
	w := Waiter{Crowded: true, start: time.Now().Add(-time.Second)}
	begin := time.Now()
	w.Pause()
	if d := time.Since(begin); d < sleepMin {
		t.Errorf("a turn after a second took %v, want a sleep of %v at least", d, sleepMin)
	}
}
