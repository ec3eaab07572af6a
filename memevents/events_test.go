//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestProtectedRangeIsNotUnmapped(t *testing.T) {
	p := mapPages(t, 3)
	w := newWatcher(t, WatcherConfig{})
	r := watch(t, w, p, page(p, 3), CalledFromC)
	reg := register(p, 3)
	unprotect, err := Protect(page(p, 1), page(p, 2))
	noError(t, err)
	before := ReadStats().ProtectedRefusals
	for name, call := range map[string]func() (uintptr, unix.Errno){
		"munmap": func() (uintptr, unix.Errno) { return memtest.Call(memtest.Munmap, p, 3*pageSize) },
		"mmap fixed": func() (uintptr, unix.Errno) {
			return memtest.Call(memtest.Mmap, page(p, 1), pageSize, rw, anonymous|unix.MAP_FIXED, noFD, 0)
		},
		"madvise": func() (uintptr, unix.Errno) {
			return memtest.Call(memtest.Madvise, page(p, 1), pageSize, unix.MADV_DONTNEED)
		},
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
	must(t, memtest.Munmap, page(p, 2), pageSize) // its neighbour may go
	unprotect()
	must(t, memtest.Munmap, page(p, 1), pageSize)
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
	if _, errno := memtest.Call(memtest.Munmap, page(p, 1), pageSize); errno != unix.EPERM {
		t.Errorf("munmap of the second range: %v, want EPERM", errno)
	}
}

func TestHugeAdviceForLargeMaps(t *testing.T) {
	AdviseHuge(8 << 20)
	defer AdviseHuge(0)
	advised := func(bytes uintptr) bool {
		p := must(t, memtest.Mmap, 0, bytes, rw, anonymous, noFD, 0)
		defer memtest.Call(memtest.Munmap, p, bytes)
		flags, err := memtest.VMFlags(p)
		noError(t, err)
		return strings.Contains(flags, " hg")
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
