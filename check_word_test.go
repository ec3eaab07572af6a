package conduit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/am"
)

// A put that was begun an atomic delivers once it was waited for, whatever its size.
func TestTheCheckerKnowsWhoWaitsForPuts(t *testing.T) {
	const data, flag = 64, 0
	for _, n := range []int{1, 4096} {
		for name, test := range map[string]struct {
			end   func(context.Context, *Worker, *Pending) error
			wrong bool
		}{
			"not waited for": {func(context.Context, *Worker, *Pending) error { return nil }, true},
			"waited for":     {func(ctx context.Context, _ *Worker, p *Pending) error { return p.Wait(ctx) }, false},
			"tested": {func(ctx context.Context, _ *Worker, p *Pending) error {
				return until(ctx, "the put is there", func() bool { done, err := p.Test(); return done || err != nil })
			}, false},
			"flushed, waited for late": {func(ctx context.Context, w *Worker, p *Pending) error {
				return errors.Join(w.Flush(ctx), p.Wait(ctx))
			}, false},
		} {
			f := checkedJob(t, 3, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
				switch j.Rank() {
				case 0:
					p := PutSliceAsync(w, At[int64](2, data), make([]int64, n)) // put
					if err := test.end(ctx, w, &p); err != nil {
						return err
					}
					_, err := FetchAdd(w, At[uint64](1, flag), 1)
					return err
				case 1:
					if err := w.WaitUntil(ctx, flag, Equal, 1); err != nil {
						return err
					}
					_, err := Get(w, At[int64](2, data)) // got
					return err
				}
				return nil
			})
			if found := f.some(); (len(found) > 0) != test.wrong || test.wrong && !f.between("put", "got") {
				t.Errorf("%d words, %s: %v", n, name, found)
			}
		}
	}
}

// What is sent as a payload, or fetched, is word, and so is a block that is freed.
func TestTheCheckerKnowsTheLibrarysWord(t *testing.T) {
	const data = 64
	for name, tell := range map[string]func(ctx context.Context, j *Job, w *Worker, gone, came chan struct{}) error{
		"payload": func(ctx context.Context, j *Job, w *Worker, _, came chan struct{}) error {
			switch j.Rank() {
			case 0:
				return SendPayload(ctx, w, 1, "in", make([]byte, 100))
			case 1:
				return reached(ctx, came)
			}
			return nil
		},
		"large payload": func(ctx context.Context, j *Job, w *Worker, _, came chan struct{}) error {
			switch j.Rank() {
			case 0:
				return SendPayload(ctx, w, 1, "in", make([]byte, 20<<10))
			case 1:
				return reached(ctx, came)
			}
			return nil
		},
		"fetch": func(ctx context.Context, j *Job, w *Worker, gone, _ chan struct{}) error {
			switch j.Rank() {
			case 0:
				err := w.Flush(ctx)
				close(gone)
				return err
			case 1:
				if err := reached(ctx, gone); err != nil {
					return err
				}
				set := NewFetchSet(w)
				FetchFrom[byte](set, 0, "out", 100, 100, 1)
				l, err := set.Submit(ctx)
				if err == nil {
					l.Release()
				}
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			gone, came := make(chan struct{}), make(chan struct{})
			cfg := withPayloads(withFetches(withBudget(8), "out", echoes), "in", func(p *Payload) {
				p.Release()
				close(came)
			})
			f := checkedJob(t, 3, cfg, func(ctx context.Context, j *Job, w *Worker) error {
				var err error
				if j.Rank() == 0 {
					err = Put(w, At[uint64](2, data), 7)
				}
				err = errors.Join(err, tell(ctx, j, w, gone, came))
				if j.Rank() == 1 {
					v, got := Get(w, At[uint64](2, data))
					if err = errors.Join(err, got); v != 7 {
						err = errors.Join(err, fmt.Errorf("got %d", v))
					}
				}
				return errors.Join(err, j.Barrier(ctx))
			})
			if found := f.some(); len(found) > 0 {
				t.Error(found)
			}
		})
	}
}

func reached(ctx context.Context, c chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// What a rank wrote to a block before it freed it is in order with who gets the block next.
func TestTheCheckerKnowsWhoFreesForAll(t *testing.T) {
	freed := make(chan struct{})
	f := checkedJob(t, 3, Config{HeapSize: 64 << 10}, func(ctx context.Context, j *Job, w *Worker) error {
		var old Ptr[uint64]
		if j.Rank() == 2 {
			p, err := GlobalAlloc[uint64](ctx, j, 3, 8)
			if err != nil {
				return err
			}
			old = p
			if err := errors.Join(Put(w, p.On(1), 7), w.Flush(ctx), Free(ctx, j, p)); err != nil {
				return err
			}
			close(freed)
		} else if err := reached(ctx, freed); err != nil {
			return err
		}
		p, err := AllAlloc[uint64](ctx, j, 3, 8)
		if err != nil {
			return err
		}
		if j.Rank() == 2 && p != old {
			return fmt.Errorf("the block is %v, and was %v", p, old)
		}
		if j.Rank() == 0 {
			err = Put(w, p.On(1), 8)
		}
		return errors.Join(err, w.Flush(ctx), j.Barrier(ctx))
	})
	if found := f.some(); len(found) > 0 {
		t.Error(found)
	}
}

// An atomic that was begun is there once its value is, and not before.
func TestTheCheckerKnowsWhoWaitsForAtomics(t *testing.T) {
	for name, test := range map[string]struct {
		end   func(context.Context, *Worker, *Promise[uint64]) error
		wrong bool
	}{
		"not waited for": {func(context.Context, *Worker, *Promise[uint64]) error { return nil }, true},
		"waited for":     {func(ctx context.Context, _ *Worker, p *Promise[uint64]) error { _, err := p.Wait(ctx); return err }, false},
		"tested": {func(ctx context.Context, _ *Worker, p *Promise[uint64]) error {
			return until(ctx, "the value is there", func() bool { done, err := p.Test(); return done || err != nil })
		}, false},
		"flushed": {func(ctx context.Context, w *Worker, _ *Promise[uint64]) error { return w.Flush(ctx) }, false},
	} {
		f := checkedJob(t, 3, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
			switch j.Rank() {
			case 0:
				p := FetchAddAsync(w, At[uint64](2, 64), 7) // added
				if err := test.end(ctx, w, &p); err != nil {
					return err
				}
				if v, err := FetchAdd(w, At[uint64](1, 0), 1); v != 0 || err != nil {
					return fmt.Errorf("the flag was %d: %w", v, err)
				}
			case 1:
				if err := w.WaitUntil(ctx, 0, Equal, 1); err != nil {
					return err
				}
				_, err := Get(w, At[uint64](2, 64)) // got
				return err
			}
			return nil
		})
		if found := f.some(); (len(found) > 0) != test.wrong || test.wrong && !f.between("added", "got") {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// Copies of before an atomic that the worker has begun, and not waited for, need no fence.
func TestTheCheckerKnowsOwnAtomics(t *testing.T) {
	f := checkedJob(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p := At[uint64](1-j.Rank(), 64)
		_, err := Get(w, p)
		a := FetchAddAsync(w, p, 1)
		for range 100 {
			_, got := Get(w, p)
			err = errors.Join(err, got)
		}
		_, added := a.Wait(ctx)
		return errors.Join(err, added)
	})
	if found := f.some(); len(found) > 0 {
		t.Error(found)
	}
}

// Who has waited for a word knows that it is there, however it was written, and so does whom he
// tells. It is no word of what was not released before.
func TestTheCheckerKnowsThatAWordIsThere(t *testing.T) {
	for name, set := range map[string]func(w *Worker, flag Ptr[uint64]) error{
		"put":   func(w *Worker, flag Ptr[uint64]) error { return Put(w, flag, 1) },
		"async": func(w *Worker, flag Ptr[uint64]) error { p := PutAsync(w, flag, 1); return p.err },
		"add":   func(w *Worker, flag Ptr[uint64]) error { return Add(w, flag, 1) },
		"fetch": func(w *Worker, flag Ptr[uint64]) error { _, err := FetchAdd(w, flag, 1); return err },
		"begun": func(w *Worker, flag Ptr[uint64]) error { p := FetchAddAsync(w, flag, 1); return p.err },
	} {
		f := checkedJob(t, 3, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
			flag := At[uint64](1, 0)
			switch j.Rank() {
			case 0:
				return errors.Join(set(w, flag), w.Flush(ctx), w.WaitUntil(ctx, 8, Equal, 1))
			case 1:
				err := errors.Join(w.WaitUntil(ctx, 0, Equal, 1), Put(w, flag, 0), w.Flush(ctx))
				return errors.Join(err, Put(w, At[uint64](2, 8), 1), w.Flush(ctx))
			}
			err := errors.Join(w.WaitUntil(ctx, 8, Equal, 1), Put(w, flag, 2), w.Flush(ctx))
			return errors.Join(err, Put(w, At[uint64](0, 8), 1), w.Flush(ctx))
		})
		if found := f.some(); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// A call that goes through no worker orders, and a worker acquires behind it.
func TestTheCheckerKnowsCallsOfAJob(t *testing.T) {
	table := am.NewTable()
	look := table.Handle("look", func(c *am.Call) { _ = c.Reply() })
	for name, call := range map[string]func(ctx context.Context, j *Job, w *Worker) error{
		"job": func(ctx context.Context, j *Job, _ *Worker) error { _, err := look.Call(ctx, j, 0); return err },
		"endpoint": func(ctx context.Context, j *Job, _ *Worker) error {
			_, err := look.Call(ctx, j.Endpoint(0), 0)
			return err
		},
		"started": func(ctx context.Context, _ *Job, w *Worker) error {
			p, err := look.Start(ctx, w.Endpoint(0), 0, am.Payload{})
			if err == nil {
				_, err = p.Wait(ctx)
			}
			return err
		},
		"waited": func(ctx context.Context, j *Job, _ *Worker) error {
			_, _, err := look.StartWait(ctx, j.Endpoint(0), 0)
			return err
		},
	} {
		written := make(chan struct{})
		f := checkedJob(t, 3, Config{Handlers: table}, func(ctx context.Context, j *Job, w *Worker) error {
			switch j.Rank() {
			case 0:
				err := errors.Join(Put(w, At[uint64](2, 64), 7), w.Flush(ctx))
				close(written)
				return errors.Join(err, j.Barrier(ctx))
			case 1:
				if err := reached(ctx, written); err != nil {
					return err
				}
				err := errors.Join(call(ctx, j, w), w.Acquire())
				if v, got := Get(w, At[uint64](2, 64)); v != 7 {
					err = errors.Join(err, got, fmt.Errorf("got %d", v))
				}
				return errors.Join(err, j.Barrier(ctx))
			}
			return j.Barrier(ctx)
		})
		if found := f.some(); len(found) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// Who waits for a word knows no more of the bytes around it, which the same put writes.
func TestTheCheckerKnowsOnlyAWordIsThere(t *testing.T) {
	f := checkedJob(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 0 {
			return errors.Join(PutSlice(w, At[uint64](1, 64), []uint64{7, 1}), w.Flush(ctx)) // both
		}
		err := errors.Join(w.WaitUntil(ctx, 72, Equal, 1), Put(w, At[uint64](1, 72), 0))
		NoteLoad(w, At[uint64](1, 64), 1) // loaded
		return err
	})
	if found := f.some(); len(found) != 1 || !f.between("both", "loaded") {
		t.Error(found)
	}
}

// A put that its writer has waited for is there, also its word that somebody has found before.
func TestTheCheckerKnowsPutsWhoseWordIsFound(t *testing.T) {
	found := make(chan struct{})
	f := checkedJob(t, 3, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		word := At[uint64](1, 64+8*1023)
		switch j.Rank() {
		case 0:
			all := make([]uint64, 1024)
			all[1023] = 1
			p := PutSliceAsync(w, At[uint64](1, 64), all)
			err := errors.Join(reached(ctx, found), p.Wait(ctx))
			_, told := FetchAdd(w, At[uint64](2, 0), 1)
			return errors.Join(err, told)
		case 1:
			defer close(found)
			return w.WaitUntil(ctx, word.Offset(), Equal, 1)
		}
		err := w.WaitUntil(ctx, 0, Equal, 1)
		_, got := Get(w, word)
		return errors.Join(err, got)
	})
	if found := f.some(); len(found) > 0 {
		t.Error(found)
	}
}

// Memory that a rank's heap gives back for that of all takes along what others did with it.
func TestTheCheckerKnowsWhatHeapsGiveBack(t *testing.T) {
	const most = 48 << 10
	given, freed := make(chan Ptr[byte], 1), make(chan struct{})
	f := checkedJob(t, 3, Config{HeapSize: 64 << 10}, func(ctx context.Context, j *Job, w *Worker) error {
		switch j.Rank() {
		case 1:
			p, err := Alloc[byte](ctx, j, most)
			if err != nil {
				return err
			}
			given <- p
		case 2:
			p := <-given
			if err := errors.Join(Put(w, p.Add(most-1), 1), w.Flush(ctx), Free(ctx, j, p)); err != nil {
				return err
			}
			close(freed)
		}
		if err := reached(ctx, freed); err != nil {
			return err
		}
		p, err := AllAlloc[byte](ctx, j, 3, most)
		if err != nil {
			return err
		}
		if j.Rank() == 0 {
			err = errors.Join(PutSlice(w, p.On(1), make([]byte, most)), w.Flush(ctx))
		}
		return errors.Join(err, j.Barrier(ctx))
	})
	if found := f.some(); len(found) > 0 {
		t.Error(found)
	}
}

// Who goes on to use a block when another rank has freed it, and has it again, is found.
func TestTheCheckerFindsUseOfWhatIsFreed(t *testing.T) {
	given, used := make(chan Ptr[uint64], 1), make(chan struct{})
	f := checkedJob(t, 2, Config{HeapSize: 64 << 10}, func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 1 {
			p := <-given
			err := errors.Join(Put(w, p, 1), w.Flush(ctx)) // used
			close(used)
			return errors.Join(err, j.Barrier(ctx))
		}
		p, err := Alloc[uint64](ctx, j, 8)
		if err != nil {
			return err
		}
		given <- p
		if err := errors.Join(Free(ctx, j, p), reached(ctx, used)); err != nil {
			return err
		}
		again, err := Alloc[uint64](ctx, j, 8)
		if err == nil && again != p {
			err = fmt.Errorf("the block is %v, and was %v", again, p)
		}
		return errors.Join(err, Put(w, again, 2), j.Barrier(ctx)) // had again
	})
	if found := f.some(); len(found) != 1 || !f.between("used", "had again") {
		t.Error(found)
	}
}
