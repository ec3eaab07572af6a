//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// next returns the first event about a range, whatever else the process does meanwhile.
func next(t *testing.T, s *Subscription, lo, hi uintptr) Event {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e := <-s.Events():
			if e.Lo < hi && e.Hi > lo {
				return e
			}
		case <-timeout:
			t.Fatal("no event")
		}
	}
}

func TestSubscribersGetEventsInOrder(t *testing.T) {
	var subs []*Subscription
	for range 2 {
		s, err := Subscribe(0)
		noError(t, err)
		defer s.Close()
		subs = append(subs, s)
	}
	p := uintptr(0)
	for p%(2<<20) == 0 { // where a huge page may begin more than asked for is reported
		p = must(t, callMmap, 0, pageSize, rw, anonymous, noFD, 0)
	}
	must(t, callMadvise, p, 100, unix.MADV_DONTNEED)
	must(t, callMunmap, p, pageSize)
	for _, s := range subs {
		for _, kind := range []Kind{Mapped, Unmapped, Unmapped} {
			if e := next(t, s, p, p+pageSize); e != (Event{kind, p, p + pageSize}) {
				t.Errorf("%v, want %v", e, kind)
			}
		}
	}
	subs[0].Close()
	subs[0].Close()
	for range subs[0].Events() { // closed, when what is left is read
	}
}

func TestSlowSubscriberSeesItsLoss(t *testing.T) {
	s, err := Subscribe(4)
	noError(t, err)
	defer s.Close()
	p := reserve(t, pageSize)
	for s.Lost() == 0 { // no reader; not so fast that the ring overflows
		cCall(callMadvise, p, pageSize, unix.MADV_DONTNEED)
		time.Sleep(time.Millisecond)
	}
	for range 4 {
		if e := <-s.Events(); e.Kind == Lost {
			t.Error("a loss was reported before what came before it")
		}
	}
	cCall(callMadvise, p, pageSize, unix.MADV_DONTNEED)
	timeout := time.After(patience)
	for {
		select {
		case e := <-s.Events():
			if e.Kind == Lost {
				return
			}
		case <-timeout:
			t.Fatal("never reported")
		}
	}
}

// Hooks never wait for the ring: what does not fit is counted, from many threads too.
func TestRingOverflowIsCountedAndNothingElseIsLost(t *testing.T) {
	const threads, each = 4, 5000
	p := mapPages(t, threads) // over reserved addresses, an event of its own
	s, err := Subscribe(2 * threads * each)
	noError(t, err)
	defer s.Close()
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			for range each {
				cCall(callMadvise, page(p, i), pageSize, unix.MADV_DONTNEED)
			}
		})
	}
	wg.Wait()
	counts := make([]int, threads)
	total := 0
	lastLost := uint64(0)
	deadline := time.After(patience)
	// The quiet is for what would be delivered twice
	for quiet := 0; quiet < 20 || total+int(lastLost) < threads*each; {
		select {
		case <-deadline:
			t.Fatalf("%d delivered and %d lost of %d", total, lastLost, threads*each)
		case e := <-s.Events():
			quiet = 0
			if e.Kind == Unmapped && e.Lo >= p && e.Hi <= page(p, threads) {
				counts[(e.Lo-p)/pageSize]++
				total++
			}
		case <-time.After(5 * time.Millisecond):
			quiet++
		}
		lastLost = s.Lost()
	}
	if slices.Max(counts) > each {
		t.Errorf("delivered twice: %v", counts)
	}
	t.Logf("%d delivered, %d lost", total, lastLost)
}

func TestProtectedRangeIsNotUnmapped(t *testing.T) {
	p := mapPages(t, 3)
	w := newWatcher(t, WatcherConfig{})
	r := watch(t, w, p, page(p, 3), CalledFromC)
	reg := register(p, 3)
	unprotect, err := Protect(page(p, 1), page(p, 2))
	noError(t, err)
	before := ReadStats().ProtectedRefusals
	for name, call := range map[string]func() (uintptr, unix.Errno){
		"munmap": func() (uintptr, unix.Errno) { return cCall(callMunmap, p, 3*pageSize) },
		"mmap fixed": func() (uintptr, unix.Errno) {
			return cCall(callMmap, page(p, 1), pageSize, rw, anonymous|unix.MAP_FIXED, noFD, 0)
		},
		"madvise": func() (uintptr, unix.Errno) { return cCall(callMadvise, page(p, 1), pageSize, unix.MADV_DONTNEED) },
	} {
		if _, errno := call(); errno != unix.EPERM {
			t.Errorf("%s: %v, want EPERM", name, errno)
		}
	}
	if n := ReadStats().ProtectedRefusals - before; n != 3 {
		t.Errorf("%d refusals counted", n)
	}
	if reg.lies() || !r.Valid() {
		t.Error("what was refused had effects")
	}
	must(t, callMunmap, page(p, 2), pageSize) // its neighbour may go
	unprotect()
	must(t, callMunmap, page(p, 1), pageSize)
	sweep(t, w)
	if _, err := Protect(5, 5); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
}

func TestUnprotectingTwiceLeavesOthersProtected(t *testing.T) {
	p := mapPages(t, 2)
	first, err := Protect(p, page(p, 1))
	noError(t, err)
	first()
	second, err := Protect(page(p, 1), page(p, 2)) // in the place of the first
	noError(t, err)
	defer second()
	first()
	if _, errno := cCall(callMunmap, page(p, 1), pageSize); errno != unix.EPERM {
		t.Errorf("munmap of the second range: %v, want EPERM", errno)
	}
}

func TestHugeAdviceForLargeMaps(t *testing.T) {
	AdviseHuge(8 << 20)
	defer AdviseHuge(0)
	advised := func(bytes uintptr) bool {
		p := must(t, callMmap, 0, bytes, rw, anonymous, noFD, 0)
		defer cCall(callMunmap, p, bytes)
		return strings.Contains(vmFlags(t, p), " hg")
	}
	if advised(4 << 20) {
		t.Error("a small map was advised")
	}
	if !advised(16 << 20) {
		t.Error("a large map was not advised")
	}
	AdviseHuge(0)
	if advised(16 << 20) {
		t.Error("advised after the end")
	}
}

func TestConfiguration(t *testing.T) {
	Status()
	if err := Configure(Config{}); !errors.Is(err, ErrBusy) {
		t.Error("configured while running:", err)
	}
	if err := Configure(Config{Monitors: []string{"sybmols"}}); err == nil || errors.Is(err, ErrBusy) {
		t.Error("no such monitor:", err)
	}
	for _, c := range []struct {
		monitors           []string
		symbols, uffd, pat bool
	}{
		{nil, true, true, false},
		{[]string{"auto", "patch"}, true, true, true},
		{[]string{"symbols"}, true, false, false},
		{[]string{"none"}, false, false, false},
	} {
		got := Config{Monitors: c.monitors}
		if got.wants(MonitorSymbols) != c.symbols || got.wants(MonitorUserfaultfd) != c.uffd || got.wants(MonitorPatch) != c.pat {
			t.Errorf("%v is read wrongly", c.monitors)
		}
	}
}

func TestDebugLogHasEachEvent(t *testing.T) {
	out := runHelper(t, []string{EnvLogLevel + "=debug", onlySymbols}, "once")
	wants(t, out, "memevents: debug: unmapped [0x", "memevents: debug: mapped [0x")
	if out := runHelper(t, []string{EnvLogLevel + "=warn", onlySymbols}, "once"); strings.Contains(out, "memevents: debug") {
		t.Errorf("debug messages at level warn:\n%.2000s", out)
	}
}

func TestReportNamesEveryClass(t *testing.T) {
	text := Status().String()
	for c := range numClasses {
		if c.String() == "" || !strings.Contains(text, c.String()) {
			t.Errorf("class %d has no line", c)
		}
	}
	for _, c := range Status().Classes {
		if (c.By == "") == (c.Why == "") {
			t.Errorf("%v: by %q, why %q", c.Class, c.By, c.Why)
		}
	}
}
