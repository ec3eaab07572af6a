//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// The table has room for a number of caches, and the next gets a closed one's place: what is called
// on the old one takes nothing from the new.
func TestClosedCacheLeavesTheNextOneUnchanged(t *testing.T) {
	for name, do := range map[string]func(*Cache){
		"Clear":  func(c *Cache) { c.Clear() },
		"Retest": func(c *Cache) { c.Retest() },
		"reap":   func(c *Cache) { c.reap() }, // a Put that is overtaken by Close
	} {
		t.Run(name, func(t *testing.T) {
			old := cached(t, newFake())
			getPut(t, old, reserve(t, 1), 8, LocalWrite)
			noError(t, old.Close())
			f := newFake()
			c := cached(t, f)
			p := reserve(t, 1)
			getPut(t, c, p, 8, LocalWrite)
			call(t, memtest.Munmap, p, page)
			do(old)
			remap(t, p, p+page)
			mustLand(t, f, c, p, 8, name)
			if s := c.Stats(); s.Invalidated != 1 || s.Deregistered != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The slot of a range that has ended is the next one's, perhaps another cache's.
func TestSecondPutLeavesTheNextOneUnchanged(t *testing.T) {
	again := func(c *Cache, r Region) {
		if panicked(func() { c.Put(r) }) == nil {
			t.Error("a second Put went unnoticed")
		}
	}
	a, b := cached(t, newFake()), cached(t, newFake())
	ra := mustGet(t, a, reserve(t, 1), 8, LocalWrite)
	mustPut(t, a, ra)
	again(a, ra) // while the entry is there
	a.Clear()
	p := reserve(t, 1)
	rb := mustGet(t, b, p, 8, LocalWrite)
	again(a, ra)
	if err := b.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("Close with a Region in use: %v", err)
	}
	mustPut(t, b, rb)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	c := cached(t, newFake())
	getPut(t, c, p, 8, LocalWrite)
	if left := c.Clear(); left != 0 {
		t.Errorf("%d registrations are left", left)
	}
}

// Close is tried until nothing is in use, by one goroutine, while others end their operations on
// what was changed meanwhile.
func TestCloseAmongPutsOfChangedMemory(t *testing.T) {
	for range 200 {
		f := newFake()
		c := cached(t, f)
		const n = 8
		p := reserve(t, n)
		var regions [n]Region
		for i := range regions {
			regions[i] = mustGet(t, c, p+uintptr(i)*page, 8, LocalWrite)
		}
		call(t, memtest.Madvise, p, n*page, unix.MADV_DONTNEED)
		var puts sync.WaitGroup
		for _, r := range regions {
			puts.Go(func() { c.Put(r) })
		}
		for c.Close() != nil {
		}
		next, err := New(Config{Registrar: newFake()})
		noError(t, err)
		puts.Wait()
		if s := c.Stats(); s.Registered != s.Deregistered || s.Live != 0 {
			t.Fatalf("%+v", s)
		}
		noError(t, next.Close())
	}
}

func TestCloseWaitsForAGetThatRegisters(t *testing.T) {
	for _, origin := range []Origin{Mapped, Any} {
		f := newFake()
		c := newCache(t, f, func(c *Config) { c.Origin, c.Uncached = origin, origin == Any })
		p := reserve(t, 1)
		registering, goOn := make(chan struct{}), make(chan struct{})
		f.before = func(lo, hi uintptr) { close(registering); <-goOn }
		got := make(chan Region)
		go func() {
			r, err := c.Get(ptr(p), 8, LocalWrite)
			if err != nil {
				t.Errorf("%v: a Get that came before Close: %v", origin, err)
			}
			got <- r
		}()
		<-registering
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		eventually(t, "Close has begun", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.closed })
		select {
		case err := <-closed:
			t.Errorf("%v: Close did not wait: %v", origin, err)
		default:
		}
		close(goOn)
		r := <-got
		if err := <-closed; !errors.Is(err, ErrBusy) {
			t.Errorf("%v: Close while the region is out: %v, want ErrBusy", origin, err)
		}
		f.before = nil
		f.mr(t, r)
		mustPut(t, c, r)
		getPut(t, c, p, 8, LocalWrite) // it goes on
	}
}
