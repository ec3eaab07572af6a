//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func newWatcher(t testing.TB, cfg WatcherConfig) *Watcher {
	t.Helper()
	w, err := NewWatcher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Verify(); err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// mapPages maps memory that no other test uses, and unmaps it in the end.
func mapPages(t testing.TB, pages int) uintptr {
	t.Helper()
	b, err := unix.MmapPtr(-1, 0, nil, uintptr(pages)*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.MunmapPtr(b, uintptr(pages)*pageSize) })
	return uintptr(b)
}

var pageSize = uintptr(unix.Getpagesize())

func claim(t testing.TB, w *Watcher, lo, hi uintptr) Ref {
	t.Helper()
	r, err := w.Claim(lo, hi, 7, CalledFromC)
	if err != nil {
		t.Fatal(err)
	}
	if !w.Publish(r) {
		t.Fatal("not published")
	}
	r.Release()
	return r
}

func TestLifeOfAnEntry(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 4)
	r := claim(t, w, p+1, p+2*pageSize-1)
	if lo, hi := r.Range(); lo != p || hi != p+2*pageSize || r.Tag() != 7 {
		t.Fatalf("%v, tag %d", r, r.Tag())
	}
	if !r.Acquire() {
		t.Fatal("not acquired while valid")
	}
	if _, errno := cCall(callMunmap, p+pageSize, pageSize); errno != 0 {
		t.Fatal(errno)
	}
	if r.Acquire() {
		t.Fatal("acquired after a page was unmapped")
	}
	dead := w.Drain(nil)
	if len(dead) != 1 || dead[0] != r || dead[0].Refs() != 1 {
		t.Fatalf("drained %v, want %v", dead, r)
	}
	if again := w.Drain(nil); len(again) != 0 {
		t.Fatalf("drained twice: %v", again)
	}
	if !r.Release() {
		t.Fatal("the last release of a stale entry does not say so")
	}
	w.Retire(r)
	if r.Acquire() {
		t.Fatal("acquired after it was retired")
	}
	_ = unsafe.Pointer(nil)
}
