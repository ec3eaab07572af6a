//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestPartialRanges_05(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	for _, c := range []struct {
		name         string
		from, length func(p uintptr) uintptr // the watched range is [p+8 pages, p+16 pages)
		stale        bool
	}{
		{"ends where the range begins", func(p uintptr) uintptr { return p }, func(uintptr) uintptr { return 8 * pageSize }, false},
		{"one byte more", func(p uintptr) uintptr { return p }, func(uintptr) uintptr { return 8*pageSize + 1 }, true},
		{"begins where the range ends", func(p uintptr) uintptr { return page(p, 16) }, func(uintptr) uintptr { return pageSize }, false},
		{"the last page", func(p uintptr) uintptr { return page(p, 15) }, func(uintptr) uintptr { return 1 }, true},
		{"length overflows", func(p uintptr) uintptr { return p }, func(uintptr) uintptr { return ^uintptr(0) - 5 }, true},
		{"length overflows above the range", func(p uintptr) uintptr { return page(p, 16) }, func(uintptr) uintptr { return ^uintptr(0) - 5 }, false},
		{"nothing", func(p uintptr) uintptr { return page(p, 9) }, func(uintptr) uintptr { return 0 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mapPages(t, 24)
			r := watch(t, w, page(p, 8), page(p, 16), CalledFromC)
			memtest.Call(memtest.Munmap, c.from(p), c.length(p))
			if r.Valid() == c.stale {
				t.Errorf("stale: %v, want %v", !r.Valid(), c.stale)
			}
			evict(t, w, r)
			sweep(t, w)
		})
	}
}

// The kernel may discard up to the end of a huge page, whose size is not known: all sizes that
// divide the address count.
func TestDiscardsAreRoundedToHugePages_05(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	const huge = 2 << 20
	at := (reserve(t, 4*huge) + 2*huge - 1) &^ (huge - 1)
	if at&(1<<30-1) == 0 {
		at += huge // a page of 1 GiB could begin there
	}
	for _, c := range []struct {
		name         string
		advice, from uintptr
		stale        bool
	}{
		{"MADV_DONTNEED", unix.MADV_DONTNEED, at, true},
		{"MADV_DONTNEED_LOCKED", madvDontneedLocked, at, true},
		{"MADV_DONTNEED where no huge page begins", unix.MADV_DONTNEED, at + pageSize, false},
		{"MADV_WILLNEED", unix.MADV_WILLNEED, at, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := watch(t, w, at-pageSize, at, CalledFromC)
			last := watch(t, w, at+huge-pageSize, at+huge, CalledFromC)
			beyond := watch(t, w, at+huge, at+huge+pageSize, CalledFromC)
			must(t, memtest.Madvise, c.from, pageSize, c.advice)
			if last.Valid() == c.stale {
				t.Errorf("the huge page's last page is stale: %v, want %v", !last.Valid(), c.stale)
			}
			if !before.Valid() || !beyond.Valid() {
				t.Error("more than the huge page was taken")
			}
			evict(t, w, before, last, beyond)
			sweep(t, w)
		})
	}
}

func TestHarmlessCallsKeepResultAndErrno_06(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 2)
	r := watch(t, w, p, page(p, 2), CalledFromC)
	valid := func(what string) {
		t.Helper()
		if !r.Valid() {
			t.Error("invalidated by", what)
		}
	}
	if _, errno := memtest.Call(memtest.Mmap, p, pageSize, rw, anonymous|unix.MAP_FIXED_NOREPLACE, noFD, 0); errno != unix.EEXIST {
		t.Error("MAP_FIXED_NOREPLACE:", errno)
	}
	valid("MAP_FIXED_NOREPLACE")
	for name, a := range map[string]uintptr{"WILLNEED": unix.MADV_WILLNEED, "HUGEPAGE": unix.MADV_HUGEPAGE, "COLLAPSE": 25, "COLD": unix.MADV_COLD, "PAGEOUT": unix.MADV_PAGEOUT} {
		_, errno := memtest.Call(memtest.Madvise, p, 2*pageSize, a)
		_, _, raw := unix.RawSyscall(unix.SYS_MADVISE, p, 2*pageSize, a)
		if errno != raw {
			t.Errorf("%s: errno %d, the kernel's is %d", name, errno, raw)
		}
		valid(name)
	}
	if _, errno := memtest.Call(memtest.Munmap, p+1, pageSize); errno != unix.EINVAL {
		t.Error("munmap of an unaligned address:", errno)
	}
	// Test 7: it failed after the entry was invalidated, which costs a registration and no more.
	if r.Valid() {
		t.Error("a failing munmap was not taken for real")
	}
	if n := sweep(t, w); n != 1 {
		t.Errorf("drained %d", n)
	}
	if _, errno := memtest.Call(memtest.Madvise, p, pageSize, 4242); errno != unix.EINVAL {
		t.Error("unknown advice:", errno)
	}
	evict(t, w, watch(t, w, p, page(p, 2), CalledFromC))
}
