package conduit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// giantRow is an element that fits no message of a collective operation: a reduction of such has
// memory of the budget.
type giantRow [4096]uint64

func addRows(dst, src []giantRow) {
	for i := range dst {
		coll.Sum(dst[i][:], src[i][:])
	}
}

// errEnough ends waits.
var errEnough = errors.New("waited long enough")

// Whoever waits for memory, in a set, a plain claim, a payload or a collective operation, is woken
// by memory and by its context, the last also by the end of its team; and meanwhile messages,
// transfers and other teams go on.
func TestWhoWaitsForMemoryLetsOthersGoOn(t *testing.T) {
	const pages = 64
	table := am.NewTable()
	sum := table.Handle("sum", func(c *am.Call) { _ = c.Reply(c.Arg(0) + c.Arg(1)) })
	cfg := withBudget(pages)
	cfg.Handlers = table
	cfg.Memory.Payloads = map[string]func(*Payload){"in": (*Payload).Release}
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		far, full := 1-j.Rank(), pages*int64(pagepool.Size)
		for _, end := range []string{"memory", "context", "team"} {
			memory := end == "memory"
			team, err := j.Team().Split(ctx, 0, j.Rank())
			if err != nil {
				return err
			}
			if err := j.Budget().Acquire(ctx, full); err != nil {
				return err
			}
			if err := w.Barrier(ctx); err != nil {
				return err
			}
			waiting, stop := context.WithCancelCause(ctx)
			reducing := waiting
			if end == "team" && j.Rank() == 0 { // which the other rank breaks
				reducing = ctx
			}
			rows, want := make([]giantRow, 1), make([]uint64, len(giantRow{}))
			for i := range want {
				rows[0][i], want[i] = uint64(i+j.Rank()), uint64(2*i+1)
			}
			waits := []func() error{
				func() error {
					return withWorker(j, func(w *Worker) error {
						set := NewFetchSet(w)
						FetchSlice(set, At[byte](far, 0), 10_000)
						l, err := set.Submit(waiting)
						if err == nil {
							l.Release()
						}
						return err
					})
				},
				func() error {
					err := j.Budget().Acquire(waiting, 10_000)
					if err == nil {
						j.Budget().Release(10_000)
					}
					return err
				},
				func() error { return SendPayload(waiting, j, far, "in", make([]byte, 100_000)) },
				func() error { return coll.AllReduce(reducing, team, rows, addRows) },
			}
			ended := make(chan error, len(waits))
			for _, f := range waits {
				go func() { ended <- f() }()
			}
			claims := 3 // the other rank's payload is one; of the team the first rank has one
			if j.Rank() == 0 {
				claims++
			}
			err = until(ctx, "all wait for memory", func() bool { return j.Budget().Stats().Waiting == claims })
			for i := uint64(0); i < 50 && err == nil; i++ {
				var r am.Reply
				if r, err = sum.Call(ctx, w, far, i, 1); err == nil && r.Arg(0) != i+1 {
					err = fmt.Errorf("call %d: %d", i, r.Arg(0))
				}
				err = errors.Join(err, Put(w, At[uint64](far, 0), i), w.Flush(ctx), j.Barrier(ctx))
			}
			if n := len(ended); n > 0 {
				err = errors.Join(err, fmt.Errorf("%d waits have ended", n))
			}
			err = errors.Join(err, j.Barrier(ctx)) // nobody has given memory before all have looked
			if memory {
				j.Budget().Release(full)
			} else {
				stop(errEnough)
			}
			for range waits {
				switch e := <-ended; {
				case memory:
					err = errors.Join(err, e)
				case !errors.Is(e, errEnough) && !errors.Is(e, coll.ErrBroken):
					err = errors.Join(err, fmt.Errorf("error %v, want %v", e, errEnough))
				}
			}
			if err = errors.Join(err, j.Barrier(ctx)); !memory { // all have given up
				j.Budget().Release(full)
			} else if !slices.Equal(rows[0][:], want) {
				err = errors.Join(err, errors.New("a wrong sum"))
			}
			stop(nil)
			if err = errors.Join(err, unheld(ctx, j), j.Barrier(ctx)); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A worker that waits for a set, or tests it again and again, takes the data itself: no attendant
// is needed here.
func TestWhoWaitsForASetMakesProgress(t *testing.T) {
	cfg := withFetches(withBudget(8), "echo", echoes)
	cfg.Messages.AttendAfter = time.Hour
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 1 { // answers
			serving, end := context.WithCancel(ctx)
			defer end()
			for _, e := range j.library.all {
				go func() { _ = e.Serve(serving) }()
			}
			return w.Barrier(ctx)
		}
		for _, wait := range []func(*PendingSet) (*Lease, error){
			func(p *PendingSet) (*Lease, error) { return p.Wait(ctx) },
			func(p *PendingSet) (*Lease, error) {
				for {
					if l, err := p.Test(); l != nil || err != nil {
						return l, err
					}
					if err := ctx.Err(); err != nil {
						return nil, err
					}
					runtime.Gosched()
				}
			},
		} {
			set := NewFetchSet(w)
			f := FetchFrom[byte](set, 1, "echo", 100, 100, 3)
			p, err := set.Post()
			if err != nil {
				return err
			}
			l, err := wait(p)
			if err != nil {
				return err
			}
			if err := samePattern(f.Data(), 3); err != nil {
				return err
			}
			l.Release()
		}
		return w.Barrier(ctx)
	}))
}
