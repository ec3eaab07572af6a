//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// lost are the classes that a first report covers and a second does not.
func lost(before, after Report) Classes {
	everywhere, somewhere := before.Covered()
	e, s := after.Covered()
	return everywhere&^e | somewhere&^s
}

// Discards of others linger, and where there are many they close more than they discarded. The
// self-test's own pages are its own, so it finds what it found before.
func TestRetestAmidDiscardsLosesNothing_15(t *testing.T) {
	needUffd(t)
	before := Status()
	w := newWatcher(t, WatcherConfig{})
	var refs []Ref
	_, removed := memtest.ReaderEvents()
	// Every other page of a map is discarded, and those between are free for the self-test to map.
	p := must(t, memtest.Mmap, 0, 1024*pageSize, rw, anonymous, noFD, 0)
	for i := 1; i < 1024; i += 2 {
		*ptr(page(p, i)) = 1
		refs = append(refs, watch(t, w, page(p, i), page(p, i+1), ForGoMap))
		must(t, memtest.Munmap, page(p, i-1), pageSize)
	}
	for i := 1; i < 1024; i += 2 {
		unix.Syscall(unix.SYS_MADVISE, page(p, i), pageSize, unix.MADV_DONTNEED)
		defer memtest.Call(memtest.Munmap, page(p, i), pageSize)
	}
	gone := 0
	for deadline := time.Now().Add(testTimeout); gone < len(refs) && time.Now().Before(deadline); runtime.Gosched() {
		gone += sweep(t, w)
	}
	if gone != len(refs) {
		t.Fatalf("%d of %d discarded pages were reported", gone, len(refs))
	}
	refs = refs[:0]
	for range 40 {
		heap := make([]byte, 8<<20)
		for i := 0; i < len(heap); i += int(pageSize) {
			heap[i] = 1
		}
		if r, err := w.ClaimLive(sliceRange(heap)); err == nil {
			refs = append(refs, r) // PENDING: so it is on no dead list
		}
		runtime.KeepAlive(heap)
		heap = nil
		debug.FreeOSMemory()
	}
	if _, n := memtest.ReaderEvents(); n == removed {
		t.Fatal("nothing was discarded: nothing is tested")
	}
	for range 5 {
		if missing := lost(before, Retest()); missing != 0 {
			t.Fatalf("lost %v", missing)
		}
	}
	for _, r := range refs {
		w.Retire(r)
	}
}

// A table without a free slot, and as many watchers as there may be, leave room for the self-test.
func TestRetestWithAFullTableLosesNothing_15(t *testing.T) {
	before := Status()
	w := newWatcher(t, WatcherConfig{})
	var others []*Watcher
	for {
		o, err := NewWatcher(WatcherConfig{})
		if errors.Is(err, ErrBusy) {
			break
		}
		noError(t, err)
		others = append(others, o)
	}
	p := reserve(t, pageSize)
	var refs []Ref
	for {
		r, err := w.ClaimLive(p, page(p, 1), 0, CalledFromC)
		if errors.Is(err, ErrFull) {
			break
		}
		if errors.Is(err, ErrChanging) {
			continue
		}
		noError(t, err)
		refs = append(refs, r)
	}
	if missing := lost(before, Retest()); missing != 0 {
		t.Errorf("lost %v", missing)
	}
	for _, r := range refs {
		w.Retire(r)
	}
	for _, o := range others {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	}
}

// While discards go on the self-test's entries meet windows, too: one per call.
func TestRetestAmidClosedWindowsLosesNothing_15(t *testing.T) {
	before := Status()
	var ids []uint32
	for range 300 { // more than there are windows
		ids = append(ids, memtest.OpenWindow(1<<40, 1<<40+pageSize))
	}
	missing := lost(before, Retest())
	for _, id := range ids {
		memtest.CloseWindow(id)
	}
	if missing != 0 {
		t.Errorf("lost %v", missing)
	}
}

// The kernel reports none of these, and a test's own earlier events must not pass for it.
func TestUnseenClassesAreNeverReportedAsSeen(t *testing.T) {
	for range 100 {
		_, somewhere := Retest().Covered()
		if wrong := somewhere & Set(RawGuard, RawShm, RawRemapFile, Truncate); wrong != 0 {
			t.Fatalf("%v reported as seen", wrong)
		}
	}
}

// A program that locks all that it maps may discard it still (MADV_DONTNEED_LOCKED, and after
// munlock), and sees it.
func TestRetestWithLockedMemoryLosesNothing_15(t *testing.T) {
	needUffd(t)
	h, d := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	noError(t, unix.Capget(&h, &d[0]))
	if d[0].Effective&(1<<unix.CAP_IPC_LOCK) == 0 {
		t.Skip("needs CAP_IPC_LOCK: the runtime's own maps would meet RLIMIT_MEMLOCK")
	}
	runHelper(t, nil, "lockedmemory")
}

var _ = helper("lockedmemory", func(t testing.TB, _ []string) error {
	before := Status()
	noError(t, unix.Mlockall(unix.MCL_FUTURE))
	if gone := lost(before, Retest()); gone != 0 {
		return fmt.Errorf("lost %v\n%v", gone, Status())
	}
	return nil
})
