//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// Costs are benchmarks; what makes them is asserted.
func TestHitAllocatesNothingAndCallsNoC_25(t *testing.T) {
	c := newCache(t, newFake(), func(c *Config) { c.Origin = Mapped })
	p := reserve(t, 4)
	getPut(t, c, p, 64, LocalWrite)
	calls := runtime.NumCgoCall()
	n := testing.AllocsPerRun(1000, func() {
		r, err := c.Get(ptr(p), 64, LocalWrite)
		if err != nil || c.Put(r) != nil {
			t.Fatal(err)
		}
	})
	calls = runtime.NumCgoCall() - calls
	// Other goroutines' calls count too, but not a thousand
	if (n != 0 || calls > 10) && !verifying {
		t.Errorf("%v allocations, %d cgo calls in 1000", n, calls)
	}
}

// BenchmarkHit measures Get and Put of a range that is registered.
func BenchmarkHit(b *testing.B) {
	c := newCache(b, newFake(), func(c *Config) { c.Origin = Mapped })
	p := ptr(reserve(b, 64))
	b.Run("same-page", func(b *testing.B) { hits(b, c, p, 64, 0) })
	b.Run("64-pages", func(b *testing.B) { hits(b, c, p, 64, page) })
	b.Run("parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				r, _ := c.Get(p, 64, LocalWrite)
				c.Put(r)
			}
		})
	})
}

func hits(b *testing.B, c *Cache, p unsafe.Pointer, n uint64, step uintptr) {
	getPut(b, c, uintptr(p), uint64(64*page), LocalWrite)
	at := uintptr(0)
	for b.Loop() {
		r, err := c.Get(unsafe.Add(p, at), n, LocalWrite)
		noError(b, err)
		c.Put(r)
		if at += step; at == 64*page {
			at = 0
		}
	}
}

// BenchmarkMiss measures a Get that registers (with the fake Registrar) beside that of a range that
// is not cached.
func BenchmarkMiss(b *testing.B) {
	for _, cached := range []bool{true, false} {
		name := map[bool]string{true: "invalidated", false: "per-operation"}[cached]
		b.Run(name, func(b *testing.B) {
			c := newCache(b, newFake(), func(c *Config) { c.Origin, c.Uncached = Mapped, !cached })
			p := reserve(b, 1)
			for b.Loop() {
				getPut(b, c, p, 64, LocalWrite)
				if cached {
					call(b, memtest.Madvise, p, page, unix.MADV_DONTNEED)
				}
			}
		})
	}
}
