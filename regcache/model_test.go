//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// seed makes the threads of the model do something else: go test -run Model ./regcache -args -seed
// 2
var seed = flag.Uint64("seed", 1, "of the model's random choices")

// model is memory whose pages several threads use and change at random, and what it knows of each
// page: whether it is there, may be written, and by its stamp which one it is. Each page has a
// lock: a thread that changes pages holds theirs exclusively, one that communicates from pages
// holds theirs shared, so the program has no race of its own; registrations join pages of several
// locks, by merging.
type model struct {
	t       *testing.T
	f       *fake
	c       *Cache
	p       uintptr
	spare   uintptr // where pages are made that are then moved
	locks   [modelPages]sync.RWMutex
	state   [modelPages]pageState
	raw     bool
	gets    atomic.Uint64
	refused atomic.Uint64
	checked atomic.Uint64
	moved   sync.Mutex
}

type pageState uint8

const (
	writable pageState = iota
	readOnly
	hole
)

const modelPages = 48

func newModel(t *testing.T, o Origin, raw bool) *model {
	f := newFake()
	c := newCache(t, f, func(c *Config) {
		c.Origin, c.MaxRegions, c.MaxDeadBytes = o, 12, int64(16*page)
	})
	return &model{t: t, f: f, c: c, p: reserve(t, modelPages), spare: reserve(t, 8), raw: raw}
}

// choices are where a thread of the model takes its decisions from.
type choices interface{ below(n int) int }

// rand is a xorshift generator: each thread has its own.
type rand struct{ s uint64 }

func (r *rand) below(n int) int {
	r.s ^= r.s << 13
	r.s ^= r.s >> 7
	r.s ^= r.s << 17
	return int((r.s >> 33) % uint64(n))
}

// pick returns a random run of pages.
func (m *model) pick(rnd choices) (from, n int) {
	n = 1 + rnd.below(8)
	return rnd.below(modelPages - n + 1), n
}

func (m *model) has(from, n int, s pageState) bool {
	for i := range n {
		if m.state[from+i] == s {
			return true
		}
	}
	return false
}

func (m *model) set(from, n int, s pageState) {
	for i := range n {
		m.state[from+i] = s
	}
}

// communicate gets a range, and checks that an operation now would access the pages that are there
// now.
func (m *model) communicate(rnd choices) {
	from, n := m.pick(rnd)
	for i := range n {
		m.locks[from+i].RLock()
		defer m.locks[from+i].RUnlock()
	}
	lo, bytes := m.p+uintptr(from)*page+8, uint64(uintptr(n)*page-16)
	access := []Access{LocalWrite, RemoteRead, RemoteWrite}[rnd.below(3)]
	r, err := m.c.Get(ptr(lo), bytes, access)
	switch {
	case m.has(from, n, hole):
		if m.refused.Add(1); !errors.Is(err, syscall.EFAULT) {
			m.t.Errorf("stale: pages %d+%d are not all there, and a Get returned %v", from, n, err)
		}
		if err != nil {
			return
		}
	case err != nil && errors.Is(err, syscall.EFAULT) && m.has(from, n, readOnly) && access.full()&LocalWrite != 0:
		m.refused.Add(1)
		return
	case err != nil:
		m.t.Errorf("pages %d+%d: %v", from, n, err)
		return
	}
	m.gets.Add(1)
	m.transfer(r, lo, bytes)
	if err := m.c.Put(r); err != nil {
		m.t.Error(err)
	}
}

func (m *model) transfer(r Region, lo uintptr, bytes uint64) {
	mr := m.f.mr(m.t, r)
	now, err := touch(lo, lo+uintptr(bytes), false)
	if err != nil {
		m.t.Error(err)
	}
	first := ((lo &^ (page - 1)) - (mr.lo &^ (page - 1))) / page
	for i, s := range now {
		// A stamp of 0 was seen by a merging registration between the coming of a page and its
		// stamp.
		if was := mr.stamps[int(first)+i]; was != 0 && was != s {
			m.t.Errorf("stale: page %d is %#x, registered as %#x", (lo-m.p)/page+uintptr(i), s, was)
		} else if was != 0 {
			m.checked.Add(1)
		}
	}
}

// The ways in which the model changes pages.
const (
	remapThem = iota
	discard
	mapOver
	moveOnto
	protectThem
	unmapThem
	adviseThem
	changeWays
)

func (m *model) change(rnd choices) {
	from, n := m.pick(rnd)
	for i := range n {
		m.locks[from+i].Lock()
		defer m.locks[from+i].Unlock()
	}
	w := way{m.t, m.raw && rnd.below(2) == 0}
	lo, bytes := m.p+uintptr(from)*page, uintptr(n)*page
	what := rnd.below(changeWays)
	if what == discard && m.raw && rnd.below(20000) != 0 {
		// What userfaultfd saw discarded may not be cached for a while: a rare guest
		what = remapThem
	}
	if m.has(from, n, hole) && (what == discard || what == protectThem || what == adviseThem) {
		what = remapThem // these want memory
	}
	switch what {
	case remapThem:
		w.call(memtest.Munmap, unix.SYS_MUNMAP, lo, bytes)
		mapAt(m.t, lo, bytes, rw)
	case discard:
		protect(m.t, lo, bytes, rw)
		w.call(memtest.Madvise, unix.SYS_MADVISE, lo, bytes, unix.MADV_DONTNEED)
	case mapOver:
		w.call(memtest.Mmap, unix.SYS_MMAP, lo, bytes, rw, anonymous|unix.MAP_FIXED, ^uintptr(0), 0)
	case moveOnto: // pages that have their stamps come all at once
		m.moved.Lock()
		defer m.moved.Unlock()
		mapAt(m.t, m.spare, bytes, rw)
		stamp(m.spare, m.spare+bytes)
		w.call(memtest.Mremap, unix.SYS_MREMAP, m.spare, bytes, bytes, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, lo)
		m.set(from, n, writable)
		return
	case protectThem:
		protect(m.t, lo, bytes, unix.PROT_READ)
		m.set(from, n, readOnly)
		return
	case unmapThem:
		w.call(memtest.Munmap, unix.SYS_MUNMAP, lo, bytes)
		m.set(from, n, hole)
		return
	case adviseThem:
		w.call(memtest.Madvise, unix.SYS_MADVISE, lo, bytes, unix.MADV_WILLNEED)
		return
	}
	stamp(lo, lo+bytes)
	m.set(from, n, writable)
}

func (m *model) run(d time.Duration) {
	end := time.Now().Add(d)
	goesOn := func() bool { // a busy machine takes longer until all has happened
		return time.Now().Before(end) || time.Now().Before(end.Add(time.Minute)) && !m.tried()
	}
	var wg sync.WaitGroup
	for i := range 12 {
		rnd := &rand{(*seed<<8+uint64(i))*0x9E3779B97F4A7C15 + 1}
		wg.Go(func() {
			for goesOn() && !m.t.Failed() {
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
	if !m.tried() {
		m.t.Errorf("nothing was tried: %d pages checked, %d gets refused, %+v", m.checked.Load(), m.refused.Load(), m.c.Stats())
	}
	m.finish()
}

// tried reports whether all that the model is for has happened.
func (m *model) tried() bool {
	s := m.c.Stats()
	return m.checked.Load() > 0 && m.refused.Load() > 0 && s.Hits > 0 && s.Misses > 0 && s.Invalidated > 0
}

func (m *model) finish() {
	s := m.c.Stats()
	if s.Gets != m.gets.Load() || s.Puts != s.Gets {
		m.t.Errorf("%d gets: %+v", m.gets.Load(), s)
	}
	m.t.Logf("%d pages checked, %d gets refused, %+v", m.checked.Load(), m.refused.Load(), s)
}

func TestModelOfCallsThroughTheLibc_24(t *testing.T) {
	needCached(t, newCache(t, newFake()), Mapped)
	newModel(t, Mapped, false).run(memtest.Stress(1500 * time.Millisecond))
}

func TestModelOfRawCalls_24(t *testing.T) {
	needCached(t, newCache(t, newFake()), Any)
	newModel(t, Any, true).run(memtest.Stress(1500 * time.Millisecond))
}

// script are choices that were written down; it ends with panic(endOfScript).
type script struct{ text []byte }

type endOfScript struct{}

func (s *script) below(n int) int {
	if len(s.text) == 0 {
		panic(endOfScript{})
	}
	v := int(s.text[0]) % n
	s.text = s.text[1:]
	return v
}

func (s *script) play(m *model) {
	defer func() {
		if e := recover(); e != nil && e != (endOfScript{}) {
			panic(e)
		}
	}()
	for !m.t.Failed() {
		if s.below(2) == 0 {
			m.communicate(s)
		} else {
			m.change(s)
		}
	}
}

// FuzzModel plays three scripts at once.
func FuzzModel(f *testing.F) {
	for i := range 4 {
		rnd, text := &rand{uint64(i + 1)}, make([]byte, 600)
		for j := range text {
			text[j] = byte(rnd.below(256))
		}
		f.Add(i%2 == 0, text[:200], text[200:400], text[400:])
	}
	f.Fuzz(func(t *testing.T, raw bool, a, b, c []byte) {
		m := newModel(t, map[bool]Origin{true: Any, false: Mapped}[raw], raw)
		var wg sync.WaitGroup
		for _, text := range [][]byte{a, b, c} {
			wg.Go(func() { (&script{text}).play(m) })
		}
		wg.Wait()
		m.finish()
		if err := checkIdle(m.c); err != nil {
			t.Error(err)
		}
	})
}

// checkIdle: nothing is in use, so everything can go.
func checkIdle(c *Cache) error {
	if left := c.Clear(); left != 0 {
		return fmt.Errorf("%d registrations are left, and nothing is in use", left)
	}
	if s := c.Stats(); s.Bytes != 0 || s.Live+s.Dead != 0 {
		return fmt.Errorf("nothing is left, but %+v", s)
	}
	return nil
}
