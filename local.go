package conduit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/ibconduit/conduit/bootstrap"
)

// RunLocal runs a job of n ranks inside this process: fn is called once per rank, each in a
// goroutine of its own, as Join's caller would be in a process of its own. It serves unit tests,
// and programs that use goroutines as ranks. RunLocal returns when every fn has, with the errors of
// all ranks joined. A rank with an fn that fails, panics, exits (t.FailNow) or calls Abort counts
// as dead: the others find it dead, as if it had been a process.
//
// When ctx ends, whatever a rank waits for fails with its cause. That includes
// the wait in Close, which a rank is in after its fn, until all others have
// returned too: such a rank leaves at once, and RunLocal's error says that it did. Requests of
// package am are the exception, they wait for the context that they were given: give them ctx. A fn
// that waits for nothing of the conduit's has to look at ctx itself.
func RunLocal(ctx context.Context, n int, fn func(*Job) error) error {
	return RunLocalConfig(ctx, n, Config{}, fn)
}

// RunLocalConfig is RunLocal with a configuration that is used by all ranks.
func RunLocalConfig(ctx context.Context, n int, cfg Config, fn func(*Job) error) error {
	if n < 1 {
		return &ConfigError{Field: "n", Value: fmt.Sprint(n), Want: "1 rank or more"}
	}
	if cfg.Bootstrap != nil {
		return &ConfigError{Field: "Bootstrap", Value: "set", Want: "nil: RunLocal brings its own"}
	}
	boots := bootstrap.NewGroup(n)
	cfg.together = &together{}
	errs := make([]error, n)
	var ranks sync.WaitGroup
	for r := range n {
		ranks.Go(func() {
			err := errExited // and that it stays if fn does not return
			defer func() {
				if err != nil {
					errs[r] = fmt.Errorf("rank %d: %w", r, err)
				}
			}()
			c := cfg
			c.Bootstrap = boots[r]
			err = runRank(ctx, c, fn)
		})
	}
	ranks.Wait()
	return errors.Join(errs...)
}

// errExited is the error of a rank with a function that never returned.
var errExited = errors.New("the rank's function ended with runtime.Goexit, as t.FailNow does")

// runRank is the life of one rank of RunLocal.
func runRank(ctx context.Context, cfg Config, fn func(*Job) error) (err error) {
	boot := cfg.Bootstrap
	job, err := joinFor(ctx, ctx, cfg)
	if err != nil {
		boot.Abort(1, err.Error())
		return err
	}
	defer context.AfterFunc(ctx, func() { job.members.endOver(errCancelled(ctx)) })()
	err = errExited
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		// Abort marks this rank as dead.
		if a := job.aborted.Load(); a != nil {
			job.members.advance(dead)
			boot.Abort(a.Code, a.Msg)
		} else if err != nil {
			job.members.advance(dead)
			boot.Abort(1, err.Error())
		}
		err = errors.Join(err, job.workers.closeAll())
		if closed := job.Close(); !errors.Is(err, closed) { // fn may have returned it
			err = errors.Join(err, closed)
		}
		if a := job.aborted.Load(); a != nil { // also by a handler in Close
			err = errors.Join(a, err)
		}
	}()
	return fn(job)
}
