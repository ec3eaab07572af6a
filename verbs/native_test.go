//go:build linux && cgo

package verbs

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestGoLayoutsEqualThoseOfTheCLibrary(t *testing.T) {
	for _, f := range layout() {
		if f.got != f.has {
			t.Errorf("%s: at %d in Go, at %d in C", f.name, f.got, f.has)
		}
	}
}

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

func TestEventsFindTheirObjects(t *testing.T) {
	reg := newRegistry()
	cq, qp, srq := &CQ{}, &QP{}, &SRQ{}
	cqID, qpID, srqID := put(reg, reg.cqs, cq), put(reg, reg.qps, qp), put(reg, reg.srqs, srq)
	if ev := reg.resolve(aboutQP, qpID, EventQPFatal, 0); ev.QP != qp || ev.CQ != nil || ev.SRQ != nil {
		t.Errorf("QP: %+v", ev)
	}
	if ev := reg.resolve(aboutSRQ, srqID, EventSRQLimitReached, 0); ev.SRQ != srq {
		t.Errorf("SRQ: %+v", ev)
	}
	if ev := reg.resolve(aboutDevice, 0, EventPortErr, 2); ev.Port != 2 || ev.String() != "port 2: port error" {
		t.Errorf("port: %v", ev)
	}
	if ev := reg.resolve(aboutCQ, cqID, EventCQErr, 0); ev.CQ != cq || !cq.Overrun() {
		t.Errorf("CQ: %+v, overrun %v", ev, cq.Overrun())
	}
	drop(reg, reg.qps, qpID)
	if ev := reg.resolve(aboutQP, qpID, EventQPFatal, 0); ev.QP != nil {
		t.Errorf("closed QP: %+v", ev)
	}
	// Another kind of object under the same number is not taken for it.
	if ev := reg.resolve(aboutQP, cqID, EventQPFatal, 0); ev.QP != nil {
		t.Errorf("number of a CQ: %+v", ev)
	}
	runtime.KeepAlive(srq)
}

func TestFullEventChannelLosesTheOldest(t *testing.T) {
	s := &eventSource{out: make(chan Event, 2), lost: new(atomic.Uint64)}
	for port := 1; port <= 5; port++ {
		s.deliver(Event{Type: EventPortErr, Port: port})
	}
	if a, b := <-s.out, <-s.out; a.Port != 4 || b.Port != 5 || s.lost.Load() != 3 {
		t.Errorf("kept ports %d and %d, lost %d; want 4, 5 and 3", a.Port, b.Port, s.lost.Load())
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
