//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var pageSize = uintptr(unix.Getpagesize())

const (
	rw        = unix.PROT_READ | unix.PROT_WRITE
	anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	noFD      = ^uintptr(0)
)

// stress is how long tests of races run: IBCONDUIT_STRESS, or short.
func stress(short time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("IBCONDUIT_STRESS")); err == nil {
		return d
	}
	return short
}

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

// sweep retires what was invalidated, and reports how much.
func sweep(t testing.TB, w *Watcher) int {
	t.Helper()
	dead := w.Drain(nil)
	for _, r := range dead {
		if r.Refs() != 0 {
			t.Fatalf("%v has %d references", r, r.Refs())
		}
		w.Retire(r)
	}
	return len(dead)
}

// evict ends an entry that is valid.
func evict(t testing.TB, w *Watcher, refs ...Ref) {
	t.Helper()
	for _, r := range refs {
		if w.Evict(r) {
			w.Retire(r)
		}
	}
}

// must makes a call as C code would, and fails the test if it fails.
func must(t testing.TB, event uint32, args ...uintptr) uintptr {
	t.Helper()
	ret, errno := cCall(event, args...)
	if errno != 0 {
		t.Fatalf("call %d%x: %v", event, args, errno)
	}
	return ret
}

// mapPages maps pages by C and unmaps them, whatever stands there, in the end.
func mapPages(t testing.TB, pages int) uintptr {
	t.Helper()
	p := must(t, callMmap, 0, uintptr(pages)*pageSize, rw, anonymous, noFD, 0)
	t.Cleanup(func() { cCall(callMunmap, p, uintptr(pages)*pageSize) })
	return p
}

// reserve takes addresses without memory. They are the test's to claim and unmap.
func reserve(t testing.TB, bytes uintptr) uintptr {
	t.Helper()
	p := must(t, callMmap, 0, bytes, unix.PROT_NONE, anonymous|unix.MAP_NORESERVE, noFD, 0)
	t.Cleanup(func() { cCall(callMunmap, p, bytes) })
	return p
}

func ptr(p uintptr) *uint64 { return *(**uint64)(unsafe.Pointer(&p)) }

func page(p uintptr, n int) uintptr { return p + uintptr(n)*pageSize }

func watch(t testing.TB, w *Watcher, lo, hi uintptr, need Classes) Ref {
	t.Helper()
	// Others of this process may be changing memory: the test's own threads, the runtime.
	for deadline := time.Now().Add(5 * time.Second); ; runtime.Gosched() {
		r, err := w.Claim(lo, hi, 7, need)
		switch {
		case err == nil && w.Publish(r):
			r.Release()
			return r
		case err == nil:
			w.Retire(r)
			t.Fatal("the range changed while it was being registered")
		case !errors.Is(err, ErrChanging) || time.Now().After(deadline):
			t.Fatal(err)
		}
	}
}

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
	must(t, callMunmap, page(p, 1), pageSize)
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
	if err != nil {
		t.Fatal(err)
	}
	p := mapPages(t, 1)
	r := watch(t, w, p, page(p, 1), CalledFromC)
	if err := w.Close(); !errors.Is(err, ErrBusy) {
		t.Fatalf("close with an entry: %v", err)
	}
	evict(t, w, r)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal("not idempotent:", err)
	}
	if _, err := w.Claim(p, page(p, 1), 0, 0); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("claim after close: %v", err)
	}
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

// registration is a fake memory region. It knows what a device would see: the stamp that stood in each page
// when it was "registered". A page that was replaced has another, or none.
type registration struct {
	p      uintptr
	stamps []uint64
}

var lastStamp atomic.Uint64

func register(p uintptr, pages int) registration {
	r := registration{p: p}
	for i := range pages {
		s := lastStamp.Add(1)<<8 | 0xa5
		atomic.StoreUint64(ptr(page(p, i)), s)
		r.stamps = append(r.stamps, s)
	}
	return r
}

// lies reports that the memory is not what was registered: what a device writes would be lost.
func (r registration) lies() bool {
	for i, s := range r.stamps {
		if atomic.LoadUint64(ptr(page(r.p, i))) != s {
			return true
		}
	}
	return false
}

// change is one way to take memory away.
type change struct {
	name  string
	pages int // of the range that is registered at p
	do    func(t *testing.T, p uintptr)
	told  uint64 // how many ranges hooks announce before it happens, besides those of putting new memory there
	keeps bool   // it happens to keep the contents, or makes them unreadable: the control cannot lose them
}

func sharedPages(t *testing.T, pages int) uintptr {
	t.Helper()
	p := must(t, callMmap, 0, uintptr(pages)*pageSize, rw, unix.MAP_SHARED|unix.MAP_ANONYMOUS, noFD, 0)
	t.Cleanup(func() { cCall(callMunmap, p, uintptr(pages)*pageSize) })
	return p
}

func remap(t *testing.T, p uintptr, pages int) {
	t.Helper()
	must(t, callMmap, p, uintptr(pages)*pageSize, rw, anonymous|unix.MAP_FIXED_NOREPLACE, noFD, 0)
}

func advice(a uintptr) func(*testing.T, uintptr) {
	return func(t *testing.T, p uintptr) { must(t, callMadvise, p, pageSize, a) }
}

const (
	madvGuardInstall     = 102 // include/uapi/asm-generic/mman-common.h, Linux 6.13
	madvDontneedLocked   = 24
	mremapMaymove        = 1
	mremapFixed          = 2
	processMadviseSelfFD = ^uintptr(10000) + 1 // PIDFD_SELF of Linux 6.14 is -10000 (include/uapi/linux/pidfd.h)
)

var changes = []change{
	{name: "munmap and mmap", do: func(t *testing.T, p uintptr) {
		must(t, callMunmap, p, pageSize)
		remap(t, p, 1)
	}},
	{name: "mmap fixed", do: func(t *testing.T, p uintptr) {
		must(t, callMmap, p, pageSize, rw, anonymous|unix.MAP_FIXED, noFD, 0)
	}},
	{name: "MADV_DONTNEED", do: advice(unix.MADV_DONTNEED)},
	{name: "MADV_DONTNEED_LOCKED", do: advice(madvDontneedLocked)},
	{name: "MADV_FREE", do: advice(unix.MADV_FREE), keeps: true},
	{name: "guard", do: advice(madvGuardInstall), keeps: true},
	{name: "unknown advice", keeps: true, do: func(t *testing.T, p uintptr) { cCall(callMadvise, p, pageSize, 12345) }},
	{name: "one page in the middle", pages: 64, do: func(t *testing.T, p uintptr) {
		must(t, callMunmap, page(p, 31), 1)
		remap(t, page(p, 31), 1)
	}},
	{name: "length not a multiple of pages", pages: 2, do: func(t *testing.T, p uintptr) {
		must(t, callMadvise, p, pageSize+1, unix.MADV_DONTNEED)
	}},
	{name: "mremap away", do: func(t *testing.T, p uintptr) {
		to := mapPages(t, 1)
		must(t, callMremap, p, pageSize, pageSize, mremapMaymove|mremapFixed, to)
		remap(t, p, 1)
	}},
	{name: "mremap onto", do: func(t *testing.T, p uintptr) {
		must(t, callMremap, mapPages(t, 1), pageSize, pageSize, mremapMaymove|mremapFixed, p)
	}, told: 2},
	{name: "mremap grows and moves", do: func(t *testing.T, p uintptr) {
		if must(t, callMremap, p, pageSize, 1024*pageSize, mremapMaymove) == p {
			t.Fatal("it did not move")
		}
		remap(t, p, 1)
	}},
	{name: "mremap shrinks", pages: 4, do: func(t *testing.T, p uintptr) {
		must(t, callMremap, p, 4*pageSize, pageSize, 0)
		remap(t, page(p, 1), 3)
	}, told: 1},
	{name: "process_madvise", do: func(t *testing.T, p uintptr) {
		iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(ptr(p))), Len: uint64(pageSize)}
		_, errno := cCall(callProcessMadvise, processMadviseSelfFD, uintptr(unsafe.Pointer(&iov)), 1, unix.MADV_DONTNEED, 0)
		runtime.KeepAlive(&iov)
		if errno != 0 { // kernels before 6.14 refuse it: do what it would have done, past all hooks
			unix.RawSyscall(unix.SYS_MADVISE, p, pageSize, unix.MADV_DONTNEED)
		}
	}},
}

// Each change, with a cache that listens and, as control, one that does not and must lose data.
func TestChangesInvalidateAndTheControlLosesData_01_02(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			pages := max(c.pages, 1)
			// Neighbours keep the address from being merged with or taken by something else.
			p := page(mapPages(t, pages+2), 1)
			reg := register(p, pages)
			ref := watch(t, w, p, page(p, pages), CalledFromC|Set(Guard))
			if !ref.Acquire() {
				t.Fatal("no hit before the change")
			}
			ref.Release()
			announced := ReadStats().Unmaps
			c.do(t, p)
			if n := ReadStats().Unmaps - announced; n < max(c.told, 1) {
				t.Errorf("%d ranges announced, want %d", n, max(c.told, 1))
			}
			if ref.Acquire() {
				t.Error("a hit after the change")
			}
			if n := sweep(t, w); n != 1 {
				t.Errorf("%d entries invalidated, want 1", n)
			}
			if !c.keeps && !reg.lies() {
				t.Error("control: the memory is still what was registered, so this test cannot fail")
			}
		})
	}
}

func TestMadviseRemoveOfSharedMemory_02(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := sharedPages(t, 1)
	reg := register(p, 1)
	ref := watch(t, w, p, page(p, 1), CalledFromC)
	must(t, callMadvise, p, pageSize, unix.MADV_REMOVE)
	if ref.Acquire() || sweep(t, w) != 1 {
		t.Error("a hit after the change")
	}
	if !reg.lies() {
		t.Error("control: nothing was lost")
	}
}

func attach(t *testing.T, at, flags uintptr) (id int, p uintptr) {
	t.Helper()
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 3*int(pageSize), unix.IPC_CREAT|0o600)
	if err != nil {
		t.Skip("System V shared memory: ", err)
	}
	t.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	p = must(t, callShmat, uintptr(id), at, flags)
	t.Cleanup(func() { cCall(callShmdt, p) })
	return id, p
}

func TestSharedSegments_02(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	const remapFlag, rounded = 0o40000, 0o20000 // SHM_REMAP, SHM_RND of shmat(2)

	_, p := attach(t, 0, 0)
	inside := watch(t, w, page(p, 2), page(p, 3), CalledFromC)
	other := mapPages(t, 1)
	outside := watch(t, w, other, page(other, 1), CalledFromC)
	must(t, callShmdt, p)
	if inside.Acquire() {
		t.Error("a hit after shmdt")
	}
	if !outside.Acquire() {
		t.Error("shmdt took more than the segment")
	} else {
		outside.Release()
	}

	room := mapPages(t, 5)
	first := watch(t, w, room, page(room, 1), CalledFromC)
	over := watch(t, w, page(room, 3), page(room, 4), CalledFromC)
	beyond := watch(t, w, page(room, 4), page(room, 5), CalledFromC)
	announced := ReadStats().Unmaps
	if _, at := attach(t, page(room, 1)+17, remapFlag|rounded); at != page(room, 1) {
		t.Fatalf("attached at %#x", at)
	}
	if ReadStats().Unmaps == announced {
		t.Error("shmat with SHM_REMAP was not announced before it happened")
	}
	if over.Acquire() {
		t.Error("a hit after shmat with SHM_REMAP")
	}
	for _, r := range []Ref{first, beyond} {
		if !r.Acquire() {
			t.Error("shmat with SHM_REMAP took more than the segment:", r)
			continue
		}
		r.Release()
	}
	evict(t, w, outside, first, beyond)
	sweep(t, w)
}

// A program's break belongs to malloc: another process tries it, where nobody uses malloc.
func TestBreakGoesDown_02(t *testing.T) { runHelper(t, nil, "break") }

func init() {
	helpers["break"] = func([]string) error {
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		runtime.LockOSThread()
		for _, down := range []struct {
			name string
			call func(end uintptr) unix.Errno
		}{
			{"sbrk", func(uintptr) unix.Errno { _, e := cCall(callSbrk, ^(2*pageSize)+1); return e }},
			{"brk", func(end uintptr) unix.Errno { _, e := cCall(callBrk, end-2*pageSize); return e }},
		} {
			if _, errno := cCall(callSbrk, 4*pageSize); errno != 0 {
				return errno
			}
			end, _ := cCall(callSbrk, 0)
			top := end &^ (pageSize - 1)
			low, err := w.Claim(top-3*pageSize, top-2*pageSize, 0, CalledFromC)
			if err != nil {
				return err
			}
			high, err := w.Claim(top-pageSize, top, 0, CalledFromC)
			if err != nil {
				return err
			}
			if !w.Publish(low) || !w.Publish(high) {
				return errors.New("not published")
			}
			if errno := down.call(end); errno != 0 {
				return errno
			}
			if high.Valid() {
				return errors.New(down.name + ": valid above the break")
			}
			if !low.Valid() {
				return errors.New(down.name + ": took more than it lowered")
			}
		}
		return nil
	}
}

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
			cCall(callMunmap, c.from(p), c.length(p))
			if r.Valid() == c.stale {
				t.Errorf("stale: %v, want %v", !r.Valid(), c.stale)
			}
			evict(t, w, r)
			sweep(t, w)
		})
	}
}

// The kernel may discard up to the end of a huge page, whose size is not known: all sizes that divide the address count.
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
			must(t, callMadvise, c.from, pageSize, c.advice)
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

func TestFailuresAndHarmlessAdviceKeepResultAndErrno_06(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 2)
	r := watch(t, w, p, page(p, 2), CalledFromC)
	valid := func(what string) {
		t.Helper()
		if !r.Valid() {
			t.Error("invalidated by", what)
		}
	}
	if _, errno := cCall(callMmap, p, pageSize, rw, anonymous|unix.MAP_FIXED_NOREPLACE, noFD, 0); errno != unix.EEXIST {
		t.Error("MAP_FIXED_NOREPLACE:", errno)
	}
	valid("MAP_FIXED_NOREPLACE")
	for name, a := range map[string]uintptr{"WILLNEED": unix.MADV_WILLNEED, "HUGEPAGE": unix.MADV_HUGEPAGE, "COLLAPSE": 25, "COLD": unix.MADV_COLD, "PAGEOUT": unix.MADV_PAGEOUT} {
		_, errno := cCall(callMadvise, p, 2*pageSize, a)
		_, _, raw := unix.RawSyscall(unix.SYS_MADVISE, p, 2*pageSize, a)
		if errno != raw {
			t.Errorf("%s: errno %d, the kernel's is %d", name, errno, raw)
		}
		valid(name)
	}
	if _, errno := cCall(callMunmap, p+1, pageSize); errno != unix.EINVAL {
		t.Error("munmap of an unaligned address:", errno)
	}
	// Test 7: it failed after the entry was invalidated, which costs a registration and no more.
	if r.Valid() {
		t.Error("a failing munmap was not taken for real")
	}
	if n := sweep(t, w); n != 1 {
		t.Errorf("drained %d", n)
	}
	if _, errno := cCall(callMadvise, p, pageSize, 4242); errno != unix.EINVAL {
		t.Error("unknown advice:", errno)
	}
	evict(t, w, watch(t, w, p, page(p, 2), CalledFromC))
}

// A registrar that sleeps while the memory is discarded must not get a valid entry.
func TestChangeDuringRegistration_08(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	r, err := w.Claim(p, page(p, 1), 0, CalledFromC)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { cCall(callMadvise, p, pageSize, unix.MADV_DONTNEED); close(done) }()
	<-done
	if w.Publish(r) {
		t.Error("published what was discarded meanwhile")
	}
	if n := w.Drain(nil); len(n) != 0 {
		t.Error("the registrar's entry was drained as well:", n)
	}
	w.Retire(r)
}

// While a change is in progress nobody is made to wait: a registration of the range is refused, others go on.
func TestClaimDuringChangeIsRefusedAtOnce_08(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p, other := mapPages(t, 1), mapPages(t, 1)
	id := windowOpen(p, page(p, 1))
	if _, err := w.Claim(p, page(p, 1), 0, CalledFromC); !errors.Is(err, ErrChanging) {
		t.Error("claim of a changing range:", err)
	}
	if _, err := w.ClaimLive(p, page(p, 1), 0, CalledFromC); !errors.Is(err, ErrChanging) {
		t.Error("claim of live memory in a changing range:", err)
	}
	if !Changing(p, page(p, 1)) || Changing(other, page(other, 1)) {
		t.Error("Changing is wrong")
	}
	evict(t, w, watch(t, w, other, page(other, 1), CalledFromC))
	windowClose(id)
	evict(t, w, watch(t, w, p, page(p, 1), CalledFromC))
}

func TestMoreChangesAtOnceThanWindowsCloseEverything_08(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	var ids []uint32
	for range 300 {
		ids = append(ids, windowOpen(1<<40, 1<<40+pageSize))
	}
	if _, err := w.Claim(p, page(p, 1), 0, CalledFromC); !errors.Is(err, ErrChanging) {
		t.Error("claim while windows overflow:", err)
	}
	for _, id := range ids {
		windowClose(id)
	}
	evict(t, w, watch(t, w, p, page(p, 1), CalledFromC))
}

// Registrars, users and unmappers race; whoever gets a hit checks the stamps. The unmapper holds a lock in turn
// with the checks, so that a hit after its call is provably stale.
func TestRacingRegistrarsNeverKeepAStaleEntry(t *testing.T) {
	w := newWatcher(t, WatcherConfig{MaxDeadBytes: -1})
	const ranges = 4
	base := mapPages(t, ranges)
	var (
		mu   [ranges]sync.RWMutex // held for writing while a range is replaced
		cur  [ranges]atomic.Pointer[Ref]
		regs [ranges]atomic.Pointer[registration]
		stop = make(chan struct{})
		wg   sync.WaitGroup
		hits atomic.Int64
	)
	loop := func(f func(i int)) {
		wg.Go(func() {
			for i := 0; ; i = (i + 1) % ranges {
				select {
				case <-stop:
					return
				default:
					f(i)
				}
			}
		})
	}
	var single sync.Mutex // one registrar per process, as in a cache's miss path
	loop(func(i int) {    // register
		single.Lock()
		defer single.Unlock()
		sweep(t, w)
		if r := cur[i].Load(); r != nil && r.Valid() {
			return
		}
		p := page(base, i)
		r, err := w.Claim(p, page(p, 1), uint32(i), CalledFromC)
		if err != nil {
			return
		}
		reg := register(p, 1)
		if !w.Publish(r) {
			w.Retire(r)
			return
		}
		regs[i].Store(&reg)
		cur[i].Store(&r)
		r.Release()
	})
	for range 2 {
		loop(func(i int) { // look up
			mu[i].RLock()
			defer mu[i].RUnlock()
			r, reg := cur[i].Load(), regs[i].Load()
			if r == nil || reg == nil || !r.Acquire() {
				return
			}
			hits.Add(1)
			if again := cur[i].Load(); again == r && regs[i].Load() == reg && r.Valid() && reg.lies() && r.Valid() {
				t.Errorf("a hit on a range that was replaced")
			}
			r.Release()
		})
	}
	loop(func(i int) { // replace
		mu[i].Lock()
		defer mu[i].Unlock()
		cCall(callMadvise, page(base, i), pageSize, unix.MADV_DONTNEED)
	})
	time.Sleep(stress(500 * time.Millisecond))
	close(stop)
	wg.Wait()
	for i := range ranges {
		if r := cur[i].Load(); r != nil {
			if r.Valid() && regs[i].Load().lies() {
				t.Error("an entry stayed valid on memory that was replaced")
			}
			evict(t, w, *r)
		}
	}
	sweep(t, w)
	if hits.Load() == 0 {
		t.Error("no hit: nothing was tested")
	}
	t.Log(hits.Load(), "hits")
}

func TestDeadEntriesAreBoundedAndWakeTheOwner_12(t *testing.T) {
	w := newWatcher(t, WatcherConfig{MaxDeadBytes: int64(3 * pageSize)})
	p := mapPages(t, 4)
	refs := make([]Ref, 4)
	for i := range refs {
		refs[i] = watch(t, w, page(p, i), page(p, i+1), CalledFromC)
	}
	for i := range 3 {
		must(t, callMadvise, page(p, i), pageSize, unix.MADV_DONTNEED)
	}
	if err := w.Wait(expired(t)); err == nil {
		t.Error("woken at the limit")
	}
	must(t, callMadvise, page(p, 3), pageSize, unix.MADV_DONTNEED)
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.Wait(soon); err != nil {
		t.Fatal(err)
	}
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
		p, e1 := cCall(callMmap, 0, pageSize, rw, anonymous, noFD, 0)
		_, e2 := cCall(callMunmap, p, pageSize)
		if e1 != 0 || e2 != 0 {
			t.Fatal(e1, e2)
		}
	}
	cycle()
	before := residentKB(t)
	for range 40000 {
		cycle()
	}
	if grown := residentKB(t) - before; grown > 512 {
		t.Errorf("%d kB more are resident", grown)
	}
	if n, _ := w.Dead(); n != 0 {
		t.Errorf("%d dead", n)
	}
	evict(t, w, r)
}

func residentKB(t *testing.T) int {
	t.Helper()
	runtime.GC()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	fields := split(string(b))
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return n * int(pageSize) / 1024
}

// One entry on the dead list is one entry, however often its range changes.
func TestAnEntryDiesOnce_12(t *testing.T) {
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	r := watch(t, w, p, page(p, 1), CalledFromC)
	r.Acquire()
	for range 1000 {
		must(t, callMadvise, p, pageSize, unix.MADV_DONTNEED)
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
		cCall(callMunmap, lo, hi-lo)
		rounded := (hi + pageSize - 1) &^ (pageSize - 1)
		for i, r := range refs {
			from, to := r.Range()
			if want := before[i] && !(from < rounded && to > lo); r.Valid() != want {
				t.Fatalf("unmapping [%#x,%#x): %v valid %v, want %v", lo, rounded, r, r.Valid(), want)
			}
		}
		for _, dead := range w.Drain(nil) { // and new ones in their place
			i := indexOf(refs, dead)
			w.Retire(dead)
			at := base + uintptr(rnd.IntN(1<<16))*pageSize
			refs[i] = watch(t, w, at, at+uintptr(1+rnd.IntN(64))*pageSize, CalledFromC)
		}
		if err := Verify(); err != nil {
			t.Fatal(err)
		}
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
	must(t, callMunmap, base, half) // beside them: all slots are looked at, once
	if n := ReadStats().TableScans - before; n != 1 {
		t.Errorf("%d scans of the table", n)
	}
	for _, r := range refs {
		if !r.Valid() {
			t.Fatal("invalidated by its neighbour:", r)
		}
	}
	must(t, callMunmap, base, 2*half)
	if n := len(w.Drain(nil)); n != len(refs) {
		t.Errorf("%d of %d invalidated", n, len(refs))
	}
	for _, r := range refs {
		w.Retire(r)
	}
}
