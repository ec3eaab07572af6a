package coll_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
)

// BenchmarkData measures operations of two ranks that share memory.
func BenchmarkData(b *testing.B) {
	for _, n := range []int{8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("allreduce/%d", n), func(b *testing.B) {
			benchmark(b, func(ctx context.Context, t *coll.Team) func() error {
				buf := make([]float64, n/8)
				return func() error { return coll.AllReduce(ctx, t, buf, coll.Sum) }
			})
		})
	}
	for _, n := range []int{8, 1 << 10, 4 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("alltoall/%d", n), func(b *testing.B) {
			benchmark(b, func(ctx context.Context, t *coll.Team) func() error {
				dst, src := make([]byte, n*t.Size()), make([]byte, n*t.Size())
				return func() error { return coll.AllToAll(ctx, t, dst, src) }
			})
		})
	}
}

func benchmark(b *testing.B, prepare func(context.Context, *coll.Team) func() error) {
	onSHM(b, 2, coll.Config{}, func(ctx context.Context, e env.Env, t *coll.Team) error {
		op := prepare(ctx, t)
		for range 10 {
			if err := op(); err != nil {
				return err
			}
		}
		if e.Rank() == 0 {
			b.ReportAllocs()
			b.ResetTimer()
		}
		for range b.N {
			if err := op(); err != nil {
				return err
			}
		}
		return t.Barrier(ctx)
	})
}
