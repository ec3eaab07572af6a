//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stressFor is how long tests of races run: some time, or IBCONDUIT_STRESS.
func stressFor(t testing.TB, short time.Duration) time.Duration {
	t.Helper()
	v := os.Getenv("IBCONDUIT_STRESS")
	if v == "" {
		return short
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAChangeDuringRegistrationLeavesNothingValid_08(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 4)
	f.before = func(lo, hi uintptr) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			cCall(cMadvise, lo, page, unix.MADV_DONTNEED)
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

// The notice has been given and the pages are not gone yet: what is registered now would be stale in a moment.
func TestNothingIsCachedBetweenNoticeAndChange_08(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 4)
	w := windowOpen(p+page, p+2*page)
	r := mustGet(t, c, p, uint64(4*page), LocalWrite) // at once: it does not wait for the other's call
	mapAt(t, p+page, page, rw)
	stamp(p+page, p+2*page)
	windowClose(w)
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
		call(t, cMunmap, unmap...)
		call(t, cMmap, again...)
	}
	for range 1000 {
		cycle()
	}
	before := resident(t)
	for range 40000 {
		cycle()
	}
	if grown := resident(t) - before; grown > 512<<10 {
		t.Errorf("%d bytes more are resident", grown)
	}
	if s := c.Stats(); s.Dead != 1 {
		t.Errorf("%d dead, want the one there was", s.Dead)
	}
}

func resident(t testing.TB) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(string(bytes.Fields(text)[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(page)
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
		call(t, cMadvise, p+2*i*page, page, unix.MADV_DONTNEED)
	}
	eventually(t, "dead memory is deregistered", func() bool { _, n := f.registered(); return n <= limit })
	checkStats(t, c)
}

// The kernel lets the caller of munmap go before the event is dealt with: only the gate stands between.
func TestTheGateHoldsBackLookups_14(t *testing.T) {
	for _, delay := range []uint32{0, 300} {
		t.Run(fmt.Sprintf("reader %d us late", delay), func(t *testing.T) {
			f := newFake()
			c := newCache(t, f, func(c *Config) { c.Origin = GoMapped })
			p := reserve(t, 1)
			setReaderDelay(delay)
			defer setReaderDelay(0)
			rounds := 0
			for end := time.Now().Add(stressFor(t, 500*time.Millisecond)); time.Now().Before(end); rounds++ {
				getPut(t, c, p, 8, LocalWrite)
				unix.RawSyscall(unix.SYS_MUNMAP, p, page, 0)
				mapAt(t, p, page, rw)
				stamp(p, p+page)
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

// model is memory whose pages several threads use and change at random. Each page has a lock: who changes pages
// holds theirs exclusively, who communicates from pages holds theirs shared, so the program has no race of its
// own; registrations reach over the locks, by merging.
type model struct {
	t       *testing.T
	f       *fake
	c       *Cache
	p       uintptr
	spare   uintptr // where pages are made that are then moved
	locks   [modelPages]sync.RWMutex
	raw     bool
	gets    atomic.Uint64
	checked atomic.Uint64
	moved   sync.Mutex
}

const modelPages = 48

func newModel(t *testing.T, o Origin, raw bool) *model {
	f := newFake()
	c := newCache(t, f, func(c *Config) {
		c.Origin, c.MaxRegions, c.MaxDeadBytes = o, 12, int64(16*page)
	})
	return &model{t: t, f: f, c: c, p: reserve(t, modelPages), spare: reserve(t, 8), raw: raw}
}

// pick returns a random run of pages.
func (m *model) pick(rnd *rand) (from, n int) {
	n = 1 + rnd.below(8)
	return rnd.below(modelPages - n + 1), n
}

func (m *model) communicate(rnd *rand) {
	from, n := m.pick(rnd)
	for i := range n {
		m.locks[from+i].RLock()
		defer m.locks[from+i].RUnlock()
	}
	lo, bytes := m.p+uintptr(from)*page+8, uint64(uintptr(n)*page-16)
	access := []Access{LocalWrite, RemoteRead, RemoteWrite}[rnd.below(3)]
	r, err := m.c.Get(ptr(lo), bytes, access)
	if err != nil {
		m.t.Errorf("pages %d+%d: %v", from, n, err)
		return
	}
	m.gets.Add(1)
	mr := m.f.mr(m.t, r)
	now, err := touch(lo, lo+uintptr(bytes), false)
	if err != nil {
		m.t.Error(err)
	}
	first := ((lo &^ (page - 1)) - (mr.lo &^ (page - 1))) / page
	for i, s := range now {
		// A stamp of 0 was seen by a merging registration between the coming of a page and its stamp.
		if was := mr.stamps[int(first)+i]; was != 0 && was != s {
			m.t.Errorf("stale: page %d is %#x, registered as %#x", from+i, s, was)
		} else if was != 0 {
			m.checked.Add(1)
		}
	}
	if err := m.c.Put(r); err != nil {
		m.t.Error(err)
	}
}

func (m *model) change(rnd *rand) {
	from, n := m.pick(rnd)
	for i := range n {
		m.locks[from+i].Lock()
		defer m.locks[from+i].Unlock()
	}
	w := way{m.t, m.raw && rnd.below(2) == 0}
	lo, bytes := m.p+uintptr(from)*page, uintptr(n)*page
	what := rnd.below(4)
	if what == 1 && m.raw && rnd.below(20000) != 0 {
		what = 0 // what userfaultfd saw discarded is not cached for a second: a rare guest
	}
	switch what {
	case 0:
		w.call(cMunmap, unix.SYS_MUNMAP, lo, bytes)
		mapAt(m.t, lo, bytes, rw)
	case 1:
		w.call(cMadvise, unix.SYS_MADVISE, lo, bytes, unix.MADV_DONTNEED)
	case 2:
		w.call(cMmap, unix.SYS_MMAP, lo, bytes, rw, anonymous|unix.MAP_FIXED, ^uintptr(0), 0)
	case 3: // pages that have their stamps come all at once
		m.moved.Lock()
		defer m.moved.Unlock()
		mapAt(m.t, m.spare, bytes, rw)
		stamp(m.spare, m.spare+bytes)
		w.call(cMremap, unix.SYS_MREMAP, m.spare, bytes, bytes, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, lo)
		return
	}
	stamp(lo, lo+bytes)
}

func (m *model) run(d time.Duration) {
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for i := range 12 {
		rnd := &rand{uint64(i)*0x9E3779B97F4A7C15 + 1}
		wg.Go(func() {
			for time.Now().Before(end) && !m.t.Failed() {
				if i < 8 || rnd.below(4) == 0 {
					m.communicate(rnd)
				} else {
					m.change(rnd)
				}
				if i == 11 && rnd.below(64) == 0 {
					time.Sleep(time.Millisecond) // lets a lingering range end now and then
				}
			}
		})
	}
	wg.Wait()
	s := m.c.Stats()
	if s.Gets != m.gets.Load() || s.Puts != s.Gets {
		m.t.Errorf("%d gets: %+v", m.gets.Load(), s)
	}
	if m.checked.Load() == 0 || s.Hits == 0 || s.Misses == 0 || s.Invalidated == 0 {
		m.t.Errorf("nothing was tried: %d pages checked, %+v", m.checked.Load(), s)
	}
	m.t.Logf("%d pages checked, %+v", m.checked.Load(), s)
}

// rand is a xorshift generator: each thread has its own.
type rand struct{ s uint64 }

func (r *rand) below(n int) int {
	r.s ^= r.s << 13
	r.s ^= r.s >> 7
	r.s ^= r.s << 17
	return int((r.s >> 33) % uint64(n))
}

func TestModelOfCallsThroughTheLibc_24(t *testing.T) {
	if s := newCache(t, newFake()).Status().Origins[Mapped]; s.Mode != Cached {
		t.Skip("not cached here: ", s.Why)
	}
	newModel(t, Mapped, false).run(stressFor(t, 1500*time.Millisecond))
}

func TestModelOfRawCalls_24(t *testing.T) {
	if s := newCache(t, newFake()).Status().Origins[Any]; s.Mode != Cached {
		t.Skip("not cached here: ", s.Why)
	}
	newModel(t, Any, true).run(stressFor(t, 1500*time.Millisecond))
}
