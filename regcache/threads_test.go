//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/memtest"
)

// What testdata/threads.c agrees with.
const (
	cThreads     = 4
	cThreadPages = 16
)

// library compiles a library of testdata.
func library(t testing.TB, source string) string {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Fatal("this test was built with a C compiler, and needs one: ", err)
	}
	out := t.TempDir() + "/lib.so"
	if text, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-o", out, source, "-lpthread", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// threads runs 4 threads of C that change pages by calls of their own, and 8 goroutines that call f
// for a range of them and what shows whether that thread has changed any meanwhile: for d, and on a
// busy machine for up to a minute more until there is enough to judge by.
func threads(t *testing.T, d time.Duration, enough func() bool, f func(lo uintptr, pages int, turn *atomic.Uint64)) {
	must(memtest.Load(library(t, "testdata/threads.c")))(t)
	p := reserve(t, cThreads*cThreadPages)
	if memtest.Func("ibc_threads_start", p) != 0 {
		t.Fatal("no threads")
	}
	turns := [cThreads]*atomic.Uint64{}
	for i := range turns {
		turns[i] = (*atomic.Uint64)(ptr(memtest.Func("ibc_threads_turn", uintptr(i))))
	}
	const few = 100
	changes := func() (n uint64) { // two turns each
		for _, turn := range turns {
			n += turn.Load() / 2
		}
		return n
	}
	end := time.Now().Add(d)
	goesOn := func() bool {
		return time.Now().Before(end) || time.Now().Before(end.Add(time.Minute)) && (changes() < few || !enough())
	}
	var wg sync.WaitGroup
	for g := range 8 {
		rnd := &rand{*seed<<8 + uint64(g) + 1}
		wg.Go(func() {
			for goesOn() && !t.Failed() {
				i, from := rnd.below(cThreads), rnd.below(cThreadPages)
				f(p+uintptr(i*cThreadPages+from)*page, 1+rnd.below(cThreadPages-from), turns[i])
			}
		})
	}
	wg.Wait()
	if n := memtest.Func("ibc_threads_stop"); n < few {
		t.Errorf("%d changes: nothing was tried", n)
	}
}

// A thread that did not change its pages from before the Get until they were looked at must find
// its own.
func TestEightGoroutinesAndFourCThreads_24(t *testing.T) {
	fake := newFake()
	c := cached(t, fake, func(c *Config) { c.MaxRegions, c.MaxDeadBytes = 12, int64(16*page) })
	var checked, gets atomic.Uint64
	enough := func() bool {
		s := c.Stats()
		return checked.Load() > 0 && s.Hits > 0 && s.Invalidated > 0
	}
	threads(t, memtest.Stress(time.Second), enough, func(lo uintptr, pages int, turn *atomic.Uint64) {
		n := uint64(pages) * uint64(page)
		before := turn.Load()
		r, err := c.Get(ptr(lo), n, LocalWrite)
		if err != nil {
			if turn.Load() == before && before&1 == 0 { // else they were not mapped at that moment
				t.Error(err)
			}
			return
		}
		gets.Add(1)
		mr := fake.mr(t, r)
		now, err := touch(lo, lo+uintptr(n), false)
		if turn.Load() == before && before&1 == 0 {
			for i, s := range now {
				// 0: registered before its owner wrote to it
				if was := mr.stamps[int((lo-mr.lo)/page)+i]; was != 0 && was != s {
					t.Errorf("stale: page %d of %d is %#x, registered as %#x", i, pages, s, was)
				}
				checked.Add(1)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if err := c.Put(r); err != nil {
			t.Error(err)
		}
	})
	s := c.Stats()
	if s.Gets != gets.Load() || s.Puts != s.Gets || !enough() {
		t.Errorf("%d gets, %d pages checked: %+v", gets.Load(), checked.Load(), s)
	}
	t.Logf("%d pages checked, %+v", checked.Load(), s)
}
