//go:build linux && cgo

package verbs

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestUnknownDeviceListsTheOthers(t *testing.T) {
	err := unknownDevice("mlx5_7", []string{"mlx5_0", "rxe0"})
	if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "mlx5_0, rxe0") {
		t.Errorf("%v", err)
	}
	err = unknownDevice("mlx5_7", nil)
	if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "hack/softroce/setup.sh") || !strings.Contains(err.Error(), "ibbench doctor") {
		t.Errorf("%v", err)
	}
	_, err = Open("no-such-device")
	if _, none := Library(); none != nil {
		if !errors.Is(err, ErrNoLibrary) {
			t.Errorf("Open without a library: %v", err)
		}
	} else if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "no-such-device") {
		t.Errorf("Open: %v", err)
	}
}

func TestGuardShutsOnceAndNotWhileInUse(t *testing.T) {
	var g guard
	if !g.enter() || g.shut() {
		t.Fatal("shut while in use")
	}
	g.leave()
	if !g.shut() || g.enter() || g.enter() {
		t.Fatal("entered after shut")
	}
	g.reopen()
	if !g.enter() {
		t.Fatal("did not reopen")
	}
	g.leave()

	// Under contention shutting succeeds in the end, and ends all.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for g.enter() {
				g.leave()
				runtime.Gosched()
			}
		})
	}
	for !g.shut() {
		runtime.Gosched()
	}
	wg.Wait()
}

func TestEventsFindTheirCQ(t *testing.T) {
	reg := newRegistry()
	cq, other := &CQ{}, &CQ{}
	id, otherID := reg.put(cq), reg.put(other)
	reg.drop(otherID)
	for _, id := range []uint64{0, id, otherID, 1 << 40} { // of no CQ, of one, of a closed one, of none that was
		reg.overrun(id)
	}
	if !cq.overrun.Load() || other.overrun.Load() {
		t.Errorf("overrun %v, of a closed CQ %v", cq.overrun.Load(), other.overrun.Load())
	}
}

func TestTicksRunAtTheMeasuredRate(t *testing.T) {
	// A bound so wide that only a wrong unit or a counter that stands still can break it: a machine
	// may take the processor away at any time.
	rate := ticksPerMicrosecond()
	start, from := time.Now(), ticks()
	time.Sleep(20 * time.Millisecond)
	us := float64(ticks()-from) / float64(rate)
	if clock := float64(time.Since(start).Microseconds()); us < clock/10 || us > clock*10 {
		t.Errorf("%.0f us by ticks (%d per us), %.0f us by the clock", us, rate, clock)
	}
}
