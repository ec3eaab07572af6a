//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

func TestChangeDuringRegistrationIsNotCached_08(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 4)
	f.before = func(lo, hi uintptr) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			memtest.Call(memtest.Madvise, lo, page, unix.MADV_DONTNEED)
		}()
		<-done
		stamp(lo, lo+page)
	}
	r := mustGet(t, c, p, 8, LocalWrite)
	if s := c.Stats(); s.Uncached != 1 || s.Changing != 1 || s.Misses != 0 {
		t.Errorf("%+v", s)
	}
	mustPut(t, c, r)
	f.before = nil
	if getPut(t, c, p, 8, LocalWrite) == r.LKey {
		t.Error("a hit on what changed while it was registered")
	}
}

// The notice has been given and the pages are not gone yet: what is registered now would be stale
// in a moment.
func TestNothingIsCachedBetweenNoticeAndChange_08(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 4)
	w := memtest.OpenWindow(p+page, p+2*page)
	// At once: it does not wait for the other's call
	r := mustGet(t, c, p, uint64(4*page), LocalWrite)
	remap(t, p+page, p+2*page)
	memtest.CloseWindow(w)
	mustPut(t, c, r)
	if s := c.Stats(); s.Uncached != 1 || s.Changing != 1 {
		t.Errorf("%+v", s)
	}
	r = mustGet(t, c, p, uint64(4*page), LocalWrite)
	defer mustPut(t, c, r)
	if !f.mr(t, r).lands(p, uint64(4*page)) || c.Stats().Misses != 1 {
		t.Error("stale, or not cached after the change")
	}
}

func TestUnmappingAloneCostsNothing_12(t *testing.T) {
	c := cached(t, newFake())
	p := reserve(t, 1)
	getPut(t, c, p, 8, LocalWrite)
	unmap, again := []uintptr{p, page}, []uintptr{p, page, rw, anonymous | unix.MAP_FIXED, ^uintptr(0), 0}
	cycle := func() { // allocates nothing
		call(t, memtest.Munmap, unmap...)
		call(t, memtest.Mmap, again...)
	}
	for range 1000 {
		cycle()
	}
	const most = 512 << 10
	grown := int64(most + 1)
	// What the cycles leave behind is left each time; what the runtime or the race detector takes,
	// once
	for range 5 {
		before := must(memtest.Resident())(t)
		for range 40000 {
			cycle()
		}
		if grown = must(memtest.Resident())(t) - before; grown <= most {
			break
		}
	}
	if grown > most {
		t.Errorf("%d bytes more are resident", grown)
	}
	if s := c.Stats(); s.Dead != 1 {
		t.Errorf("%d dead, want the one there was", s.Dead)
	}
}

func TestDeadMemoryIsDeregisteredWithoutACall_12(t *testing.T) {
	f := newFake()
	limit := 8 * int64(page)
	c := cached(t, f, func(c *Config) { c.MaxDeadBytes = limit })
	p := reserve(t, 64)
	for i := range uintptr(32) {
		getPut(t, c, p+2*i*page, 8, LocalWrite)
	}
	for i := range uintptr(32) {
		call(t, memtest.Madvise, p+2*i*page, page, unix.MADV_DONTNEED)
	}
	eventually(t, "dead memory is deregistered", func() bool { _, n := f.registered(); return n <= limit })
	checkStats(t, c)
}

// The kernel lets the caller of munmap go before the event is dealt with: only the gate stands
// between.
func TestTheGateHoldsBackLookups_14(t *testing.T) {
	for _, delay := range []uint32{0, 300} {
		t.Run(fmt.Sprintf("reader %d us late", delay), func(t *testing.T) {
			f := newFake()
			c := newCache(t, f, func(c *Config) { c.Origin = GoMapped })
			p := reserve(t, 1)
			memtest.SetReaderDelay(delay)
			defer memtest.SetReaderDelay(0)
			rounds := 0
			for end := time.Now().Add(memtest.Stress(500 * time.Millisecond)); time.Now().Before(end); rounds++ {
				getPut(t, c, p, 8, LocalWrite)
				unix.RawSyscall(unix.SYS_MUNMAP, p, page, 0)
				remap(t, p, p+page)
				r := mustGet(t, c, p, 8, LocalWrite)
				if !f.mr(t, r).lands(p, 8) {
					t.Fatalf("round %d: stale", rounds)
				}
				mustPut(t, c, r)
			}
			t.Logf("%d rounds, %+v", rounds, c.Stats())
		})
	}
}
