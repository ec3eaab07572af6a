package conduit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// receivesPages is a job with ample bytes, and so many pages that other ranks write.
func receivesPages(pages int) Config {
	cfg := withPayloads(withFetches(withBudget(16), "echo", echoes), "in", (*Payload).Release)
	cfg.Workers, cfg.Memory.ReceiveSize = 2, int64(pages)*int64(pagepool.Size)
	return cfg
}

// Who has bytes and waits for a place where other ranks write is reported like who waits for bytes,
// with who has the places.
func TestAWaitForAPlaceIsAStall(t *testing.T) {
	page := int64(pagepool.Size)
	cfg := receivesPages(2)
	cfg.Memory.Budget.StallAfter = 50 * time.Millisecond
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 1 {
			err := errors.Join(w.Barrier(ctx), SendPayload(ctx, j, 0, "in", make([]byte, page)))
			return errors.Join(err, w.Barrier(ctx))
		}
		get := NewFetchSet(w) // it has bytes, and no place
		FetchSlice(get, At[byte](1, 0), 100)
		FetchFrom[byte](get, 1, "echo", 2*int(page), 100, 1)
		l, err := get.Submit(ctx)
		if err = errors.Join(err, w.Barrier(ctx)); err != nil {
			return err
		}
		b := j.Budget()
		var e *flow.MemoryStallError
		err = soon(ctx, "the stall is counted", func() bool { return b.MemoryStats().Stalls > 0 && errors.As(b.Watch(), &e) })
		if err != nil {
			return err
		}
		if s := b.Stats(); !e.Place || !e.First || e.Owner != "a payload of rank 1" || e.Need != page || len(e.Holders) != 1 || s.Waiting != 1 || s.HeadAge < 50*time.Millisecond {
			err = fmt.Errorf("%v, with %+v", e, s)
		}
		err = errors.Join(err, withWorker(j, func(other *Worker) error {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_, err := fetchPages(short, other, 1, 1)
			return errors.Join(said[*flow.MemoryStallError](err, "of a region", "a worker of rank 0 has held"), wantErr(err, context.DeadlineExceeded))
		}))
		l.Release()
		err = errors.Join(err, w.Barrier(ctx), b.Watch(), unheld(ctx, j))
		if s := b.Stats(); s.Waiting != 0 || s.HeadAge != 0 {
			err = errors.Join(err, fmt.Errorf("nobody waits any more: %+v", s))
		}
		return err
	}))
}

// beginPage posts a set of a page, and begins it, which does not end.
func beginPage(w *Worker, rank int) (*PendingSet, error) {
	set := NewFetchSet(w)
	FetchFrom[byte](set, rank, "echo", int(pagepool.Size), 100, 1)
	p, err := set.Post()
	if err != nil {
		return nil, err
	}
	if l, err := p.Test(); l != nil || err != nil {
		return nil, fmt.Errorf("lease %v: %w", l, err)
	}
	return p, nil
}

// Sets that were begun ahead wait for places in their order: a later one keeps none from an earlier
// one. Begun the other way round it would.
func TestSetsBegunAheadWaitInTheirOrder(t *testing.T) {
	onFabrics(t, 2, receivesPages(2), worked(func(ctx context.Context, j *Job, w *Worker) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		far := 1 - j.Rank()
		l, err := fetchPages(ctx, w, far, 2)
		if err != nil {
			return err
		}
		err = withWorker(j, func(other *Worker) error {
			first, e1 := beginPage(other, far)
			second, e2 := beginPage(other, far)
			if err := errors.Join(e1, e2); err != nil {
				return err
			}
			back := time.AfterFunc(50*time.Millisecond, l.Release)
			defer back.Stop()
			for _, p := range []*PendingSet{first, second} {
				l, err := p.Wait(ctx)
				if err != nil {
					return err
				}
				l.Release()
			}
			return nil
		})
		l.Release()
		if l, e := fetchPages(ctx, w, far, 2); e == nil {
			err = errors.Join(err, withWorker(j, func(other *Worker) error {
				first := NewFetchSet(other)
				FetchFrom[byte](first, far, "echo", int(pagepool.Size), 100, 1)
				p, e1 := first.Post()
				second, e2 := beginPage(other, far)
				if err := errors.Join(e1, e2); err != nil {
					return err
				}
				_, err := p.Wait(ctx)
				second.Cancel()
				return wantErr(err, ErrHoldAndWait)
			}))
			l.Release()
		} else {
			err = errors.Join(err, e)
		}
		return errors.Join(err, w.Barrier(ctx), unheld(ctx, j))
	}))
}

// The end of a budget ends who waits for a place, and who begins to.
func TestAClosedBudgetGivesNoPlace(t *testing.T) {
	cfg := receivesPages(2)
	cfg.Workers = 3
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		far := 1 - j.Rank()
		l, err := fetchPages(ctx, w, far, 2)
		if err != nil {
			return err
		}
		err = withWorker(j, func(first *Worker) error {
			waits, err := beginPage(first, far)
			if err != nil {
				return err
			}
			return withWorker(j, func(second *Worker) error {
				set := NewFetchSet(second)
				FetchFrom[byte](set, far, "echo", 1, 1, 1)
				late, err := set.Post()
				if err != nil {
					return err
				}
				time.AfterFunc(10*time.Millisecond, j.Budget().Close)
				_, err = waits.Wait(ctx)
				err = wantErr(err, ErrBudgetClosed)
				_, e := late.Wait(ctx)
				return errors.Join(err, wantErr(e, ErrBudgetClosed))
			})
		})
		l.Release()
		return errors.Join(err, w.Barrier(ctx), unheld(ctx, j))
	}))
}

// A death ends also who waits for a place, though nobody gives one back.
func TestADeathEndsWhoWaitsForAPlace(t *testing.T) {
	fabrics(t, func(t *testing.T, on Config) {
		cfg := receivesPages(2)
		cfg.Fabric, cfg.Device, cfg.SegmentSize, cfg.Getenv, cfg.CloseTimeout = on.Fabric, on.Device, on.SegmentSize, noEnv, time.Minute
		ctx, cancel := context.WithTimeout(testContext(t), 20*time.Second)
		defer cancel()
		died := errors.New("on purpose")
		var wait sync.WaitGroup
		wait.Add(2)
		body := worked(func(ctx context.Context, j *Job, w *Worker) error {
			if j.Rank() == 2 {
				wait.Wait()
				return died
			}
			waits := sync.OnceFunc(wait.Done)
			defer waits()
			l, err := fetchPages(ctx, w, 1-j.Rank(), 2)
			if err != nil {
				return err
			}
			err = withWorker(j, func(other *Worker) error {
				p, err := beginPage(other, 2)
				if err != nil {
					return err
				}
				waits()
				_, err = p.Wait(ctx)
				return wantErr(err, ErrPeerDown, "rank 2")
			})
			l.Release()
			return errors.Join(err, unheld(ctx, j))
		})
		err := RunLocalConfig(ctx, 3, cfg, func(j *Job) error { return body(ctx, j) })
		if !errors.Is(err, died) || strings.Contains(strings.ReplaceAll(err.Error(), "rank 2: on purpose", ""), "rank 0:") {
			t.Error(err)
		}
	})
}
