//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"context"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestDeadEntriesAreBoundedAndWakeTheOwner_12(t *testing.T) {
	w := newWatcher(t, WatcherConfig{MaxDeadBytes: int64(3 * pageSize)})
	p := mapPages(t, 4)
	refs := make([]Ref, 4)
	for i := range refs {
		refs[i] = watch(t, w, page(p, i), page(p, i+1), CalledFromC)
	}
	for i := range 3 {
		must(t, memtest.Madvise, page(p, i), pageSize, unix.MADV_DONTNEED)
	}
	if err := w.Wait(expired(t)); err == nil {
		t.Error("woken at the limit")
	}
	must(t, memtest.Madvise, page(p, 3), pageSize, unix.MADV_DONTNEED)
	soon, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	noError(t, w.Wait(soon))
	if n, bytes := w.Dead(); n != 4 || bytes != 4*int64(pageSize) {
		t.Errorf("%d dead, %d bytes", n, bytes)
	}
	if n := sweep(t, w); n != 4 {
		t.Errorf("drained %d", n)
	}
	if n, bytes := w.Dead(); n != 0 || bytes != 0 {
		t.Errorf("%d dead, %d bytes after the sweep", n, bytes)
	}
}

func TestManyCyclesLeaveNothingBehind_12(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	elsewhere := reserve(t, pageSize)
	r := watch(t, w, elsewhere, elsewhere+pageSize, CalledFromC)
	cycle := func() { // allocates nothing in Go
		p, e1 := memtest.Call(memtest.Mmap, 0, pageSize, rw, anonymous, noFD, 0)
		_, e2 := memtest.Call(memtest.Munmap, p, pageSize)
		if e1 != 0 || e2 != 0 {
			t.Fatal(e1, e2)
		}
	}
	const most = 512 << 10
	resident := func() int64 {
		runtime.GC()
		n, err := memtest.Resident()
		noError(t, err)
		return n
	}
	grown := int64(most + 1)
	// What the cycles leave behind is left each time; what the runtime or the race detector takes,
	// once
	for range 5 {
		before := resident()
		for range 40000 {
			cycle()
		}
		if grown = resident() - before; grown <= most {
			break
		}
	}
	if grown > most {
		t.Errorf("%d bytes more are resident", grown)
	}
	if n, _ := w.Dead(); n != 0 {
		t.Errorf("%d dead", n)
	}
	evict(t, w, r)
}

// One entry on the dead list is one entry, however often its range changes.
func TestAnEntryDiesOnce_12(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	r := watch(t, w, p, page(p, 1), CalledFromC)
	r.Acquire()
	for range 1000 {
		must(t, memtest.Madvise, p, pageSize, unix.MADV_DONTNEED)
	}
	if n, bytes := w.Dead(); n != 1 || bytes != int64(pageSize) {
		t.Errorf("%d dead, %d bytes", n, bytes)
	}
	dead := w.Drain(nil)
	if len(dead) != 1 || dead[0].Refs() != 1 {
		t.Fatal(dead)
	}
	if !r.Release() {
		t.Error("the last release does not say that the entry is dead")
	}
	w.Retire(r)
}

// A hook may mark the owner as woken after the owner has drained all there was. That mark must not
// outlast the next drain, or the owner is not woken any more.
func TestAnEmptyDrainMakesReadyForTheNextWake_12(t *testing.T) {
	w := newWatcher(t, WatcherConfig{MaxDeadBytes: -1})
	p := mapPages(t, 1)
	r := watch(t, w, p, page(p, 1), CalledFromC)
	u32(&w.m.watcher[w.id].signalled).Store(1) // what the late hook leaves behind
	if len(w.Drain(nil)) != 0 {
		t.Fatal("drained something")
	}
	must(t, memtest.Madvise, p, pageSize, unix.MADV_DONTNEED)
	soon, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := w.Wait(soon); err != nil {
		t.Error("not woken:", err)
	}
	evict(t, w, r)
	sweep(t, w)
}
