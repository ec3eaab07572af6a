package conduit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/ibconduit/conduit/cache"
)

// What is read-only no call of the worker writes, also where it passes the cache by.
func TestReadOnlyElementsAreNotWritten(t *testing.T) {
	const n = 1024
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p, past := At[uint64](1-j.Rank(), 64), At[uint64](1-j.Rank(), 64+8*n)
		if err := Put(w, p, 7); err != nil { // the page that puts go to next
			return err
		}
		if err := SetHint(w, p, n, HintReadOnly); err != nil {
			return err
		}
		for name, write := range map[string]func() error{
			"put":             func() error { return Put(w, p, 2) },
			"large put":       func() error { return PutSlice(w, p, make([]uint64, n)) },
			"large async put": func() error { a := PutSliceAsync(w, p, make([]uint64, n)); return a.Wait(ctx) },
			"chain":           func() error { return w.Chain(func() error { return PutNBI(w, p, 3) }) },
			"add":             func() error { return Add(w, p, 3) },
			"fetch-add":       func() error { _, err := FetchAdd(w, p, 3); return err },
		} {
			if err := write(); !errors.Is(err, cache.ErrReadOnly) {
				return fmt.Errorf("%s of what is read-only: %w", name, err)
			}
		}
		if err := Put(w, past, 5); err != nil {
			return fmt.Errorf("behind what is read-only: %w", err)
		}
		if err := Put(w, past.Add(-1), 4); !errors.Is(err, cache.ErrReadOnly) {
			return fmt.Errorf("put of what is read-only to the page of the last put: %w", err)
		}
		if err := errors.Join(Add(w, past, 1), w.Barrier(ctx)); err != nil {
			return fmt.Errorf("behind what is read-only: %w", err)
		}
		if a, b := *wordOf(j, 8), *wordOf(j, 8+n); a != 7 || b != 6 {
			return fmt.Errorf("the words are %d and %d", a, b)
		}
		return j.Barrier(ctx)
	})
}

// An acquire leaves the copies of what is private: an atomic forgets its word itself.
func TestAtomicsForgetPrivateWords(t *testing.T) {
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p, want := At[uint64](1-j.Rank(), 64), uint64(0)
		if err := SetHint(w, At[uint64](1-j.Rank(), 0), 1024, HintPrivate); err != nil {
			return err
		}
		for range 2 {
			for name, add := range map[string]func() error{
				"fetch-add": func() error { _, err := FetchAdd(w, p, 1); return err },
				"add":       func() error { return errors.Join(Add(w, p, 1), w.Flush(ctx)) },
				"async": func() error {
					a := FetchAddAsync(w, p, 1)
					_, err := a.Wait(ctx)
					return err
				},
			} {
				if err := add(); err != nil {
					return err
				}
				want++
				if v, err := Get(w, p); v != want || err != nil {
					return fmt.Errorf("after %s the word is read as %d, want %d: %w", name, v, want, err)
				}
				if err := w.Fence(ctx); err != nil {
					return err
				}
				if v, err := Get(w, p); v != want || err != nil { // a copy from here on
					return fmt.Errorf("after a fence the word is read as %d, want %d: %w", v, want, err)
				}
			}
		}
		return j.Barrier(ctx)
	})
}

// An atomic that returns a value keeps no copies from the cache: it acquires, and is over.
func TestFetchesExposeNothing(t *testing.T) {
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p := At[uint64](1-j.Rank(), 0)
		if err := SetHint(w, p.Add(64<<10), 100, HintSequential); err != nil {
			return err
		}
		for i := range 64 {
			if _, err := FetchAdd(w, p.Add(512*i), 1); err != nil {
				return err
			}
		}
		before := w.CacheStats()
		for i := range 64 {
			for range 4 {
				if v, err := Get(w, p.Add(512*i)); v != 1 || err != nil {
					return fmt.Errorf("word %d is %d: %w", i, v, err)
				}
			}
		}
		if s := w.CacheStats(); s.GetHits-before.GetHits < 3*64 {
			return fmt.Errorf("%d of %d gets are hits, %d pass by", s.GetHits-before.GetHits, 4*64, s.GetsDirect-before.GetsDirect)
		}
		return j.Barrier(ctx)
	})
}

// So many elements that their bytes do not fit in a word are no few.
func TestHintsOfTooManyAreRefused(t *testing.T) {
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p := At[uint64](1-j.Rank(), 64)
		if err := SetHint(w, p, 1<<61+1, HintReadOnly); err == nil {
			return errors.New("2^61 + 1 elements have a hint")
		}
		return errors.Join(Put(w, p, 1), w.Barrier(ctx))
	})
}

// The operation of a promise alone acquires as well, whose value is not asked for.
func TestAnAtomicsOperationAcquires(t *testing.T) {
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p := At[uint64](1-j.Rank(), 64)
		for want := uint64(1); want < 5; want++ {
			if _, err := Get(w, p); err != nil {
				return err
			}
			a := FetchAddAsync(w, p, 1)
			wait := func() error { return a.Pending.Wait(ctx) }
			if want%2 == 0 {
				wait = func() error {
					done, err := a.Pending.Test()
					for ; !done && ctx.Err() == nil; done, err = a.Pending.Test() {
						runtime.Gosched()
					}
					return err
				}
			}
			if err := wait(); err != nil {
				return err
			}
			if v, err := Get(w, p); v != want || err != nil {
				return fmt.Errorf("the word is read as %d, want %d: %w", v, want, err)
			}
		}
		return j.Barrier(ctx)
	})
}

// A worker's own atomic that was begun and flushed is not undone by a copy from before it.
func TestFlushedFetchesAreRead(t *testing.T) {
	onCaches(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p := At[uint64](1-j.Rank(), 64)
		for want := uint64(1); want < 4; want++ {
			if _, err := Get(w, p); err != nil {
				return err
			}
			a := FetchAddAsync(w, p, 1)
			if err := w.Flush(ctx); err != nil {
				return err
			}
			if v, err := Get(w, p); v != want || err != nil {
				return fmt.Errorf("the word is read as %d, want %d: %w", v, want, err)
			}
			if old, err := a.Wait(ctx); old != want-1 || err != nil {
				return fmt.Errorf("the word was %d, want %d: %w", old, want-1, err)
			}
		}
		return j.Barrier(ctx)
	})
}
