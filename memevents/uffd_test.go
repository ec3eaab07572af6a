//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// needUffd skips where the system forbids userfaultfd, or the environment chooses other monitors.
// Where a plain call of it succeeds, the monitor has to work.
func needUffd(t testing.TB) {
	t.Helper()
	for _, m := range Status().Monitors {
		if m.Name != MonitorUserfaultfd || m.Active {
			continue
		}
		// UFFD_USER_MODE_ONLY
		if fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1, 0, 0); errno == 0 {
			unix.Close(int(fd))
			if os.Getenv(EnvMonitors) == "" && os.Getenv(EnvEvents) == "" {
				t.Fatal(m.Name, " works here, and the monitor does not: ", m.Why)
			}
		}
		t.Skip(m.Name, ": ", m.Why)
	}
}

// drained waits until the reader has dealt with an entry that is gone, and retires it.
func drained(t *testing.T, w *Watcher, r Ref) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		for _, dead := range w.Drain(nil) {
			w.Retire(dead)
			if dead == r {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("never drained: ", r)
		}
	}
}

// Calls that no hook sees, with the control that memory without a watch keeps its entry.
func TestRawCallsAreSeenByUserfaultfd_04(t *testing.T) {
	needUffd(t)
	w := newWatcher(t, WatcherConfig{})
	raw := func(nr uintptr, args ...uintptr) {
		t.Helper()
		var a [6]uintptr
		copy(a[:], args)
		if _, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			t.Fatal(errno)
		}
	}
	// A thread that sleeps in a raw call holds up the runtime, so these calls inform it.
	blocking := func(nr uintptr, args ...uintptr) {
		t.Helper()
		var a [6]uintptr
		copy(a[:], args)
		if _, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			t.Fatal(errno)
		}
	}
	for _, c := range []struct {
		name string
		do   func(p uintptr)
	}{
		{"RawSyscall munmap", func(p uintptr) { raw(unix.SYS_MUNMAP, p, pageSize) }},
		{"munmap", func(p uintptr) { blocking(unix.SYS_MUNMAP, p, pageSize) }},
		{"mmap fixed", func(p uintptr) {
			blocking(unix.SYS_MMAP, p, pageSize, rw, anonymous|unix.MAP_FIXED, noFD, 0)
		}},
		{"mremap", func(p uintptr) {
			blocking(unix.SYS_MREMAP, p, pageSize, pageSize, mremapMaymove|mremapFixed, mapPages(t, 1))
		}},
		{"MADV_DONTNEED", func(p uintptr) { blocking(unix.SYS_MADVISE, p, pageSize, unix.MADV_DONTNEED) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := mapPages(t, 1)
			register(p, 1)
			hooked := watch(t, w, p, page(p, 1), CalledFromC)
			if hooked.Valid(); true {
				q := mapPages(t, 1)
				register(q, 1)
				unseen := watch(t, w, q, page(q, 1), CalledFromC)
				c.do(q)
				if !unseen.Acquire() {
					t.Error("control: seen without userfaultfd")
				} else {
					unseen.Release()
				}
				evict(t, w, unseen, hooked)
			}
			seen := watch(t, w, p, page(p, 1), ForGoMap)
			c.do(p)
			if seen.Acquire() {
				t.Error("a hit after the change")
				seen.Release()
			}
			evict(t, w, seen)
			sweep(t, w)
		})
	}
}

func TestSyscallPackageAndFreeOSMemory_04(t *testing.T) {
	needUffd(t)
	w := newWatcher(t, WatcherConfig{})
	b, err := syscall.Mmap(-1, 0, int(pageSize), rw, anonymous)
	noError(t, err)
	p := uintptr(unsafe.Pointer(&b[0]))
	r := watch(t, w, p, page(p, 1), ForGoMap)
	noError(t, syscall.Munmap(b))
	if r.Acquire() {
		t.Error("a hit after syscall.Munmap")
	}
	drained(t, w, r)

	dropped := make(chan Ref)
	go func() { dropped <- watchDropped(t, w) }()
	r = <-dropped
	lo, _ := r.Range()
	gone := false
	for range 100 { // until the collector has found it dead
		debug.FreeOSMemory()
		if gone = *ptr(lo)&0xff != 1; gone {
			break
		}
	}
	if !gone {
		t.Fatal("the memory never went back to the system: nothing was tested")
	}
	if r.Acquire() {
		t.Error("a hit on Go memory that went back to the system")
		r.Release()
		evict(t, w, r)
		return
	}
	drained(t, w, r)
}

// watchDropped watches Go memory without references.
//
//go:noinline
func watchDropped(t *testing.T, w *Watcher) Ref {
	heap := make([]byte, 32<<20)
	for i := range heap {
		heap[i] = 1
	}
	// In the middle: what comes first a processor may keep for its next allocations.
	p := (uintptr(unsafe.Pointer(&heap[0])) + 16<<20) &^ (pageSize - 1)
	r := watch(t, w, p, page(p, 16), ForGoHeap)
	runtime.KeepAlive(heap)
	return r
}

// A reader that is late holds up the unmapper and not the truth: from the moment the call can
// return, no hit.
func TestSlowReaderBlocksTheCallAndNotTheTruth_13(t *testing.T) {
	needUffd(t)
	w := newWatcher(t, WatcherConfig{})
	memtest.SetReaderDelay(20000)
	defer memtest.SetReaderDelay(0)
	for range 5 {
		p := mapPages(t, 1)
		register(p, 1)
		r := watch(t, w, p, page(p, 1), ForGoMap)
		var wg sync.WaitGroup
		wg.Go(func() {
			unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
			if r.Acquire() {
				t.Error("a hit after munmap returned, with the reader still at work")
			}
		})
		wg.Wait()
		drained(t, w, r)
	}
}

// Where others compute, one turn of theirs is longer than all the time that WaitReported has: it
// asks after it.
func TestWaitReportedOutlastsATurnOfOthers_14(t *testing.T) {
	needUffd(t)
	w := newWatcher(t, WatcherConfig{})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	memtest.SetReaderDelay(50000)
	defer memtest.SetReaderDelay(0)
	for range 20 {
		p := mapPages(t, 1)
		r := watch(t, w, p, page(p, 1), ForGoMap)
		var others sync.WaitGroup
		var returned, end atomic.Bool
		others.Go(func() {
			unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
			returned.Store(true)
		})
		for w.Reported() && !returned.Load() {
			runtime.Gosched()
		}
		for range 8 { // 10 ms each (forcePreemptNS of runtime/proc.go)
			others.Go(func() {
				for !end.Load() {
				}
			})
		}
		unreported, asked := !w.Reported(), time.Now()
		reported, turn := w.WaitReported(), time.Since(asked)
		end.Store(true)
		others.Wait()
		drained(t, w, r)
		if unreported && reported && turn > time.Millisecond {
			return
		}
	}
	t.Error("what was not reported before a turn of others was never reported after it")
}

// The same thread unmaps, maps anew and asks.
func TestGateStopsHitsWhileEventsAreTaken_14(t *testing.T) {
	needUffd(t)
	rounds := 20000
	if long() {
		rounds = 1e6
	}
	if stale, _, _ := unmapAndAsk(t, rounds); stale != 0 {
		t.Errorf("%d stale hits in %d rounds", stale, rounds)
	}
}

// A reader that only acts on what it has read, without a gate, lets hits pass: the entry is valid
// until then.
func TestProcessingAfterReadAloneIsNotEnough_14(t *testing.T) {
	needUffd(t)
	memtest.SetReaderDelay(500)
	defer memtest.SetReaderDelay(0)
	stale, ungated, _ := unmapAndAsk(t, 200)
	if stale != 0 {
		t.Errorf("%d stale hits", stale)
	}
	if ungated == 0 {
		t.Error("no entry was valid after its range was unmapped: without the gate nothing would have gone wrong, so nothing was tested")
	}
}

// The event of what stood there before may meet a claim that has begun and not yet looked at the
// gate. Such a claim is refused, and does not end in a registration for nothing.
func TestAClaimThatALateEventMetIsRefused_14(t *testing.T) {
	needUffd(t)
	memtest.SetReaderDelay(200)
	defer memtest.SetReaderDelay(0)
	if _, _, late := unmapAndAsk(t, 500); late != 0 {
		t.Errorf("%d claims succeeded though their range had been reported as gone", late)
	}
}

// unmapAndAsk counts the hits after a raw munmap, those that there would have been without the
// gate, and the claims that were met by an event of the mapping before.
func unmapAndAsk(t *testing.T, rounds int) (stale, ungated, late int) {
	t.Helper()
	w := newWatcher(t, WatcherConfig{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := mapPages(t, 1)
	done := 0
	for tries := 0; done < rounds && tries < 1000*rounds; tries++ {
		r, err := w.Claim(p, page(p, 1), 0, ForGoMap)
		if err != nil { // the reader is still at work
			continue
		}
		if !w.Publish(r) {
			w.Retire(r)
			late++
			continue
		}
		r.Release()
		done++
		unix.Syscall(unix.SYS_MUNMAP, p, pageSize, 0)
		unix.Syscall6(unix.SYS_MMAP, p, pageSize, rw, anonymous|unix.MAP_FIXED_NOREPLACE, noFD, 0)
		if r.Valid() {
			ungated++
		}
		if r.Acquire() {
			stale++
			r.Release()
		}
		for !w.Evict(r) { // valid means missed; else it is, or soon will be, on the dead list
			if len(w.Drain(nil)) > 0 {
				break
			}
		}
		w.Retire(r)
	}
	if done != rounds {
		t.Errorf("%d of %d rounds", done, rounds)
	}
	return stale, ungated, late
}

// Thread-local storage is taken from a thread's stack.
func TestReaderStartsWithMuchThreadLocalStorage_17(t *testing.T) {
	needUffd(t)
	wants(t, runHelper(t, []string{preload(t, "bigtls.so")}, "monitors"), MonitorUserfaultfd+" active")
}

var _ = helper("monitors", func(t testing.TB, _ []string) error {
	for _, m := range Status().Monitors {
		if m.Active {
			fmt.Println(m.Name, "active")
		} else {
			fmt.Println(m.Name, m.Why)
		}
	}
	return nil
})

const lingers = time.Second // LINGER_NS of ibc_mem_uffd.c

// Discarding is reported before it happens and its end is not: for a while the range is closed to
// claims. Not to those of memory that its user holds, which no other code discards; what is
// discarded later ends them like any other.
func TestDiscardedRangeLingersButForItsUser_04(t *testing.T) {
	needUffd(t)
	w := newWatcher(t, WatcherConfig{})
	p := mapPages(t, 1)
	register(p, 1)
	for tries := 1; ; tries++ {
		r := watch(t, w, p, page(p, 1), ForGoMap)
		since := time.Now()
		unix.Syscall(unix.SYS_MADVISE, p, pageSize, unix.MADV_DONTNEED)
		if r.Acquire() {
			t.Error("a hit")
		}
		drained(t, w, r)
		closed := Changing(p, page(p, 1))
		unused, err := w.Claim(p, page(p, 1), 0, ForGoMap)
		if err == nil {
			w.Retire(unused)
		}
		if closed && errors.Is(err, ErrChanging) {
			break
		}
		// Else the while is over: the machine was busy
		if time.Since(since) < lingers || tries == 20 {
			t.Fatalf("closed: %v; claim: %v", closed, err)
		}
	}
	live, err := w.ClaimLive(p, page(p, 1), 0, ForGoMap)
	if err != nil {
		t.Fatal("claim of live memory:", err)
	}
	memtest.SetReaderDelay(20000) // the call returns when its event is read, and that is dealt with later
	unix.Syscall(unix.SYS_MADVISE, p, pageSize, unix.MADV_DONTNEED)
	if w.Publish(live) {
		t.Error("published what was discarded after the claim")
		live.Release()
		w.Evict(live)
	}
	memtest.SetReaderDelay(0)
	w.Retire(live)
}

// What the collector frees and allocates anew all the time can be claimed by its holder.
func TestGoHeapIsClaimedAmidItsOwnDiscards_04(t *testing.T) {
	needUffd(t)
	w := newWatcher(t, WatcherConfig{})
	refused := 0
	for range 40 {
		heap := make([]byte, 8<<20)
		for i := 0; i < len(heap); i += int(pageSize) {
			heap[i] = 1
		}
		r, err := w.ClaimLive(sliceRange(heap))
		switch {
		case err != nil:
			refused++
		case !w.Publish(r): // the event of what stood there before
			w.Retire(r)
			refused++
		default:
			r.Release()
		}
		runtime.KeepAlive(heap)
		heap = nil
		debug.FreeOSMemory()
		sweep(t, w)
	}
	for _, r := range w.Drain(nil) {
		w.Retire(r)
	}
	if refused > 10 {
		t.Errorf("%d of 40 claims were refused", refused)
	}
}
