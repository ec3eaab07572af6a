package conduit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// fetching are the operations that return the old value, by name: at once, by a promise, and what
// they make of it.
func fetching[T Word](v T) map[string]struct {
	now   func(*Worker, Ptr[T]) (T, error)
	later func(*Worker, Ptr[T]) Promise[T]
	none  func(*Worker, Ptr[T]) error
	makes func(T) T
} {
	type forms = struct {
		now   func(*Worker, Ptr[T]) (T, error)
		later func(*Worker, Ptr[T]) Promise[T]
		none  func(*Worker, Ptr[T]) error
		makes func(T) T
	}
	bind := func(now func(*Worker, Ptr[T], T) (T, error), later func(*Worker, Ptr[T], T) Promise[T], none func(*Worker, Ptr[T], T) error, makes func(T) T) forms {
		return forms{
			func(w *Worker, p Ptr[T]) (T, error) { return now(w, p, v) },
			func(w *Worker, p Ptr[T]) Promise[T] { return later(w, p, v) },
			func(w *Worker, p Ptr[T]) error { return none(w, p, v) },
			makes,
		}
	}
	return map[string]forms{
		"add":  bind(FetchAdd[T], FetchAddAsync[T], Add[T], func(x T) T { return x + v }),
		"swap": bind(Swap[T], SwapAsync[T], Set[T], func(T) T { return v }),
		"and":  bind(FetchAnd[T], FetchAndAsync[T], And[T], func(x T) T { return x & v }),
		"or":   bind(FetchOr[T], FetchOrAsync[T], Or[T], func(x T) T { return x | v }),
		"xor":  bind(FetchXor[T], FetchXorAsync[T], Xor[T], func(x T) T { return x ^ v }),
		"min":  bind(FetchMin[T], FetchMinAsync[T], Min[T], func(x T) T { return min(x, v) }),
		"max":  bind(FetchMax[T], FetchMaxAsync[T], Max[T], func(x T) T { return max(x, v) }),
	}
}

// typed does every operation of a type on some values, in every form, beside a guard.
func typed[T Word](ctx context.Context, w *Worker, size uint64, values ...T) error {
	p := At[T](1, 64+size)
	for _, x := range values {
		for _, v := range values {
			for name, f := range fetching(v) {
				for form, do := range map[string]func() (T, error){
					"now": func() (T, error) { return f.now(w, p) },
					"later": func() (T, error) {
						q := f.later(w, p)
						return q.Wait(ctx)
					},
					"chain": func() (T, error) { return x, errors.Join(w.Chain(func() error { return f.none(w, p) }), w.Flush(ctx)) },
				} {
					if err := Put(w, p, x); err != nil {
						return err
					}
					old, err := do()
					left, gerr := Get(w, p)
					if err = errors.Join(err, gerr); err != nil {
						return fmt.Errorf("%s %s of %T: %w", name, form, v, err)
					}
					if want := f.makes(x); old != x || left != want {
						return fmt.Errorf("%s %s of %T: %v with %v returned %v and left %v, want %v", name, form, v, x, v, old, left, want)
					}
				}
			}
			for _, expect := range []T{x, x + 1} {
				later := CompareSwapAsync(w, p, expect, v)
				old, err := later.Wait(ctx)
				if err == nil {
					err = Put(w, p, x)
				}
				again, aerr := CompareSwap(w, p, expect, v)
				left, gerr := Get(w, p)
				if err = errors.Join(err, aerr, gerr, Put(w, p, x)); err != nil {
					return err
				}
				want := x
				if expect == x {
					want = v
				}
				if again != x || left != want {
					return fmt.Errorf("compare-swap of %T: %v for %v on %v returned %v, %v and left %v", v, v, expect, x, old, again, left)
				}
			}
		}
	}
	return nil
}

type counter int32 // a type of the program's own

func TestAtomicsOfEveryTypeAreExact(t *testing.T) {
	onFabrics(t, 2, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 1 {
			pattern(j.Segment()[:128], 1)
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			want := make([]byte, 128)
			pattern(want, 1)
			got := append([]byte{}, j.Segment()[:128]...)
			copy(got[68:80], want[68:80]) // the words that were worked on
			return samePattern(got, 1)
		}
		err := j.Barrier(ctx)
		err = cmp.Or(err, typed(ctx, w, 4, uint32(0), 1, 5, math.MaxUint32, 1<<31))
		err = cmp.Or(err, typed(ctx, w, 4, int32(0), 1, -1, math.MinInt32, math.MaxInt32))
		err = cmp.Or(err, typed(ctx, w, 4, counter(3), -7))
		err = cmp.Or(err, typed(ctx, w, 8, uint64(0), 1, math.MaxUint64, 1<<63))
		err = cmp.Or(err, typed(ctx, w, 8, int64(0), 1, -1, math.MinInt64, math.MaxInt64))
		sum := At[float64](1, 72)
		err = cmp.Or(err, Put(w, sum, 1.5), Add(w, sum, 0.25), Add(w, sum, math.Inf(1)), w.Flush(ctx))
		if old, aerr := FetchAdd(w, sum, math.Inf(-1)); err == nil && (aerr != nil || !math.IsInf(old, 1)) {
			err = fmt.Errorf("fetch-add of float64 returned %v, %v", old, aerr)
		}
		if nan, gerr := Get(w, sum); err == nil && (gerr != nil || !math.IsNaN(nan)) {
			err = fmt.Errorf("inf - inf is %v, %v", nan, gerr)
		}
		return cmp.Or(err, j.Barrier(ctx))
	}))
}

func TestAtomicsThatCannotBeAreRefused(t *testing.T) {
	onFabrics(t, 2, Config{SegmentSize: 1 << 20}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		var align *AlignError
		if _, err := FetchOr(w, At[int32](1, 6), 1); !errors.As(err, &align) || align.Off != 6 || align.Align != 4 || align.Rank != 1 {
			return fmt.Errorf("at offset 6: %v", err)
		}
		if err := Add(w, At[float64](1, 4), 1); !errors.As(err, &align) || align.Align != 8 {
			return fmt.Errorf("a float64 at offset 4: %v", err)
		}
		var bounds *BoundsError
		if err := Max(w, At[int32](1, 1<<40), 1); !errors.As(err, &bounds) || bounds.Len != 4 {
			return fmt.Errorf("beyond the segment: %v", err)
		}
		if err := Xor(w, Ptr[uint64]{}, 1); !errors.Is(err, ErrNullPtr) {
			return fmt.Errorf("null: %v", err)
		}
		return cmp.Or(w.Flush(ctx), j.Barrier(ctx))
	}))
}

// hammer has a rank change words of rank 0 by atomics of all kinds, and checks what all ranks made
// of them: among them both halves of one word.
func hammer(ctx context.Context, j *Job, w *Worker, rounds int) error {
	low, high := At[uint32](0, 0), At[int32](0, 4)
	sum, mix, most, count := At[float64](0, 8), At[uint64](0, 16), At[int64](0, 24), At[uint64](0, 32)
	n := j.Size() * rounds
	for k := range rounds {
		v := j.Rank()*rounds + k + 1
		err := w.Chain(func() error {
			return cmp.Or(Add(w, low, 1), Add(w, high, -2), Add(w, sum, 0.5), Xor(w, mix, uint64(v)), Max(w, most, int64(v)), Add(w, count, 1))
		})
		if k%8 == 7 {
			err = cmp.Or(err, w.Flush(ctx))
		}
		if old, aerr := FetchAdd(w, count, 1<<32); err == nil && (aerr != nil || old>>32 >= uint64(n)) {
			err = fmt.Errorf("fetch-add returned %#x, %w", old, aerr)
		}
		if err != nil {
			return err
		}
	}
	if err := cmp.Or(w.Flush(ctx), j.Barrier(ctx)); err != nil {
		return err
	}
	var x uint64
	for v := range n {
		x ^= uint64(v + 1)
	}
	type words struct {
		low  uint32
		high int32
		sum  float64
		mix  uint64
		most int64
		n    uint64
	}
	got, err := Get(w, At[words](0, 0))
	if want := (words{uint32(n), int32(-2 * n), float64(n) / 2, x, int64(n), uint64(n)<<32 | uint64(n)}); err == nil && got != want {
		err = fmt.Errorf("%d rounds left %+v, want %+v", n, got, want)
	}
	return cmp.Or(err, j.Barrier(ctx))
}

func TestAtomicsOfAllKindsAddUp(t *testing.T) {
	onFabrics(t, 4, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error { return hammer(ctx, j, w, 100) }))
}

// apart makes the ranks of a group look as if on two hosts, one with the even and one with the odd
// ranks: each sees the other host's with another boot id in their addresses of internal/fabric/shm.
type apart struct{ bootstrap.Bootstrap }

func (b apart) Exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	all, err := b.Bootstrap.Exchange(ctx, blob)
	for r := range all {
		h, herr := decodeHello(all[r])
		if herr != nil || len(h.shm) == 0 || r%2 == b.Rank()%2 {
			continue
		}
		const boot = 16 // where it is, see internal/fabric/shm; the sum of all before is at the end
		body := h.shm[:len(h.shm)-8]
		body[boot]++
		sum := sha256.Sum256(body)
		copy(h.shm[len(body):], sum[:8])
		all[r] = h.encode()
	}
	return all, err
}

// In a job on two hosts the atomics on a word come from ranks that could use the processor's, and
// from ranks that cannot. All go through the device then, if those are not atomic to each other.
func TestKindsOfAtomicsNeverMix(t *testing.T) {
	const ranks = 4
	device := rdmatest.Device(t)
	boots := bootstrap.NewGroup(ranks)
	errs := joinEach(t, ranks, func(r int) Config {
		return Config{Bootstrap: apart{boots[r]}, Fabric: FabricAuto, Device: device, SegmentSize: 1 << 20, CloseTimeout: time.Minute}
	}, func(ctx context.Context, j *Job) error {
		err := withWorker(j, func(w *Worker) error {
			for r := range ranks {
				near := r%2 == j.Rank()%2
				if got := j.FabricTo(r); near != (got == FabricSHM) {
					return fmt.Errorf("rank %d is reached over %s", r, got)
				}
				rt := j.networks.routes[r]
				global := j.networks.all[1].Limits().CPUAtomics
				if rt.cpuAtomics != (near && global) || !rt.cpuAtomics && rt.amo.Name() != FabricIBV {
					return fmt.Errorf("atomics to rank %d: by the processor %v, else over %s; the device says %v", r, rt.cpuAtomics, rt.amo.Name(), global)
				}
			}
			if err := hammer(ctx, j, w, 100); err != nil {
				return err
			}
			if c := w.Stats()[FabricIBV]; !j.CPUAtomics() && c.Atomics != 700 {
				return fmt.Errorf("of 700 atomics %d went through the device", c.Atomics)
			}
			return nil
		})
		return errors.Join(err, j.Close())
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// The error of an atomic that is a loop counts offsets as the program does, whatever has it.
func TestErrorsOfLoopsCountAsTheProgramDoes(t *testing.T) {
	runLocal(t, 2, Config{Fabric: FabricIBV, Device: rdmatest.Device(t), SegmentSize: 1 << 20}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		for i := range 5 {
			j.Segment()[8*i] = 200 // the first attempts miss
		}
		if err := j.Barrier(ctx); err != nil || j.Rank() == 1 {
			return err
		}
		at := func(i uint64) Ptr[uint64] { return At[uint64](1, 8*i) }
		tested, waited, started := FetchOrAsync(w, at(1), 1), FetchOrAsync(w, at(2), 1), FetchOrAsync(w, at(3), 1)
		if err := Or(w, at(4), 1); err != nil {
			return err
		}
		for _, n := range j.networks.all {
			n.PeerDown(1, errors.New("killed on purpose"))
		}
		done, terr := tested.Test() // finds the death
		_, werr := waited.Wait(ctx)
		_, aerr := w.await(started.lane, started.h)
		for i, err := range []error{terr, werr, aerr, w.Flush(ctx)} {
			if failed := (*OpError)(nil); !errors.As(err, &failed) || failed.Off != uint64(8*i+8) || failed.Op != "fetch-or" || !errors.Is(err, ErrPeerDown) {
				return fmt.Errorf("atomic %d: %w", i+1, err)
			}
		}
		if !done {
			return errors.New("one that failed is not complete")
		}
		return nil
	}))
}
