//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestMemoryOfMapIsWatchedWithoutTheKernelsHelp(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p, err := Map(3 * pageSize)
	noError(t, err)
	lo := uintptr(p)
	*(*byte)(p) = 1
	r, err := claimSoon(w, lo, CalledFromC)
	if err != nil || !w.Publish(r) {
		t.Fatalf("not watched: %v", err)
	}
	r.Release()
	noError(t, Unmap(p, 3*pageSize))
	if r.Acquire() {
		t.Error("the entry outlives Unmap")
	}
	for _, r := range w.Drain(nil) {
		w.Retire(r)
	}
}

func TestMapAndUnmapDoNotAllocate(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		p, err := Map(pageSize)
		if err != nil || Unmap(p, pageSize) != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMapAndUnmapSayWhatFailed(t *testing.T) {
	if _, err := Map(1 << 60); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("map: %v", err)
	}
	if err := Unmap(nil, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("unmap: %v", err)
	}
}

func TestUnmappingIsTimedOnBothWays(t *testing.T) {
	for _, mapped := range []bool{false, true} {
		calls := memtest.CallsSeen(memtest.Munmap)
		hooked, raw := TimeUnmap(1000, mapped)
		if hooked <= 0 || raw <= 0 {
			t.Errorf("mapped %v: %v and %v", mapped, hooked, raw)
		}
		if n := memtest.CallsSeen(memtest.Munmap) - calls; n < 1000 || n > 1900 {
			t.Errorf("mapped %v: hooks saw %d calls, want the 1000 of one way", mapped, n)
		}
	}
}
