package conduit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// Data of 1 to 4 ranks on each network: short, long, and in memory of the segment.
func TestDataOfAJob(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		for n := 1; n <= 4; n++ {
			runLocal(t, n, cfg, func(ctx context.Context, j *Job) error {
				for _, length := range []int{1, 100, 3000, 40_000} {
					if err := dataOfAJob(ctx, j, length); err != nil {
						return fmt.Errorf("%d ranks, %d elements: %w", n, length, err)
					}
				}
				return nil
			})
		}
	})
}

func dataOfAJob(ctx context.Context, j *Job, length int) error {
	n, me := j.Size(), j.Rank()
	buf := make([]int64, length)
	for i := range buf {
		buf[i] = int64(i * (me + 1))
	}
	if err := AllReduce(ctx, j, buf, coll.Sum); err != nil {
		return err
	}
	for i, v := range buf {
		if want := int64(i * n * (n + 1) / 2); v != want {
			return fmt.Errorf("all-reduce: element %d is %d, want %d", i, v, want)
		}
	}
	for i := range buf {
		buf[i] = int64(i + me)
	}
	root := length % n
	if err := coll.Reduce(ctx, j.Team(), root, buf, coll.Max); err != nil {
		return err
	}
	for i, v := range buf {
		if want := int64(i + me); me != root && v != want || me == root && v != int64(i+n-1) {
			return fmt.Errorf("reduce to %d: element %d is %d at %d", root, i, v, me)
		}
	}
	for i := range buf {
		buf[i] = int64(i + 1)
	}
	if err := coll.Scan(ctx, j.Team(), buf, coll.Sum); err != nil {
		return err
	}
	for i, v := range buf {
		if want := int64((i + 1) * (me + 1)); v != want {
			return fmt.Errorf("scan: element %d is %d, want %d", i, v, want)
		}
	}
	src, dst := make([]int32, n*length), make([]int32, n*length)
	for i := range src {
		src[i] = int32(me*1_000_000 + i)
	}
	if err := AllToAll(ctx, j, dst, src); err != nil {
		return err
	}
	for i, v := range dst {
		if want := int32(i/length*1_000_000 + me*length + i%length); v != want {
			return fmt.Errorf("all-to-all: element %d is %d, want %d", i, v, want)
		}
	}
	clear(dst)
	if err := coll.AllGather(ctx, j.Team(), dst, src[:length]); err != nil {
		return err
	}
	for i, v := range dst {
		if want := int32(i/length*1_000_000 + i%length); v != want {
			return fmt.Errorf("all-gather: element %d is %d, want %d", i, v, want)
		}
	}
	clear(dst)
	if err := coll.Gather(ctx, j.Team(), root, dst, src[:length]); err != nil {
		return err
	}
	back := make([]int32, length)
	if err := coll.Scatter(ctx, j.Team(), root, back, dst); err != nil {
		return err
	}
	for i, v := range back {
		if v != src[i] {
			return fmt.Errorf("gather and scatter: element %d is %d, want %d", i, v, src[i])
		}
	}
	sum, err := AllReduceValue(ctx, j, [2]float64{1, float64(me)}, func(dst, src [][2]float64) {
		for i := range dst {
			coll.Sum(dst[i][:], src[i][:])
		}
	})
	if want := [2]float64{float64(n), float64(n * (n - 1) / 2)}; err == nil && sum != want {
		err = fmt.Errorf("sums are %v, want %v", sum, want)
	}
	return err
}

func TestSizesOfCollectivesAreChecked(t *testing.T) {
	cfg := Config{Getenv: noEnv, Collectives: Collectives{Short: -1}}
	err := RunLocalConfig(t.Context(), 2, cfg, func(*Job) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "Config.Short is -1") {
		t.Errorf("got %v, want what is wrong with Short", err)
	}
}

// BenchmarkDataCrossover measures the ways of reductions and of all-to-all, for the defaults of
// Collectives: short is the way of data below Short, shares that from Long on, tree the one in
// between. Over shared memory the latter two are one.
func BenchmarkDataCrossover(b *testing.B) {
	b.Run(FabricSHM, func(b *testing.B) { crossover(b, Config{Fabric: FabricSHM}) })
	b.Run(FabricIBV, func(b *testing.B) { crossover(b, Config{Fabric: FabricIBV, Device: rdmatest.Device(b)}) })
}

func crossover(b *testing.B, cfg Config) {
	ways := map[string]Collectives{"short": {Short: 256 << 10}, "tree": {Short: 1, Long: 1 << 30}, "shares": {Short: 1, Long: 1}}
	for _, n := range []int{2, 4} {
		for _, size := range []int{64, 256, 1 << 10, 4 << 10, 16 << 10} {
			for name, way := range ways {
				cfg := cfg
				cfg.SegmentSize, cfg.Teams, cfg.Collectives = 1<<20, 1, way
				cfg.Collectives.WindowBytes = 2 << 20
				b.Run(fmt.Sprintf("allreduce/%d/%d/%s", n, size, name), func(b *testing.B) {
					benchmarkData(b, n, cfg, func(ctx context.Context, j *Job) func() error {
						buf := make([]int64, size/8)
						return func() error { return AllReduce(ctx, j, buf, coll.Sum) }
					})
				})
				if name == "tree" {
					continue
				}
				b.Run(fmt.Sprintf("alltoall/%d/%d/%s", n, size, name), func(b *testing.B) {
					benchmarkData(b, n, cfg, func(ctx context.Context, j *Job) func() error {
						dst, src := make([]byte, n*size), make([]byte, n*size)
						return func() error { return AllToAll(ctx, j, dst, src) }
					})
				})
			}
		}
	}
}

func benchmarkData(b *testing.B, n int, cfg Config, prepare func(context.Context, *Job) func() error) {
	runLocal(b, n, cfg, func(ctx context.Context, j *Job) error {
		op := prepare(ctx, j)
		if err := op(); err != nil {
			return err
		}
		if j.Rank() == 0 {
			b.ResetTimer()
		}
		for range b.N {
			if err := op(); err != nil {
				return err
			}
		}
		return j.Barrier(ctx)
	})
}

func TestDataWithPointersIsRefused(t *testing.T) {
	runLocal(t, 1, Config{}, func(ctx context.Context, j *Job) error {
		_, err := AllReduceValue(ctx, j, "a string", func(dst, src []string) {})
		for _, err := range []error{err, AllToAll(ctx, j, []*int{nil}, []*int{nil}), AllReduce(ctx, j, []any{1}, func(dst, src []any) {})} {
			if !errors.As(err, new(*TypeError)) {
				return fmt.Errorf("got %v, want a type error", err)
			}
		}
		return nil
	})
}
