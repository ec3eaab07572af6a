package handle

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

type thing struct {
	h *Handle
	_ [64]byte // not a tiny object: those are freed in groups
}

//go:noinline
func makeThing(name string) *thing {
	x := &thing{}
	x.h = New(x, "thing", name)
	return x
}

func TestCloseIsIdempotentAndEndsTheHandle(t *testing.T) {
	defer Track(Track(true))
	x := makeThing("a")
	live := Live()
	if len(live) != 1 || live[0].Name != "a" || !strings.Contains(live[0].Stack, "makeThing") {
		t.Fatalf("live: %v", live)
	}
	if !x.h.Close() || x.h.Close() {
		t.Error("Close must report true once")
	}
	if live := Live(); len(live) != 0 {
		t.Errorf("live after Close: %v", live)
	}
}

func TestLiveIsOrderedByCreation(t *testing.T) {
	defer Track(Track(true))
	var xs []*thing
	for _, n := range []string{"a", "b", "c", "d"} {
		xs = append(xs, makeThing(n))
	}
	got := ""
	for _, r := range Live() {
		got += r.Name
	}
	if got != "abcd" {
		t.Errorf("order %q", got)
	}
	for _, x := range xs {
		x.h.Close()
	}
}

func TestGarbageIsReportedOnceUnlessClosed(t *testing.T) {
	defer Track(Track(true))
	got := make(chan Record, 4)
	OnLeak(func(r Record) { got <- r })
	defer OnLeak(nil)
	before := Leaks()

	makeThing("closed").h.Close()
	makeThing("leaked")
	deadline := time.After(time.Minute)
	for r := (Record{}); r.Name == ""; {
		runtime.GC()
		select {
		case r = <-got:
			if r.Name != "leaked" || !strings.Contains(r.String(), "makeThing") {
				t.Errorf("reported %v", r)
			}
		case <-deadline:
			t.Fatal("the leak was never reported")
		case <-time.After(time.Millisecond):
		}
	}
	runtime.GC()
	if n := Leaks() - before; n != 1 {
		t.Errorf("%d leaks counted, want 1", n)
	}
	// It stays listed, since what it owned is still there.
	left := Live()
	if len(left) != 1 || left[0].Name != "leaked" {
		t.Fatalf("live: %v", left)
	}
	Forgive(left[0])
	if left := Live(); len(left) != 0 {
		t.Errorf("live after Forgive: %v", left)
	}
}

func TestRecordWithoutStackSaysHowToGetOne(t *testing.T) {
	defer Track(Track(false))
	x := makeThing("quiet")
	if r := x.h.s.record(); !strings.Contains(r.String(), Env+"=1") {
		t.Errorf("record says %q", r)
	}
	x.h.Close()
}
