package conduit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/owner"
)

// onCaches runs a job with caches on each network; each rank has a worker.
func onCaches(t *testing.T, n int, cfg Config, fn func(ctx context.Context, j *Job, w *Worker) error) {
	t.Helper()
	cfg.Cache = &cache.Config{Mapped: true}
	onFabrics(t, n, cfg, worked(fn))
}

// word is where word i of the own segment lies.
func wordOf(j *Job, i int) *uint64 { return (*uint64)(unsafe.Pointer(&j.Segment()[8*i])) }

func TestACacheKeepsWhatItHas(t *testing.T) {
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		other := 1 - j.Rank()
		for i := range 1000 {
			if err := Put(w, At[uint64](other, uint64(8*i)), uint64(i)); err != nil {
				return err
			}
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		for i := range 1000 {
			if v := atomic.LoadUint64(wordOf(j, i)); v != uint64(i) {
				return fmt.Errorf("word %d is %d", i, v)
			}
		}
		var all [1000]uint64
		idx := make([]int, len(all))
		for i := range idx {
			idx[i] = i * 7 % len(idx)
		}
		if err := errors.Join(Prefetch(w, At[uint64](other, 0), 100), PrefetchIndexed(w, At[uint64](other, 0), idx[:3]),
			SetHint(w, At[uint64](other, 0), 10, HintSequential), GetIndexed(w, all[:], At[uint64](other, 0), idx)); err != nil {
			return err
		}
		for i, v := range all {
			if v != uint64(idx[i]) {
				return fmt.Errorf("element %d is gathered as %d", idx[i], v)
			}
		}
		for range 2 {
			for i := range 1000 {
				if v, err := Get(w, At[uint64](other, uint64(8*i))); err != nil || v != uint64(i) {
					return fmt.Errorf("word %d is read as %d, %w", i, v, err)
				}
			}
		}
		s, c := w.CacheStats(), w.Stats()[j.FabricTo(other)]
		if s.Puts != 1000 || s.Gets != 3000 || s.Prefetched == 0 || s.GetHits < 2800 || c.Gets > 200 || c.Puts > 40 || j.CacheStats().Gets < 3000 {
			return fmt.Errorf("%+v, of the network %d gets and %d puts", s, c.Gets, c.Puts)
		}
		return nil
	})
}

// Each of these makes what a rank wrote through its cache visible, and old copies go.
func TestFencesReachTheCache(t *testing.T) {
	table, echo, _ := fenceHandlers()
	for name, meet := range map[string]func(ctx context.Context, j *Job, w *Worker) error{
		"worker's barrier": func(ctx context.Context, _ *Job, w *Worker) error { return w.Barrier(ctx) },
		"job's barrier": func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Flush(ctx), j.Barrier(ctx))
		},
		"all-reduce": func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Flush(ctx), AllReduce(ctx, j, make([]int, 1), coll.Sum))
		},
		"all-reduce of a value": func(ctx context.Context, j *Job, w *Worker) error {
			lost := w.Flush(ctx)
			_, err := AllReduceValue(ctx, j, 1, coll.Sum)
			return errors.Join(lost, err)
		},
		"all-to-all": func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Flush(ctx), AllToAll(ctx, j, make([]int, j.Size()), make([]int, j.Size())))
		},
		"fence": func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Fence(ctx), j.Team().Barrier(ctx))
		},
		"broadcasts": func(ctx context.Context, j *Job, w *Worker) error {
			for root := range j.Size() {
				if err := w.Broadcast(ctx, root, make([]byte, 8)); err != nil {
					return err
				}
			}
			return j.Team().Barrier(ctx)
		},
		"atomic": func(ctx context.Context, j *Job, w *Worker) error {
			_, err := FetchAdd(w, At[uint64](1-j.Rank(), 4096), 1)
			if err == nil {
				err = w.WaitUntil(ctx, 4096, GreaterEqual, 1)
			}
			return errors.Join(err, j.Team().Barrier(ctx))
		},
		"call": func(ctx context.Context, j *Job, w *Worker) error {
			_, err := echo.Call(ctx, w, 1-j.Rank())
			err = errors.Join(err, j.Team().Barrier(ctx))
			_, again := echo.Call(ctx, w, 1-j.Rank())
			return errors.Join(err, again)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onCaches(t, 2, Config{Handlers: table}, func(ctx context.Context, j *Job, w *Worker) error {
				other := 1 - j.Rank()
				p := At[uint64](other, 64)
				if v, err := Get(w, p); v != 0 || err != nil { // a copy that becomes old
					return fmt.Errorf("%d, %w", v, err)
				}
				if err := j.Team().Barrier(ctx); err != nil {
					return err
				}
				if err := Put(w, At[uint64](other, 72), 7); err != nil {
					return err
				}
				atomic.StoreUint64(wordOf(j, 8), 9)
				if err := meet(ctx, j, w); err != nil {
					return err
				}
				if v := atomic.LoadUint64(wordOf(j, 9)); v != 7 {
					return fmt.Errorf("the other rank's put is not here: %d", v)
				}
				if v, err := Get(w, p); v != 9 || err != nil {
					return fmt.Errorf("a get returns the old %d, %w", v, err)
				}
				return j.Barrier(ctx)
			})
		})
	}
}

// A line that ends behind its rank's segment is a copy of what is in front of that end only.
func TestNothingIsReadBehindTheEnd(t *testing.T) {
	const size = 64<<10 + 8
	onCaches(t, 2, Config{SegmentSize: size}, func(ctx context.Context, j *Job, w *Worker) error {
		last := At[uint64](1-j.Rank(), size-8)
		_, err := Get(w, last)
		_, again := Get(w, last)
		_, behind := Get(w, last.Add(1))
		if want := (*BoundsError)(nil); !errors.As(behind, &want) {
			err = errors.Join(err, fmt.Errorf("a get behind the end: %w", behind))
		}
		return errors.Join(err, again, j.Barrier(ctx))
	})
}

// Also where the second one asks for what the cache has.
func TestTwoGoroutinesInOneCacheAreFound(t *testing.T) {
	if !owner.Checked {
		t.Skip("calls of a second goroutine are refused with -tags debug only")
	}
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p := At[uint64](1-j.Rank(), 64)
		_, e1 := Get(w, p)
		_, e2 := Get(w, p)
		if err := errors.Join(e1, e2, w.enter("test")); err != nil { // as a goroutine inside a call does
			return err
		}
		errs := make(chan error)
		go func() {
			defer close(errs)
			_, err := Get(w, p)
			errs <- err
			errs <- GetIndexed(w, make([]uint64, 2), p, []int{0, 300})
			errs <- Prefetch(w, p, 1)
			errs <- SetHint(w, p, 1, HintRandom)
		}()
		n, err := 0, error(nil)
		for e := range errs {
			if n++; !errors.Is(e, ErrConcurrent) {
				err = errors.Join(err, fmt.Errorf("call %d of a second goroutine: %w", n, e))
			}
		}
		w.exit()
		return errors.Join(err, j.Barrier(ctx))
	})
}

// The others need not wait for a rank that forgot to flush, which learns of which worker.
func TestUnsentWritesFailTheJobsOperation(t *testing.T) {
	onCaches(t, 2, Config{Workers: 3}, func(ctx context.Context, j *Job, w *Worker) error {
		return withWorker(j, func(second *Worker) error {
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			p, late := At[uint64](1-j.Rank(), 64), j.Rank() == 0
			if late {
				if err := errors.Join(Put(w, p, 1), w.Flush(ctx), Put(second, p.Add(1), 1)); err != nil {
					return err
				}
			}
			err := j.Barrier(ctx)
			if errors.Is(err, ErrUnsent) != late || late && !strings.Contains(err.Error(), "worker 2 ") {
				return fmt.Errorf("a barrier of the job: %w", err)
			}
			if err := errors.Join(second.Flush(ctx), j.Barrier(ctx)); err != nil {
				return fmt.Errorf("a barrier after a flush: %w", err)
			}
			if v := atomic.LoadUint64(wordOf(j, 9)); (v == 1) == late {
				return fmt.Errorf("word 9 is %d", v)
			}
			return nil
		})
	})
}

// What passes the cache by is in order with what does not.
func TestWhatPassesTheCacheByIsOrdered(t *testing.T) {
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		other := 1 - j.Rank()
		p := At[uint64](other, 128)
		large, back := make([]uint64, 4096), make([]uint64, 4096)
		for i := range large {
			large[i] = uint64(i)
		}
		steps := []struct {
			name string
			do   func() error
			want uint64 // in word 1 behind p
		}{
			{"put", func() error { return Put(w, p.Add(1), 10) }, 10},
			{"large put over a small one", func() error { return PutSlice(w, p, large) }, 1},
			{"small put over a large one", func() error { return Put(w, p.Add(1), 20) }, 20},
			{"implicit large put", func() error { return PutSliceNBI(w, p, large) }, 1},
			{"put", func() error { return Put(w, p.Add(1), 30) }, 30},
			{"chain", func() error { return w.Chain(func() error { return PutNBI(w, p.Add(1), 40) }) }, 40},
			{"add", func() error { return Add(w, p.Add(1), 1) }, 41},
			{"fetch-add", func() error { _, err := FetchAdd(w, p.Add(1), 1); return err }, 42},
			{"put", func() error { return Put(w, p.Add(1), 50) }, 50},
			{"swap", func() error {
				old, err := Swap(w, p.Add(1), 60)
				if old != 50 {
					err = fmt.Errorf("a swap found %d: %w", old, err)
				}
				return err
			}, 60},
			{"scatter", func() error { return PutIndexed(w, p, []int{0, 1}, []uint64{0, 70}) }, 70},
		}
		for _, s := range steps {
			if err := s.do(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if err := w.Flush(ctx); err != nil {
				return err
			}
			if v, err := Get(w, p.Add(1)); v != s.want || err != nil {
				return fmt.Errorf("%s: get %d, want %d, %w", s.name, v, s.want, err)
			}
			if err := GetSlice(w, back, p); back[1] != s.want || err != nil {
				return fmt.Errorf("%s: large get %d, want %d, %w", s.name, back[1], s.want, err)
			}
			a := GetAsync(w, p.Add(1))
			if v, err := a.Wait(ctx); v != s.want || err != nil {
				return fmt.Errorf("%s: async get %d, want %d, %w", s.name, v, s.want, err)
			}
			var two [2]uint64
			if err := GetIndexed(w, two[:], p, []int{1, 0}); two[0] != s.want || err != nil {
				return fmt.Errorf("%s: gather %d, want %d, %w", s.name, two[0], s.want, err)
			}
		}
		return j.Barrier(ctx)
	})
}

func TestACachedGetAllocatesNothing(t *testing.T) {
	counted := make(chan struct{}, 1)
	onCaches(t, 2, Config{Handlers: am.NewTable()}, func(ctx context.Context, j *Job, w *Worker) error {
		if err := j.Barrier(ctx); err != nil { // before that rank 1 may still open its worker
			return err
		}
		if j.Rank() == 1 {
			<-counted
		} else {
			p := At[uint64](1, 64)
			n := testing.AllocsPerRun(100, func() {
				for i := range 512 {
					_, _ = Get(w, p.Add(i))
					_ = Put(w, p.Add(i), 1)
				}
				_ = w.Fence(ctx)
			})
			counted <- struct{}{}
			if n > 0 {
				return fmt.Errorf("%v allocations", n)
			}
		}
		return j.Barrier(ctx)
	})
}
