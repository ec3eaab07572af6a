//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// Without userfaultfd too: where a new mapping comes, what was registered there cannot be what is
// there now.
func TestAMappingAtAFreePlaceEndsWhatWasThere_04(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	r := watch(t, w, p, page(p, 1), CalledFromC)
	unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
	if !r.Valid() {
		t.Fatal("seen at once: this test proves nothing")
	}
	remap(t, p, 1)
	if r.Valid() {
		t.Error("valid on a mapping that came later")
	}
	evict(t, w, r)
	sweep(t, w)
}

// Memory that comes to a free place in another way than by mmap.
func TestGrowthIntoAFreePlaceEndsWhatWasThere_04(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 3)
	kept, r := watch(t, w, p, page(p, 1), CalledFromC), watch(t, w, page(p, 1), page(p, 2), CalledFromC)
	unix.Syscall(unix.SYS_MUNMAP, page(p, 1), 2*pageSize, 0)
	if !r.Valid() {
		t.Fatal("seen at once: this test proves nothing")
	}
	if at := must(t, memtest.Mremap, p, pageSize, 2*pageSize, 0); at != p {
		t.Fatalf("grew at %#x", at)
	}
	if r.Valid() {
		t.Error("valid on memory that came later")
	}
	if !kept.Valid() {
		t.Error("what grew lost what it had")
	}
	evict(t, w, kept, r)
	sweep(t, w)
}

// The break may have gone down unseen, by the libc's own call.
func TestABreakThatGoesUpEndsWhatWasThere_04(t *testing.T) { runHelper(t, nil, "breakup") }

var _ = helper("breakup", func(t testing.TB, _ []string) error {
	w := newWatcher(t, WatcherConfig{})
	end, _ := memtest.Call(memtest.Sbrk, 4*pageSize)
	top := (end + 4*pageSize) &^ (pageSize - 1)
	r := watchPage(t, w, top-pageSize, CalledFromC)
	unix.RawSyscall(unix.SYS_BRK, end, 0, 0)
	if !r.Valid() {
		return errors.New("seen at once: this test proves nothing")
	}
	must(t, memtest.Brk, end+4*pageSize)
	if r.Valid() {
		return errors.New("valid on memory that came later")
	}
	return nil
})
