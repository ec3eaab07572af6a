package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
)

// Goroutines close a job at the same time, while others send, call, prepare messages and open
// workers, and perhaps a rank dies: all closes end alike, and every message without an error is
// handled.
func TestClosesAtTheSameTimeAreOne(t *testing.T) {
	table := am.NewTable()
	var handled, accepted atomic.Uint64
	post := table.Handle("post", func(*am.Call) { handled.Add(1) })
	late := table.Handle("late", func(c *am.Call) {
		d := c.Defer(time.Second)
		go func() { _ = d.Reply(uint64(d.From())) }()
	})
	fabrics(t, func(t *testing.T, cfg Config) {
		for _, dies := range []bool{false, true} {
			const ranks, closers = 3, 4
			handled.Store(0)
			accepted.Store(0)
			cfg.Handlers, cfg.CloseTimeout, cfg.Getenv = table, time.Minute, noEnv
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			var users sync.WaitGroup
			err := RunLocalConfig(ctx, ranks, cfg, func(j *Job) error {
				var all, holders sync.WaitGroup
				var leaving atomic.Bool
				using, stop := context.WithCancel(ctx)
				defer stop()
				for i := range 5 {
					holds := i >= 3 // a prepared message, or a worker: without them alone a job closes
					if holds {
						holders.Add(1)
					}
					users.Go(func() {
						if holds {
							defer holders.Done()
						}
						// Close waits for half of its time where messages never rest.
						for to, began := i%ranks, time.Now(); time.Since(began) < 200*time.Millisecond; to = (to + 1) % ranks {
							if holds && leaving.Load() || !misuse(using, j, i, to, post, late, &accepted) {
								return
							}
						}
					})
				}
				time.Sleep(time.Duration(j.Rank()) * 3 * time.Millisecond)
				if dies && j.Rank() == 2 {
					j.Abort(3, "in the midst of it")
					leaving.Store(true)
					stop() // others do not answer it any more
					holders.Wait()
					return nil
				}
				var errs [closers]error
				for i := range errs {
					all.Go(func() {
						for errs[i] = j.Close(); errors.Is(errs[i], ErrBusy); errs[i] = j.Close() { // a worker was open, or a message prepared
							time.Sleep(time.Millisecond)
						}
					})
				}
				all.Wait()
				for _, err := range errs {
					if fmt.Sprint(err) != fmt.Sprint(errs[0]) {
						t.Errorf("rank %d: one Close: %v; another: %v", j.Rank(), errs[0], err)
					}
				}
				if _, err := j.NewWorker(); !errors.Is(err, os.ErrClosed) {
					t.Errorf("a worker of a closed job: %v", err)
				}
				return nil
			})
			users.Wait()
			cancel()
			if h, a := handled.Load(), accepted.Load(); !dies && (err != nil || h != a) || dies && ctx.Err() == context.DeadlineExceeded {
				t.Errorf("a rank dies: %v: %v; %d posts were sent, %d handled", dies, err, a, h)
			}
		}
	})
}

// misuse does what user i of a job does to a rank, until that is refused. It reports whether to go
// on.
func misuse(ctx context.Context, j *Job, i, to int, post, late *am.Handler, accepted *atomic.Uint64) bool {
	switch i {
	case 0, 1:
		if err := post.Post(ctx, j, to, 1); err != nil {
			return errors.Is(err, ErrPeerDown) && j.checkOpen() == nil
		}
		accepted.Add(1)
	case 2:
		if _, err := late.Call(ctx, j, to); err != nil {
			return errors.Is(err, ErrPeerDown) && j.checkOpen() == nil
		}
	case 3:
		p, err := post.Prepare(ctx, j, to, 100)
		if err != nil {
			return errors.Is(err, ErrPeerDown) && j.checkOpen() == nil
		}
		if to == 0 {
			p.Cancel()
		} else if err := p.Commit(ctx, 1); err == nil {
			accepted.Add(1)
		}
	case 4:
		w, err := j.NewWorker()
		if err != nil {
			return errors.Is(err, ErrNoWorker)
		}
		_ = w.Close()
	}
	return true
}
