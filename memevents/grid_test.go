//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"testing"
)

// Lists are right whatever the sizes and places of the entries.
func TestGridAgreesWithALinearSearch_26(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	rnd := newRand(t)
	base := reserve(t, 1<<37)
	var refs []Ref
	for range 2000 {
		size := uintptr(1) << rnd.IntN(18)
		lo := base + uintptr(rnd.IntN(1<<16))*pageSize
		refs = append(refs, watch(t, w, lo, lo+size*pageSize, CalledFromC))
	}
	for range 300 {
		lo := base + uintptr(rnd.IntN(1<<16))*pageSize
		hi := lo + uintptr(1)<<rnd.IntN(30)*uintptr(1+rnd.IntN(3))
		before := make([]bool, len(refs))
		for i, r := range refs {
			before[i] = r.Valid()
		}
		vacate(t, lo, hi-lo)
		rounded := (hi + pageSize - 1) &^ (pageSize - 1)
		for i, r := range refs {
			from, to := r.Range()
			if want := before[i] && !(from < rounded && to > lo); r.Valid() != want {
				t.Fatalf("emptying [%#x,%#x): %v valid %v, want %v", lo, rounded, r, r.Valid(), want)
			}
		}
		for _, dead := range w.Drain(nil) { // and new ones in their place
			i := indexOf(refs, dead)
			w.Retire(dead)
			at := base + uintptr(rnd.IntN(1<<16))*pageSize
			refs[i] = watch(t, w, at, at+uintptr(1+rnd.IntN(64))*pageSize, CalledFromC)
		}
		noError(t, Verify())
	}
	evict(t, w, refs...)
}

func TestHugeUnmapAndCrowdedPlaceAreBounded_26(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	const half = 32 << 30
	base := reserve(t, 2*half)
	var refs []Ref
	for i := range 10000 {
		lo := base + half + uintptr(i%512)*pageSize
		refs = append(refs, watch(t, w, lo, lo+pageSize, CalledFromC))
	}
	before := ReadStats().TableScans
	vacate(t, base, half) // beside them: all slots are looked at, once
	if n := ReadStats().TableScans - before; n != 1 {
		t.Errorf("%d scans of the table", n)
	}
	for _, r := range refs {
		if !r.Valid() {
			t.Fatal("invalidated by its neighbour:", r)
		}
	}
	vacate(t, base, 2*half)
	if n := len(w.Drain(nil)); n != len(refs) {
		t.Errorf("%d of %d invalidated", n, len(refs))
	}
	for _, r := range refs {
		w.Retire(r)
	}
}
