package conduit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// What crosses many blocks of one rank, or of all, is one doorbell: blocks that follow each other
// there are one request, others one each.
func TestManyBlocksAreOneDoorbell(t *testing.T) {
	cfg := withHeap(1024)
	cfg.Getenv = func(string) (string, bool) { return "", false } // a cache has other messages
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		const blocks = 100 // of each rank
		a, err := NewArray[uint64](ctx, j, 2*blocks*4, Block(4))
		if err != nil {
			return err
		}
		large, err := NewArray[[4096]byte](ctx, j, 2*blocks, Cyclic)
		if err != nil {
			return err
		}
		mem, bigs := make([]uint64, a.Len()), make([][4096]byte, large.Len())
		other := neighbour(j)
		theirs := func(k int) int { return (k/4*2+other)*4 + k%4 } // element k of the other rank
		even, perm := make([]int, blocks), rand.Perm(4*blocks)
		for k := range even {
			even[k] = theirs(2 * k)
		}
		for k := range perm {
			perm[k] = theirs(perm[k])
		}
		for _, c := range []struct {
			what     string
			f        func() error
			requests uint64
			elements uint64 // of shared memory: loads and stores
		}{
			{"GetSlice", func() error { return a.GetSlice(w, mem, 0) }, 2, 2 * blocks},
			{"PutSlice", func() error { return a.PutSlice(w, 0, mem) }, 2, 2 * blocks},
			{"GetSlice of 4 KiB each", func() error { return large.GetSlice(w, bigs, 0) }, 2, 2 * blocks},
			{"PutSlice of 4 KiB each", func() error { return large.PutSlice(w, 0, bigs) }, 2, 2 * blocks},
			{"GetStrided of each second", func() error { return a.GetStrided(w, mem[:blocks], 1, 2) }, blocks, blocks},
			{"GetStrided of one rank", func() error { return a.GetStrided(w, mem[:blocks], other*4, 8) }, blocks, blocks},
			{"PutStrided of one rank", func() error { return a.PutStrided(w, other*4, 8, mem[:blocks]) }, blocks, blocks},
			{"GetIndexed of each second", func() error { return a.GetIndexed(w, mem[:blocks], even) }, blocks, blocks},
			{"PutIndexed of each second", func() error { return a.PutIndexed(w, even, mem[:blocks]) }, blocks, blocks},
			{"GetIndexed of all in any order", func() error { return a.GetIndexed(w, mem[:4*blocks], perm) }, 1, 4 * blocks},
			{"a column", func() error { return GetStrided(w, mem[:blocks], a.At(other*4), 1, 4) }, blocks, blocks},
			{"whole rows", func() error { return GetStrided(w, mem[:2*blocks], a.At(other*4), 4, 4) }, 1, blocks / 2},
		} {
			if err := errors.Join(j.Barrier(ctx), c.f(), w.Flush(ctx)); err != nil { // connections, buffers and registrations
				return fmt.Errorf("%s: %w", c.what, err)
			}
			before := w.Stats()
			if err := c.f(); err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
			after := w.Stats()
			if j.networks.all[0].Name() == FabricSHM {
				if got := after[FabricSHM].Direct - before[FabricSHM].Direct; got != c.elements {
					return fmt.Errorf("%s: %d loads and stores, want %d", c.what, got, c.elements)
				}
				continue
			}
			// A rank reaches itself over the device too.
			x, y := before[FabricIBV], after[FabricIBV]
			requests, bells := y.Gets+y.Puts-x.Gets-x.Puts, y.Doorbells-x.Doorbells
			if requests != c.requests || bells != 1 {
				return fmt.Errorf("%s: %d requests and %d doorbells, want %d and 1", c.what, requests, bells, c.requests)
			}
		}
		return j.Barrier(ctx)
	}))
}

// triple is an element of three bytes.
type triple [3]byte

func tripleValue(i int) triple { return triple{byte(i), byte(i >> 8), byte(i>>16) ^ 0x5a} }

// slicesAgree has each rank read and write random slices of an array, and strided and indexed
// elements, and compares with a copy. The elements hold their values, and hold them again.
func slicesAgree[T comparable](ctx context.Context, w *Worker, n int, how Distribution, value func(i int) T) error {
	j := w.Job()
	a, err := NewArray[T](ctx, j, n, how)
	if err != nil {
		return err
	}
	for i, p := range a.Mine() {
		*p = value(i)
	}
	if err := w.Barrier(ctx); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(uint64(n), uint64(j.Rank())))
	for range 12 {
		first := rng.IntN(n)
		dst := make([]T, rng.IntN(n-first+1))
		idx := make([]int, rng.IntN(200))
		for k := range idx {
			if idx[k] = rng.IntN(n); k > 0 && rng.IntN(2) == 0 {
				idx[k] = (idx[k-1] + 1) % n
			}
		}
		some := make([]T, len(idx))
		get := func() error {
			return errors.Join(a.GetSlice(w, dst, first), a.GetIndexed(w, some, idx))
		}
		if rng.IntN(2) == 0 {
			err = get()
		} else {
			err = w.Chain(get) // which they post, as they wait
		}
		if err != nil {
			return err
		}
		for k, v := range dst {
			if v != value(first+k) {
				return fmt.Errorf("%d elements from %d on of %d, %v: element %d is %v", len(dst), first, n, how, first+k, v)
			}
		}
		for k, v := range some {
			if v != value(idx[k]) {
				return fmt.Errorf("%d indices of %d elements, %v: element %d is %v", len(idx), n, how, idx[k], v)
			}
		}
	}
	// Each rank writes a share, and writes it back: in one slice, and backwards.
	from, to := j.Rank()*n/j.Size(), (j.Rank()+1)*n/j.Size()
	mine, none := make([]T, to-from), make([]T, to-from)
	for k := range mine {
		mine[k] = value(from + k)
	}
	if err := errors.Join(w.Barrier(ctx), a.PutSlice(w, from, none), w.Barrier(ctx)); err != nil {
		return err
	}
	all := make([]T, n)
	if err := a.GetSlice(w, all, 0); err != nil {
		return err
	}
	for i, v := range all {
		if v != *new(T) {
			return fmt.Errorf("%d elements, %v: element %d is %v after it was cleared", n, how, i, v)
		}
	}
	slices.Reverse(mine)
	if err := errors.Join(w.Barrier(ctx), a.PutStrided(w, max(to-1, 0), -1, mine), w.Barrier(ctx), a.GetSlice(w, all, 0)); err != nil {
		return err
	}
	for i, v := range all {
		if v != value(i) {
			return fmt.Errorf("%d elements, %v: element %d is %v after it was put back", n, how, i, v)
		}
	}
	return errors.Join(w.Barrier(ctx), a.Close(ctx))
}

// Blocks of many sizes: bounced, packed, in several chains, and too large to be packed.
func TestPiecesOfEachSizeAgreeWithACopy(t *testing.T) {
	for ranks := 1; ranks <= 3; ranks++ {
		cfg := withHeap(2048)
		cfg.SegmentSize = 16 << 20
		onFabrics(t, ranks, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
			number := func(i int) uint64 { return value(i) }
			for _, c := range []struct {
				n   int
				how Distribution
			}{{1, Cyclic}, {5000, Cyclic}, {100_000, Cyclic}, {200_000, Block(97)}, {200_000, Block(1500)}, {200_000, Block(9000)}} {
				if err := slicesAgree(ctx, w, c.n, c.how, number); err != nil {
					return err
				}
			}
			return errors.Join(slicesAgree(ctx, w, 60_001, Block(7), tripleValue), slicesAgree(ctx, w, 60_001, Cyclic, tripleValue),
				slicesAgree(ctx, w, 999, Cyclic, func(i int) (v [1000]uint16) { v[0], v[999] = uint16(i), ^uint16(i); return v }))
		}))
	}
}

// To and from the segment blocks are not copied, but the smallest.
func TestBlocksInTheSegmentAreNotPacked(t *testing.T) {
	onFabrics(t, 2, withHeap(1024), worked(func(ctx context.Context, j *Job, w *Worker) error {
		const n = 40
		a, err := NewArray[[4096]byte](ctx, j, n, Cyclic)
		if err != nil {
			return err
		}
		p, err := Alloc[[4096]byte](ctx, j, n)
		if err != nil {
			return err
		}
		mem, err := Slice(j, p, n)
		if err != nil {
			return err
		}
		for i, e := range a.Mine() {
			e[0], e[4095] = byte(i), ^byte(i)
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		before := w.Stats()[FabricIBV]
		if err := a.GetSlice(w, mem, 0); err != nil {
			return err
		}
		after := w.Stats()[FabricIBV]
		for i := range mem {
			if mem[i][0] != byte(i) || mem[i][4095] != ^byte(i) {
				return fmt.Errorf("element %d is %d", i, mem[i][0])
			}
		}
		if direct := after.Direct - before.Direct; j.networks.all[0].Name() == FabricIBV && direct != n {
			return fmt.Errorf("%d of %d gets went without a copy", direct, n)
		}
		return j.Barrier(ctx)
	}))
}

// After an error the buffer is the network's, and the worker goes on with another.
func TestFailedPiecesLeaveTheWorkerUsable(t *testing.T) {
	onFabrics(t, 2, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		to := At[uint64](neighbour(j), 0)
		dst := make([]uint64, 64)
		end := len(j.Segment()) / 8
		offs := make([]int, len(dst))
		for k := range offs {
			offs[k] = end - 32 + k // half of them lie outside
		}
		bounds := (*BoundsError)(nil)
		if err := GetIndexed(w, dst, to, offs); !errors.As(err, &bounds) {
			return fmt.Errorf("beyond the segment: %w", err)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		w.SetContext(ended)
		err := GetStrided(w, dst, to, 1, 3)
		w.SetContext(ctx)
		if err != nil && !errors.Is(err, context.Canceled) { // it may be complete all the same
			return fmt.Errorf("with a context that has ended: %w", err)
		}
		if err := errors.Join(w.Flush(ctx), GetStrided(w, dst, to, 2, 2), j.Barrier(ctx)); err != nil {
			return err
		}
		if w.job.networks.all[0].Name() == FabricIBV && w.Stats()[FabricIBV].Gets == 0 {
			return errors.New("no get went over verbs")
		}
		return nil
	}))
}

func TestPiecesOfTypesWithPointersAreRefused(t *testing.T) {
	onFabrics(t, 2, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		p, mem := At[*int](neighbour(j), 0), make([]*int, 2)
		for _, err := range []error{GetIndexed(w, mem, p, []int{0, 1}), PutIndexed(w, p, []int{0, 1}, mem), GetStrided(w, mem, p, 1, 2), PutStrided(w, p, 1, 2, mem), Copy(w, p, p.Add(2), 2)} {
			if e := (*TypeError)(nil); !errors.As(err, &e) {
				return fmt.Errorf("pointers are transferred: %v", err)
			}
		}
		return j.Barrier(ctx)
	}))
}

// BenchmarkArraySlice reads 100 blocks of each of two ranks (IBCONDUIT_FABRIC, default shm).
func BenchmarkArraySlice(b *testing.B) {
	for _, block := range []int{1, 64, 512, 1500} {
		b.Run(fmt.Sprintf("block=%d", 8*block), func(b *testing.B) {
			cfg := withHeap(1024)
			cfg.SegmentSize, cfg.Fabric = 8<<20, cmp.Or(os.Getenv("IBCONDUIT_FABRIC"), FabricSHM)
			if err := RunLocalConfig(context.Background(), 2, cfg, func(j *Job) error {
				ctx := context.Background()
				a, err := NewArray[uint64](ctx, j, 200*block, Block(block))
				if err != nil || j.Rank() > 0 {
					return errors.Join(err, j.Barrier(ctx))
				}
				return withWorker(j, func(w *Worker) error {
					dst := make([]uint64, a.Len())
					b.SetBytes(int64(8 * len(dst)))
					before := w.Stats()[FabricIBV].Requests
					for b.Loop() {
						if err := a.GetSlice(w, dst, 0); err != nil {
							return err
						}
					}
					b.ReportMetric(float64(w.Stats()[FabricIBV].Requests-before)/float64(b.N), "requests/op")
					return j.Barrier(ctx)
				})
			}); err != nil {
				b.Fatal(err)
			}
		})
	}
}
