//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// panics reports whether f does, with what the Registrar panicked with.
func panics(f func()) bool { return panicked(f) == any("registrar") }

func TestRegistrarPanicBlocksNoCaller(t *testing.T) {
	for _, origin := range []Origin{Mapped, Any, GoHeap} {
		t.Run(origin.String(), func(t *testing.T) {
			f := newFake()
			begun, let := make(chan struct{}), make(chan struct{})
			var once sync.Once
			f.before = func(_, _ uintptr) {
				first := false
				once.Do(func() { first = true })
				if first {
					close(begun)
					<-let
					panic("registrar")
				}
			}
			c := newCache(t, f)
			p := reserve(t, 1)
			get := func() (Region, error) { return c.GetFrom(origin, ptr(p), 8, LocalWrite) }
			thrown := make(chan bool)
			go func() { thrown <- panics(func() { get() }) }()
			<-begun
			var others sync.WaitGroup
			for range 4 { // these wait for it, where the range can be cached
				others.Go(func() {
					r, err := get()
					if err != nil {
						t.Error(err)
						return
					}
					mustPut(t, c, r)
				})
			}
			for range 100 {
				runtime.Gosched()
			}
			close(let)
			if !<-thrown {
				t.Error("the panic did not come to the caller of Get")
			}
			others.Wait()
			if s := c.Stats(); s.Registered != uint64(f.serial) {
				t.Errorf("%d of %d registrations are counted", s.Registered, f.serial)
			}
			checkStats(t, c)
		})
	}
}

// Room, table slots and tags come back: far more panics than there are of each.
func TestRegistrarPanicTakesNoRoom(t *testing.T) {
	f := newFake()
	throw := true
	f.before = func(_, _ uintptr) {
		if throw {
			panic("registrar")
		}
	}
	c := cached(t, f, func(cfg *Config) { cfg.MaxRegions = 2 })
	p := reserve(t, 1)
	for range 100 {
		if !panics(func() { c.GetFrom(Mapped, ptr(p), 8, LocalWrite) }) {
			t.Fatal("no panic")
		}
	}
	throw = false
	if a, b := getPut(t, c, p, 8, LocalWrite), getPut(t, c, p, 8, LocalWrite); a != b {
		t.Error("the range is not cached any more")
	}
	checkStats(t, c)
}

// goexit is what a test's Fatal does within a Registrar.
func TestRegistrarGoexitBlocksNoCaller(t *testing.T) {
	f := newFake()
	throw := true
	f.before = func(_, _ uintptr) {
		if throw {
			runtime.Goexit()
		}
	}
	c := cached(t, f)
	p := reserve(t, 1)
	var wg sync.WaitGroup
	wg.Go(func() { c.GetFrom(Mapped, ptr(p), 8, LocalWrite) })
	wg.Wait()
	throw = false
	getPut(t, c, p, 8, LocalWrite)
	checkStats(t, c)
}

// Each place where the cache deregisters.
func TestDeregistrationPanicLeavesTheCacheWhole(t *testing.T) {
	type env struct {
		c *Cache
		p uintptr
	}
	fill := func(t *testing.T, e env, n int) {
		for i := range uintptr(n) {
			getPut(t, e.c, e.p+2*i*page, 8, LocalWrite)
		}
	}
	for name, do := range map[string]func(t *testing.T, e env) func(){
		"Close": func(t *testing.T, e env) func() { fill(t, e, 3); return func() { e.c.Close() } },
		"Clear": func(t *testing.T, e env) func() { fill(t, e, 3); return func() { e.c.Clear() } },
		"Get of what changed": func(t *testing.T, e env) func() {
			fill(t, e, 3)
			call(t, memtest.Madvise, e.p, 6*page, unix.MADV_DONTNEED)
			return func() { e.c.Get(ptr(e.p), 8, LocalWrite) }
		},
		"Get beyond the limit": func(t *testing.T, e env) func() {
			fill(t, e, 4)
			return func() { e.c.Get(ptr(e.p+8*page), 8, LocalWrite) }
		},
		"Get that joins others": func(t *testing.T, e env) func() {
			fill(t, e, 2)
			return func() { e.c.Get(ptr(e.p), 3*uint64(page), LocalWrite) }
		},
		"Put of what changed": func(t *testing.T, e env) func() {
			r := mustGet(t, e.c, e.p, 8, LocalWrite)
			call(t, memtest.Madvise, e.p, page, unix.MADV_DONTNEED)
			return func() { e.c.Put(r) }
		},
		"Put of what was for one operation": func(t *testing.T, e env) func() {
			e.c.watched[Mapped].Store(false)
			r := mustGet(t, e.c, e.p, 8, LocalWrite)
			e.c.watched[Mapped].Store(true)
			return func() { e.c.Put(r) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			throw := false
			f.ended = func() {
				if throw {
					throw = false
					panic("registrar")
				}
			}
			c := cached(t, f, func(cfg *Config) { cfg.MaxRegions = 4 })
			act := do(t, env{c, reserve(t, 12)})
			throw = true
			if !panics(act) {
				t.Fatal("no panic")
			}
			checkStats(t, c)
			p := reserve(t, 1)
			if a, b := getPut(t, c, p, 8, LocalWrite), getPut(t, c, p, 8, LocalWrite); a != b {
				t.Error("nothing is cached any more")
			}
		})
	}
}

func TestRegistrarPanicLeavesNoPoolMapping(t *testing.T) {
	f := newFake()
	var at uintptr
	f.before = func(lo, hi uintptr) {
		at = lo
		stamp(lo, lo+page)
		panic("registrar")
	}
	p, err := NewPool(PoolConfig{Registrar: f})
	noError(t, err)
	if !panics(func() { p.Alloc(8) }) {
		t.Error("no panic")
	}
	if s, err := touch(at, at+8, false); err == nil && s[0] == stamps.Load()<<8 {
		t.Errorf("%#x is mapped still", at)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
