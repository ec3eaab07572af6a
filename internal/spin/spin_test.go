package spin

import (
	"bytes"
	"runtime"
	"testing"
	"time"
)

// turns calls Pause until it has given way so often, and returns how many calls that took.
func turns(w *Waiter, times int) (n int) {
	for times > 0 {
		if n++; w.Pause() {
			times--
		}
	}
	return n
}

func TestPauseSpinsBeforeItGivesWay(t *testing.T) {
	w := Waiter{Sharing: new(Sharing)}
	for i := 1; i < clockEvery; i++ {
		if w.Pause() {
			t.Fatalf("turn %d gave way, want %d turns of spinning at least", i, clockEvery)
		}
	}
	begin := time.Now()
	turns(&w, 1)
	if spun := time.Since(begin); spun < times.late-time.Microsecond {
		t.Errorf("a waiter that knows nothing yielded after %v, want %v", spun, times.late)
	}
	w.Done(false)
	if w.Pause() {
		t.Error("the first turn of another wait gave way")
	}
}

// Where cores are short each turn gives way.
func TestACrowdedWaiterNeverSpins(t *testing.T) {
	w := Waiter{Sharing: new(Sharing)}
	w.Sharing.SetRanks(2, false)
	if n := turns(&w, 5); n != 5 {
		t.Errorf("5 pauses took %d turns", n)
	}
	if got := w.Sharing.Stats(); got.Yields+got.Naps == 0 { // after a yield of 10 ms it sleeps
		t.Errorf("%+v, want yields", got)
	}
}

// A long wait costs few turns: it sleeps.
func TestALongWaitSleeps(t *testing.T) {
	w := Waiter{Sharing: new(Sharing), start: time.Now().Add(-time.Second)}
	w.Sharing.SetRanks(2, false)
	begin := time.Now()
	w.Pause()
	if d := time.Since(begin); d < sleepMin {
		t.Errorf("a turn after a second took %v, want a sleep of %v at least", d, sleepMin)
	}
	if got := w.Sharing.Stats(); got.Yields != 0 {
		t.Errorf("%+v, want no yield", got)
	}
}

// A yield that brought what was awaited says that the peer needs this processor.
func TestAYieldThatServedComesEarlyNextTime(t *testing.T) {
	s := new(Sharing)
	w := Waiter{Sharing: s}
	w.gave = times.switchFrom
	w.Done(false)
	if s.After() != times.late {
		t.Errorf("after a yield in vain waits yield after %v, want %v", s.After(), times.late)
	}
	w.gave = times.switchFrom
	w.Done(true)
	if s.After() != early {
		t.Errorf("after a yield that served waits yield after %v, want %v", s.After(), early)
	}
}

// A yield that returns at once says that nobody else needs this processor.
func TestAYieldToNobodyEndsEarlyYields(t *testing.T) {
	s := new(Sharing)
	s.Learn(times.switchFrom, true)
	s.Learn(times.switchFrom-1, true)
	if s.After() != times.late || !s.Probe(times.late) {
		t.Errorf("waits yield after %v (probe %t), want %v", s.After(), s.Probe(times.late), times.late)
	}
}

// Ranks that share a processor have work of their own: what lasts long need not be foreign.
func TestRanksOfAProcessorAreNotForeign(t *testing.T) {
	s := new(Sharing)
	s.SetRanks(4, false)
	s.Learn(4*foreignFrom-1, true)
	if got := s.Stats(); got.Foreign != 0 || !s.Probe(0) {
		t.Errorf("%+v, want nothing foreign", got)
	}
	s.Learn(4*foreignFrom, true)
	if !s.Probe(0) {
		t.Error("a single long yield bars others")
	}
	s.barred.Store(int64(time.Since(start) - 9*foreignFrom))
	if s.Learn(4*foreignFrom, true); !s.Probe(0) {
		t.Error("a long yield much later bars others")
	}
	s.Learn(time.Hour, true) // less than that has passed since, however slow the machine
	if got := s.Stats(); got.Foreign != 3 || s.Probe(0) {
		t.Errorf("%+v, want a foreign process", got)
	}
}

// A yield that lasts a slice says that a foreign process ran: no others for a while.
func TestAForeignSliceEndsEarlyYields(t *testing.T) {
	s := new(Sharing)
	s.Learn(times.switchFrom, true)
	s.Learn(foreignFrom, true)
	if s.After() != times.late || s.Probe(time.Second) {
		t.Errorf("after a slice waits yield after %v (probe %t), want %v and no probe", s.After(), s.Probe(time.Second), times.late)
	}
	if gave := s.Yield(times.late); gave != 0 {
		t.Errorf("a yield took %v, want a sleep", gave)
	}
	if got, want := s.Stats(), (Stats{Foreign: 1, Naps: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	s.barred.Store(0)
	if s.Yield(times.late); s.Stats().Yields != 1 {
		t.Errorf("%+v, want a yield when that is over", s.Stats())
	}
}

// A process that was stopped in a yield, for an hour, learns no more from that than from a slice.
func TestAStoppedProcessSoonYieldsAgain(t *testing.T) {
	s := new(Sharing)
	s.Learn(foreignFrom, false)
	s.Learn(time.Hour, false)
	if left := time.Duration(s.barred.Load()) - time.Since(start); left > barredFor*sliceMost {
		t.Errorf("there are no yields for %v, want %v at most", left, barredFor*sliceMost)
	}
}

// On an emulated processor a yield and a sleep cost more than they bring.
func TestAnEmulatedProcessorIsPolledForLonger(t *testing.T) {
	const before = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: "
	for model, want := range map[string]pace{
		"QEMU TCG CPU version 2.5+": emulated, "QEMU Virtual CPU version 2.5+": native, "Intel(R) Xeon(R)": native, "": native,
	} {
		if got := paceOf([]byte(before + model + "\n")); got != want {
			t.Errorf("%q: %+v, want %+v", model, got, want)
		}
	}
	if runtime.GOOS == "linux" && !bytes.HasPrefix(processor(), []byte("processor")) {
		t.Errorf("this processor is described by %q", processor())
	}
}
