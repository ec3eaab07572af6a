package conduit

import (
	"context"
	"errors"
	"fmt"
	"testing"
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
		return errors.Join(err, j.Barrier(ctx))
	})
	if found := f.some(); len(found) > 0 {
		t.Error(found)
	}
}
