package cache_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// benchmark runs f on rank 0, with a cache of 1 MiB of rank 1.
func benchmark(b *testing.B, f func(ctx context.Context, c *cache.Cache) error) {
	w, err := envtest.NewWorld(sim.Config{Ranks: 2, MaxTime: time.Hour}, env.Spec{Name: "data", Size: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	err = w.Run(func(ctx context.Context, e env.Env) error {
		if e.Rank() != 0 {
			return nil
		}
		return withCache(ctx, w, e, cache.Config{NoBypass: true}, func(ctx context.Context, x *fixture) error {
			buf := make([]byte, 512)
			for off := uint64(0); off < 1<<20; off += 512 {
				if err := x.Get(ctx, 1, off, buf); err != nil {
					return err
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			err := f(ctx, x.Cache)
			b.StopTimer()
			return err
		})
	})
	if err != nil {
		b.Fatal(err)
	}
}

var sum uint64

func BenchmarkHitSamePage(b *testing.B) {
	benchmark(b, func(_ context.Context, c *cache.Cache) error {
		var s uint64
		for i := 0; i < b.N; i++ {
			at := c.Peek(1, uint64(i)&127*8, 8)
			if at == nil {
				at = c.Hit(1, uint64(i)&127*8, 8)
			}
			s += *(*uint64)(at)
		}
		sum = s
		return nil
	})
}

func BenchmarkHitRandomPage(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	offs := make([]uint64, 1<<14)
	for i := range offs {
		offs[i] = rng.Uint64N(1<<17) * 8
	}
	benchmark(b, func(_ context.Context, c *cache.Cache) error {
		var s uint64
		for i := 0; i < b.N; i++ {
			s += *(*uint64)(c.Hit(1, offs[i&(len(offs)-1)], 8))
		}
		sum = s
		return nil
	})
}

func BenchmarkGetSamePage(b *testing.B) {
	benchmark(b, func(ctx context.Context, c *cache.Cache) error {
		var v uint64
		buf := unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8)
		for i := 0; i < b.N; i++ {
			if err := c.Get(ctx, 1, uint64(i)&127*8, buf); err != nil {
				return err
			}
		}
		return nil
	})
}

func BenchmarkPutSamePage(b *testing.B) {
	benchmark(b, func(ctx context.Context, c *cache.Cache) error {
		var v uint64
		buf := unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8)
		for i := 0; i < b.N; i++ {
			if err := c.Put(ctx, 1, uint64(i)&127*8, buf); err != nil {
				return err
			}
		}
		return nil
	})
}
