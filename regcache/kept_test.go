//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"errors"
	"testing"
)

func TestGetKeptMakesNoRegistrationForOneOperation(t *testing.T) {
	f := newFake()
	c := newCache(t, f, func(cfg *Config) { cfg.Uncached = true })
	p := reserve(t, 4)
	if _, err := c.GetKept(ptr(p), 100, LocalWrite); !errors.Is(err, ErrNotKept) {
		t.Errorf("without watching: %v", err)
	}
	id := windowOpen(p, p+page)
	defer windowClose(id)
	watched := newCache(t, newFake(), func(cfg *Config) { cfg.Origin = Mapped })
	if _, err := watched.GetKept(ptr(p), 100, LocalWrite); !errors.Is(err, ErrNotKept) {
		t.Errorf("during a change: %v", err)
	}
	if s := c.Stats(); s.Gets != 0 || s.Registered != 0 || f.calls != 0 {
		t.Errorf("%+v, %d calls", s, f.calls)
	}
	if s := watched.Stats(); s.Gets != 0 || s.Registered != s.Deregistered {
		t.Errorf("%+v", s)
	}
}

func TestGetKeptHitsWhatGetRegistered(t *testing.T) {
	c := newCache(t, newFake(), func(cfg *Config) { cfg.Origin = Mapped })
	p := reserve(t, 4)
	key := getPut(t, c, p, 100, LocalWrite)
	for _, n := range []uint64{100, 4000} {
		r, err := c.GetKept(ptr(p), n, LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if r.LKey != key {
			t.Errorf("%d bytes: another registration", n)
		}
		mustPut(t, c, r)
	}
	if s := c.Stats(); s.Hits != 2 || s.Misses != 1 {
		t.Errorf("%+v", s)
	}
}
