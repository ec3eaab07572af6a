package conduit

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/ibconduit/conduit/cache"
)

func benchmarkOp(b *testing.B, size int, fn func(w *Worker, own []byte, p Ptr[byte]) error) {
	cfg := Config{Fabric: os.Getenv("IBCONDUIT_FABRIC")}
	if cfg.Fabric == "" {
		cfg.Fabric = FabricSHM
	}
	benchmarkConfig(b, cfg, size, fn)
}

func benchmarkConfig(b *testing.B, cfg Config, size int, fn func(w *Worker, own []byte, p Ptr[byte]) error) {
	cfg.SegmentSize = 4 << 20
	err := RunLocalConfig(context.Background(), 2, cfg, func(j *Job) error {
		ctx := context.Background()
		if j.Rank() == 1 {
			return j.Barrier(ctx)
		}
		err := withWorker(j, func(w *Worker) error {
			p := At[byte](1, 4096)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := fn(w, j.Segment()[4096:4096+size], p); err != nil {
					return err
				}
			}
			return w.Flush(ctx)
		})
		if err != nil {
			return err
		}
		return j.Barrier(ctx)
	})
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkPut8(b *testing.B) {
	benchmarkOp(b, 8, func(w *Worker, _ []byte, p Ptr[byte]) error { return Put(w, Cast[int64](p), 1) })
}

func BenchmarkGet8(b *testing.B) {
	q := At[int64](1, 4096)
	benchmarkOp(b, 8, func(w *Worker, _ []byte, _ Ptr[byte]) error { _, err := Get(w, q); return err })
}

func BenchmarkFetchAdd(b *testing.B) {
	q := At[int64](1, 4096)
	benchmarkOp(b, 8, func(w *Worker, _ []byte, _ Ptr[byte]) error { _, err := FetchAdd(w, q, 1); return err })
}

// A hit of the line that was read last, through Get: package cache has what of it is the cache's.
func BenchmarkGetCached(b *testing.B) {
	q := At[int64](1, 4096)
	cfg := Config{Fabric: FabricSHM, Cache: &cache.Config{Mapped: true}}
	benchmarkConfig(b, cfg, 8, func(w *Worker, _ []byte, _ Ptr[byte]) error { _, err := Get(w, q); return err })
}

func BenchmarkGetAsyncCached(b *testing.B) {
	q, ctx := At[int64](1, 4096), context.Background()
	cfg := Config{Fabric: FabricSHM, Cache: &cache.Config{Mapped: true, NoReadahead: true}}
	benchmarkConfig(b, cfg, 8, func(w *Worker, _ []byte, _ Ptr[byte]) error {
		if err := w.Acquire(); err != nil { // so that it is no hit
			return err
		}
		p := GetAsync(w, q)
		_, err := p.Wait(ctx)
		return err
	})
}

func BenchmarkPutSlice(b *testing.B) {
	for _, n := range []int{64, 4096, 65536} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			benchmarkOp(b, n, func(w *Worker, own []byte, p Ptr[byte]) error { return PutSlice(w, p, own) })
		})
	}
}

func BenchmarkGetSlice(b *testing.B) {
	for _, n := range []int{64, 4096, 65536} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			benchmarkOp(b, n, func(w *Worker, own []byte, p Ptr[byte]) error { return GetSlice(w, own, p) })
		})
	}
}

// benchmarkTogether has two ranks do the same.
func benchmarkTogether(b *testing.B, fn func(ctx context.Context, j *Job) error) {
	cfg := Config{Fabric: FabricSHM, SegmentSize: 1 << 20}
	b.ReportAllocs()
	err := RunLocalConfig(context.Background(), 2, cfg, func(j *Job) error {
		ctx := context.Background()
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		for range b.N {
			if err := fn(ctx, j); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

func BenchmarkBarrier(b *testing.B) {
	benchmarkTogether(b, func(ctx context.Context, j *Job) error { return j.Barrier(ctx) })
}
