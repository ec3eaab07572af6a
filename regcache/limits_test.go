//go:build linux

package regcache

import (
	"errors"
	"syscall"
	"testing"
)

func TestWhatWasUnusedForLongestGoesFirst_18(t *testing.T) {
	f := newFake()
	c := cached(t, f, func(c *Config) { c.MaxRegions = 3 })
	p := reserve(t, 16)
	at := func(i int) uintptr { return p + uintptr(i)*2*page }
	keys := map[int]uint32{}
	for i := range 3 {
		keys[i] = getPut(t, c, at(i), 8, LocalWrite)
	}
	busy := mustGet(t, c, at(1), 8, LocalWrite)
	getPut(t, c, at(0), 8, LocalWrite)           // 2 is now the oldest, then 1, which is in use
	keys[3] = getPut(t, c, at(3), 8, LocalWrite) // evicts 2
	f.mr(t, busy)
	// After 0: hits are ordered by the misses between them
	if getPut(t, c, at(3), 8, LocalWrite) != keys[3] {
		t.Error("what was used last is gone")
	}
	if s := c.Stats(); s.Evicted != 1 || s.Live != 3 {
		t.Errorf("%+v", s)
	}
	keys[4] = getPut(t, c, at(4), 8, LocalWrite) // evicts 0: the one in use is passed over
	f.mr(t, busy)
	if getPut(t, c, at(3), 8, LocalWrite) != keys[3] {
		t.Error("3 is gone before 0, which was older")
	}
	mustPut(t, c, busy)
	if getPut(t, c, at(1), 8, LocalWrite) != busy.LKey {
		t.Error("the one that was in use is gone")
	}
	if n, _ := f.registered(); n != 3 {
		t.Errorf("%d registrations, want 3", n)
	}
}

func TestLimitsHoldWhateverIsInUse_18(t *testing.T) {
	f := newFake()
	c := cached(t, f, func(c *Config) { c.MaxBytes = 4 * int64(page) })
	p := reserve(t, 32)
	a := mustGet(t, c, p, 2*uint64(page), LocalWrite)
	b := mustGet(t, c, p+4*page, 2*uint64(page), LocalWrite)
	r := mustGet(t, c, p+8*page, uint64(page), LocalWrite) // no room: for this operation
	if s := c.Stats(); s.Bytes != 4*int64(page) || s.Uncached != 1 || s.Crowded != 1 {
		t.Errorf("%+v", s)
	}
	for _, r := range []Region{a, b, r} {
		mustPut(t, c, r)
	}
	getPut(t, c, p+8*page, 3*uint64(page), LocalWrite) // evicts both
	getPut(t, c, p+16*page, 5*uint64(page), LocalWrite)
	if n, bytes := f.registered(); n != 1 || bytes != 3*int64(page) {
		t.Errorf("%d registrations of %d bytes", n, bytes)
	}
}

func TestEnomemEvictsAndTriesAgain_18(t *testing.T) {
	f := newFake()
	f.limit = 4 * int64(page)
	c := newCache(t, f, func(c *Config) { c.Origin = Mapped })
	p := reserve(t, 64)
	for i := range 8 {
		getPut(t, c, p+uintptr(i)*2*page, uint64(page), LocalWrite)
	}
	a := mustGet(t, c, p+32*page, 3*uint64(page), LocalWrite)
	for range 2 {
		if _, err := c.Get(ptr(p+40*page), 2*uint64(page), LocalWrite); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("beside what is in use: %v, want ENOMEM", err)
		}
	}
	mustPut(t, c, a)
	getPut(t, c, p+40*page, 2*uint64(page), LocalWrite) // the failure was not remembered
	checkStats(t, c)
	if _, err := c.Get(ptr(p+48*page), 5*uint64(page), LocalWrite); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("more than there is: %v, want ENOMEM", err)
	}
	if n := c.Clear(); n != 0 {
		t.Errorf("%d left", n)
	}
}

func TestWhatFailedIsTriedAgain_18(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 1)
	var err error = syscall.EACCES
	f.fail.Store(&err)
	for range 2 {
		if _, err := c.Get(ptr(p), 8, LocalWrite); !errors.Is(err, syscall.EACCES) {
			t.Errorf("%v, want EACCES", err)
		}
	}
	f.fail.Store(nil)
	getPut(t, c, p, 8, LocalWrite)
	if s := c.Stats(); s.RegisterErrors != 2 || s.Misses != 1 || s.Gets != 1 {
		t.Errorf("%+v", s)
	}
}
