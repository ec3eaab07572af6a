package conduit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ibconduit/conduit/cache"
)

// Neighbouring words that are got without a wait come in as few messages as with one.
func TestGetsInFlightTakeAsFewMessages(t *testing.T) {
	const words = 1000
	cfg := Config{SegmentSize: 64 << 10, Workers: 4, Cache: &cache.Config{Mapped: true}}
	onFabrics(t, 2, cfg, func(ctx context.Context, j *Job) error {
		other := 1 - j.Rank()
		for i := range words {
			atomic.StoreUint64(wordOf(j, i), uint64(i))
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		at := func(i int) Ptr[uint64] { return At[uint64](other, uint64(8*i)) }
		messages := func(get func(w *Worker, all [][]uint64) error) (n uint64, err error) {
			all := make([][]uint64, words)
			for i := range all {
				all[i] = make([]uint64, 1)
			}
			err = withWorker(j, func(w *Worker) error {
				err := get(w, all)
				n = w.Stats()[j.FabricTo(other)].Gets
				return err
			})
			for i, v := range all {
				if v[0] != uint64(i) {
					err = errors.Join(err, fmt.Errorf("word %d is read as %d", i, v[0]))
				}
			}
			return n, err
		}
		waiting, e1 := messages(func(w *Worker, all [][]uint64) (err error) {
			for i, v := range all {
				err = errors.Join(err, GetSlice(w, v, at(i)))
			}
			return err
		})
		async, e2 := messages(func(w *Worker, all [][]uint64) (err error) {
			gets := make([]Pending, words)
			for i, v := range all {
				gets[i] = GetSliceAsync(w, v, at(i))
			}
			for i := range gets {
				err = errors.Join(err, gets[i].Wait(ctx))
			}
			return err
		})
		implicit, e3 := messages(func(w *Worker, all [][]uint64) (err error) {
			for i, v := range all {
				err = errors.Join(err, GetSliceNBI(w, v, at(i)))
			}
			return errors.Join(err, w.Flush(ctx))
		})
		t.Logf("messages: %d waiting, %d asynchronous, %d implicit", waiting, async, implicit)
		err := errors.Join(e1, e2, e3)
		if async > waiting || implicit > waiting {
			err = errors.Join(err, fmt.Errorf("%d messages of gets that wait, of others %d and %d", waiting, async, implicit))
		}
		return errors.Join(err, j.Barrier(ctx))
	})
}

// A promise has its value, whatever its worker does before.
func TestGetsInFlightAreCopiedOut(t *testing.T) {
	onCaches(t, 2, Config{SegmentSize: 64 << 10}, func(ctx context.Context, j *Job, w *Worker) error {
		for i := range 64 {
			atomic.StoreUint64(wordOf(j, 512*(i/8)+i), uint64(i))
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		for name, do := range map[string]func() error{
			"nothing":            func() error { return nil },
			"flush":              func() error { return w.Flush(ctx) },
			"acquire":            w.Acquire,
			"fence":              func() error { return w.Fence(ctx) },
			"a put to the line":  func() error { return Put(w, At[uint64](1-j.Rank(), 8*511), 1) },
			"an add to the line": func() error { return Add(w, At[uint64](1-j.Rank(), 8*511), 1) },
			"a hint":             func() error { return SetHint(w, At[uint64](1-j.Rank(), 0), 8192, HintBypass) },
			"gets":               func() error { return GetSlice(w, make([]uint64, 100), At[uint64](1-j.Rank(), 0)) },
		} {
			if err := w.Acquire(); err != nil {
				return err
			}
			var gets [64]Promise[uint64]
			for i := range gets {
				gets[i] = GetAsync(w, At[uint64](1-j.Rank(), uint64(8*(512*(i/8)+i))))
			}
			if err := do(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for i := range gets {
				for i%2 == 0 {
					if done, err := gets[i].Test(); err != nil {
						return fmt.Errorf("%s: %w", name, err)
					} else if done {
						break
					}
				}
				if v, err := gets[i].Wait(ctx); v != uint64(i) || err != nil {
					return fmt.Errorf("%s: word %d is read as %d, %w", name, i, v, err)
				}
			}
		}
		return w.Barrier(ctx)
	})
}
