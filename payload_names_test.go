package conduit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
)

// mayComeUnasked waits until another rank may be sent payloads unasked, to a function that takes
// them.
func mayComeUnasked(ctx context.Context, w *Worker, rank int, name string) error {
	if err := SendPayload(ctx, w, rank, name, nil); err != nil { // the first is announced
		return err
	}
	return until(ctx, "the receiver says what may come unasked", func() bool { return mayBeUnasked(w.job, rank, name, 0) })
}

// closed is the function of a rank of joinEach, with the end of its job.
func closed(fn func(context.Context, *Job) error) func(context.Context, *Job) error {
	return func(ctx context.Context, j *Job) error { return errors.Join(fn(ctx, j), j.Close()) }
}

// Ranks may differ in the functions that they have. Also where short payloads go unasked, what has
// no function is an error of its sender.
func TestAMissingNameIsRefusedAtAnyLength(t *testing.T) {
	take := (*Payload).Release
	many := map[string]func(*Payload){"log": take}
	for i := range maxPayloads {
		many[fmt.Sprint("other ", i)] = take
	}
	for what, there := range map[string]map[string]func(*Payload){
		"one name": {"log": take}, "a function that is nil": {"log": take, "work": nil}, "more names than are told": many,
	} {
		t.Run(what, func(t *testing.T) {
			boots := bootstrap.NewGroup(2)
			for rank, err := range joinEach(t, 2, func(r int) Config {
				cfg := withBudget(64)
				cfg.Memory.Budget.Unscheduled = 64 << 10
				cfg.Fabric, cfg.SegmentSize, cfg.Bootstrap = FabricSHM, 4096, boots[r]
				if cfg.Memory.Payloads = there; r == 0 {
					cfg.Memory.Payloads = map[string]func(*Payload){"log": take, "work": take}
				}
				return cfg
			}, closed(worked(func(ctx context.Context, j *Job, w *Worker) error {
				if j.Rank() == 1 {
					return w.Barrier(ctx)
				}
				err := SendPayload(ctx, w, 1, "log", nil)
				if len(there) <= maxPayloads { // else none may
					err = errors.Join(err, mayComeUnasked(ctx, w, 1, "log"))
				}
				for range 20 {
					err = errors.Join(err, SendPayload(ctx, w, 1, "log", make([]byte, 10)))
				}
				for _, n := range []int{0, 1, 100, 1000, 4000, 9000} {
					err = errors.Join(err, said[*am.RefusedError](SendPayload(ctx, w, 1, "work", make([]byte, n)), "no function of this name"))
				}
				return errors.Join(err, w.Barrier(ctx))
			}))) {
				if err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			}
		})
	}
}

// What a payload's sender was told nothing of, its function has taken when Close returns.
func TestCloseWaitsForPayloadsUnasked(t *testing.T) {
	const n = 10
	var taken atomic.Int64
	cfg := withPayloads(withBudget(64), "in", func(p *Payload) {
		if p.Arg(0) == 1 {
			time.Sleep(20 * time.Millisecond) // Close is behind
			taken.Add(1)
		}
		p.Release()
	})
	cfg.Memory.Budget.Unscheduled = 64 << 10
	cfg.CloseTimeout = time.Minute
	fabrics(t, func(t *testing.T, on Config) {
		taken.Store(0)
		boots := bootstrap.NewGroup(2)
		for rank, err := range joinEach(t, 2, func(r int) Config {
			c := cfg
			c.Fabric, c.Device, c.SegmentSize, c.Bootstrap = on.Fabric, on.Device, on.SegmentSize, boots[r]
			return c
		}, func(ctx context.Context, j *Job) error {
			err := worked(func(ctx context.Context, j *Job, w *Worker) error {
				if j.Rank() == 1 {
					return nil
				}
				err := mayComeUnasked(ctx, w, 1, "in")
				for range n {
					err = errors.Join(err, SendPayload(ctx, w, 1, "in", make([]byte, 10), 1))
				}
				return err
			})(ctx, j)
			if err = errors.Join(err, j.Close()); j.Rank() == 1 && taken.Load() != n {
				err = errors.Join(err, fmt.Errorf("%d payloads were taken when Close returned, want %d", taken.Load(), n))
			}
			return err
		}) {
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	})
}
