//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"os"
	"testing"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestLifeOfAnEntry(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 4)
	r := watch(t, w, p+1, page(p, 2)-1, CalledFromC)
	if lo, hi := r.Range(); lo != p || hi != page(p, 2) || r.Tag() != 7 {
		t.Fatalf("%v, tag %d", r, r.Tag())
	}
	if !r.Acquire() {
		t.Fatal("not acquired while valid")
	}
	if r.Release() {
		t.Fatal("the release of a valid entry says it is dead")
	}
	r.Acquire()
	before := ReadStats()
	must(t, memtest.Munmap, page(p, 1), pageSize)
	if s := ReadStats(); s.Invalidated != before.Invalidated+1 || s.InvalidatedInUse != before.InvalidatedInUse+1 {
		t.Errorf("invalidated %d, in use %d: want one more of each than %d, %d", s.Invalidated, s.InvalidatedInUse, before.Invalidated, before.InvalidatedInUse)
	}
	if r.Acquire() || r.Valid() {
		t.Fatal("acquired after a page was unmapped")
	}
	dead := w.Drain(nil)
	if len(dead) != 1 || dead[0] != r || dead[0].Refs() != 1 {
		t.Fatalf("drained %v, want %v", dead, r)
	}
	if again := w.Drain(nil); len(again) != 0 {
		t.Fatalf("drained twice: %v", again)
	}
	if w.Evict(r) {
		t.Fatal("a drained entry was evicted")
	}
	if !r.Release() {
		t.Fatal("the last release of a stale entry does not say so")
	}
	w.Retire(r)
	again := watch(t, w, p, page(p, 1), CalledFromC)
	if again.e != r.e {
		t.Fatal("the slot was not used again: the next check proves nothing")
	}
	if r.Acquire() {
		t.Fatal("an old Ref fits the slot's next entry")
	}
	evict(t, w, again)
}

func TestMisuseOfAnEntryPanics(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	r := watch(t, w, p, page(p, 1), CalledFromC)
	panics := func(what string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s does not panic", what)
			}
		}()
		f()
	}
	panics("retiring a valid entry", func() { w.Retire(r) })
	panics("releasing without a reference", func() { r.Release() })
	r.e.refs.Store(0)
	evict(t, w, r)
	panics("retiring twice", func() { w.Retire(r) })
}

func TestWatcherRefusesToCloseWithEntries(t *testing.T) {
	w, err := NewWatcher(WatcherConfig{})
	noError(t, err)
	p := mapPages(t, 1)
	r := watch(t, w, p, page(p, 1), CalledFromC)
	if err := w.Close(); !errors.Is(err, ErrBusy) {
		t.Fatalf("close with an entry: %v", err)
	}
	evict(t, w, r)
	noError(t, w.Close())
	if err := w.Close(); err != nil {
		t.Fatal("not idempotent:", err)
	}
	if _, err := w.Claim(p, page(p, 1), 0, 0); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("claim after close: %v", err)
	}
}

func TestClosedWatcherLeavesTheNextUnchanged(t *testing.T) {
	old, err := NewWatcher(WatcherConfig{})
	noError(t, err)
	noError(t, old.Close())
	w := newWatcher(t, WatcherConfig{})
	if w.id != old.id {
		t.Skip("the place was taken by another")
	}
	p := mapPages(t, 1)
	watch(t, w, p, page(p, 1), CalledFromC)
	must(t, memtest.Munmap, p, pageSize)
	if dead := old.Drain(nil); len(dead) != 0 {
		t.Errorf("drained %v of another watcher", dead)
	}
	if ranges, bytes := old.Dead(); ranges != 0 || bytes != 0 {
		t.Errorf("%d ranges, %d bytes are dead in a closed watcher", ranges, bytes)
	}
	sweep(t, w)
}

func TestFullTableIsAnError(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	var refs []Ref
	for {
		r, err := w.Claim(p, page(p, 1), 0, CalledFromC)
		if errors.Is(err, ErrFull) {
			break
		}
		if errors.Is(err, ErrChanging) {
			continue
		}
		if err != nil || len(refs) > Slots {
			t.Fatal(len(refs), err)
		}
		refs = append(refs, r)
	}
	if len(refs) != Slots {
		t.Errorf("%d ranges, want %d", len(refs), Slots)
	}
	for _, r := range refs {
		w.Retire(r)
	}
	evict(t, w, watch(t, w, p, page(p, 1), CalledFromC))
}
