package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/fabric"
)

// A rank that has returned waits in Close for the others, and is no longer
// there to look at its context.
func TestRunLocalsContextEndsCloseOfAReturnedRank(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.Getenv, cfg.CloseTimeout = noEnv, time.Hour
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		enough := errors.New("enough")
		first := make(chan *Job, 1)
		err := RunLocalConfig(ctx, 2, cfg, func(j *Job) error {
			if j.Rank() == 0 {
				first <- j
				return nil
			}
			j0 := <-first // computes, and asks the conduit for nothing
			time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
			select {
			case <-j0.members.gone:
				return nil
			case <-time.After(30 * time.Second):
				return errors.New("rank 0 still waits")
			}
		})
		if err := wantErr(err, enough, "rank 0: conduit: close: conduit: the job was cancelled: enough"); err != nil {
			t.Error(err)
		}
	})
}

// Ranks that leave because the context has ended are found down by those that still wait.
func TestRunLocalsContextIsTheCauseOfWaits(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.Getenv = noEnv
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		enough := errors.New("enough")
		_ = RunLocalConfig(ctx, 2, cfg, func(j *Job) error { // its errors are those of a rank that was taken for dead
			w, err := j.NewWorker()
			if err != nil {
				return err
			}
			if j.Rank() > 0 {
				return w.Close()
			}
			cancel(enough)
			j.members.die(1, errors.New("it left"))
			if err := w.WaitUntil(context.Background(), 0, Equal, 1); !errors.Is(err, enough) {
				t.Errorf("a wait for a word ended with %v", err)
			}
			if err := j.Barrier(context.Background()); !errors.Is(err, enough) {
				t.Errorf("a wait in a collective operation ends with %v", err)
			}
			return w.Close()
		})
	})
}

func TestRunLocalsContextBoundsWorkers(t *testing.T) {
	slow(t, func(w *Worker, l *slowLane) error {
		ctx, cancel := context.WithCancelCause(context.Background())
		enough := errors.New("enough")
		cancel(enough)
		w.job.life = ctx
		other, err := w.job.NewWorker()
		if err != nil {
			return err
		}
		if other.ctx != ctx {
			t.Error("a worker's calls are not bounded by the job's context")
		}
		w.job.life = context.Background() // or Close would not wait
		return other.Close()
	})
}

// Get, GetSlice, FetchAdd and the others hand their handle back when the worker's
// context ends: no other code can.
func TestABlockingCallAbandonsItsHandleInTheEnd(t *testing.T) {
	slow(t, func(w *Worker, l *slowLane) error {
		ctx, cancel := context.WithCancelCause(context.Background())
		enough := errors.New("enough")
		cancel(enough)
		w.SetContext(ctx)
		p := At[int64](0, 0)
		for what, f := range map[string]func() error{
			"Get":      func() error { _, err := Get(w, p); return err },
			"GetSlice": func() error { return GetSlice(w, make([]int64, 4), p) },
			"FetchAdd": func() error { _, err := FetchAdd(w, p, 1); return err },
		} {
			l.abandoned = nil
			if err := f(); !errors.Is(err, enough) {
				t.Errorf("%s: %v", what, err)
			}
			if len(l.abandoned) != 1 || l.abandoned[0] != 7 {
				t.Errorf("%s abandoned %v", what, l.abandoned)
			}
		}
		return nil
	})
}

// blockedNetwork opens a lane when it is let.
type blockedNetwork struct {
	fabric.Network
	inside, let chan struct{}
}

func (n blockedNetwork) NewLane() (fabric.Lane, error) {
	close(n.inside)
	<-n.let
	return nil, fabric.ErrNoLane
}

func TestAWorkerThatOpensSlowlyDelaysNoOther(t *testing.T) {
	runLocal(t, 1, Config{Fabric: FabricSHM, SegmentSize: 1 << 20}, func(ctx context.Context, j *Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		n := blockedNetwork{j.networks.all[0], make(chan struct{}), make(chan struct{})}
		sound := j.networks.all
		j.networks.all = []fabric.Network{n}
		opened := make(chan error, 1)
		go func() { _, err := j.NewWorker(); opened <- err }()
		<-n.inside
		j.networks.all = sound
		others := make(chan error, 1)
		go func() {
			j.Stats()
			j.OpenWorkers()
			others <- errors.Join(w.Close(), wantErr(j.Close(), ErrBusy, "1 workers"))
		}()
		select {
		case err = <-others:
		case <-time.After(20 * time.Second):
			err = errors.New("other calls wait for NewWorker")
		}
		close(n.let)
		return errors.Join(err, wantErr(<-opened, fabric.ErrNoLane))
	})
}

// lastBarrier looks at the job when the bootstrap's barrier is entered.
type lastBarrier struct {
	bootstrap.Bootstrap
	look func()
}

func (b *lastBarrier) Barrier(ctx context.Context) error {
	if b.look != nil {
		b.look()
	}
	return b.Bootstrap.Barrier(ctx)
}

// receive waits for c, or for the end of ctx.
func receive(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// observed runs a job whose ranks can look at it when they meet in Close, which run calls, and
// returns their errors by rank.
func observed(t *testing.T, ranks int, cfg Config, run func(context.Context, *Job, *lastBarrier) error) []error {
	t.Helper()
	boots := bootstrap.NewGroup(ranks)
	return joinEach(t, ranks, func(r int) Config {
		c := cfg
		c.Bootstrap = &lastBarrier{Bootstrap: boots[r]}
		return c
	}, func(ctx context.Context, j *Job) error { return run(ctx, j, j.boot.(*lastBarrier)) })
}

// No rank may close a lane while another one's words are on their way to it, or wait
// for words of a lane that is closed: all meet where no lane is needed.
func TestClosingRanksMeetBeforeTheyCloseTheirLanes(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		const n = 3
		met := make(chan bool, n)
		cfg.Getenv = noEnv
		errs := observed(t, n, cfg, func(ctx context.Context, j *Job, b *lastBarrier) error {
			b.look = func() {
				j.workers.mu.Lock()
				defer j.workers.mu.Unlock()
				met <- len(j.workers.parts) > 0
			}
			return errors.Join(j.Barrier(ctx), j.Close())
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		if len(met) != n {
			t.Fatalf("%d of %d ranks met once more before they closed", len(met), n)
		}
		for range n {
			if !<-met {
				t.Error("lanes were closed before")
			}
		}
	})
}

// A rank that abandoned a collective operation still lets the others come to the
// end of what they do with it, and takes no longer itself.
func TestCloseAfterAnAbandonedCollectiveWaits(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.CloseTimeout = time.Hour
		first := make(chan *Job, 2)
		runLocal(t, 3, cfg, func(ctx context.Context, j *Job) error {
			if j.Rank() == 0 {
				first <- j
				first <- j
				return wantErr(j.Barrier(collectedFor(ctx, j)), context.DeadlineExceeded)
			}
			return withWorker(j, func(w *Worker) error {
				if err := until(ctx, "rank 0 is in Close", (<-first).inClose); err != nil {
					return err
				}
				v, err := FetchAdd(w, At[uint64](0, 0), 1)
				if err == nil && v > 1 {
					err = errors.New("too much was added")
				}
				return err
			})
		})
	})
}

func TestCloseNamesTheCollectiveItWaitsFor(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.Getenv, cfg.CloseTimeout = noEnv, 20*time.Millisecond
		ctx := testContext(t)
		left := make(chan struct{})
		var closing, barrier error
		_ = RunLocalConfig(ctx, 2, cfg, func(j *Job) error {
			if j.Rank() == 1 {
				<-left // computes, and is in no barrier
				return nil
			}
			defer close(left)
			ended := make(chan error, 1)
			go func() { ended <- j.Barrier(ctx) }()
			if err := until(ctx, "the barrier has begun", j.collecting); err != nil {
				return err
			}
			closing = j.Close()
			barrier = <-ended
			return nil
		})
		err := errors.Join(wantErr(closing, context.DeadlineExceeded, "another collective operation of this rank"), wantErr(barrier, os.ErrClosed))
		if err != nil || strings.Contains(closing.Error(), "not every rank") {
			t.Error(errors.Join(err, closing))
		}
	})
}

// A rank that gives up in Close is gone, whatever its program makes of the error: a rank
// that needs it must not wait for ever.
func TestARankThatGaveUpClosingIsDownForTheOthers(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.CloseTimeout, cfg.Getenv = 50*time.Millisecond, noEnv
		ctx := testContext(t)
		others := make(chan error, 2)
		err := RunLocalConfig(ctx, 3, cfg, func(j *Job) error {
			if j.Rank() == 2 {
				return wantErr(j.Close(), context.DeadlineExceeded, "CloseTimeout")
			}
			others <- wantErr(j.Barrier(ctx), ErrPeerDown, "rank 2")
			return nil
		})
		for range 2 {
			if err := <-others; err != nil {
				t.Error(err)
			}
		}
		if err := wantErr(err, context.DeadlineExceeded, "rank 2: conduit: close"); err != nil {
			t.Error(err)
		}
	})
}

// A rank that dies while the others wait for it in Close costs no more time than it takes to be
// found dead.
func TestCloseDoesNotWaitForTheDead(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		const n = 4
		cfg.CloseTimeout = time.Minute
		others := make(chan *Job, n)
		errs := observed(t, n, cfg, func(ctx context.Context, j *Job, b *lastBarrier) error {
			if j.Rank() != 2 {
				others <- j
				return j.Close()
			}
			for range n - 1 {
				if err := until(ctx, "the others are in Close", (<-others).inClose); err != nil {
					return err
				}
			}
			b.Abort(1, "dies instead of closing")
			j.members.advance(dead)
			return j.Close()
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
}

func TestRunLocalReturnsAnAbort(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		for code, want := range map[int]int{3: 3, 256: 1} {
			err := RunLocal(testContext(t), ranks, func(j *Job) error {
				if j.Rank() == 0 {
					j.Abort(code, "out of cheese")
				}
				return nil
			})
			wantAbort(t, err, want)
			if err != nil && strings.Contains(err.Error(), "closed") {
				t.Errorf("%d ranks: %v", ranks, err)
			}
		}
	}
}

func wantAbort(t *testing.T, err error, code int) {
	t.Helper()
	var abort *bootstrap.AbortError
	if !errors.As(err, &abort) || *abort != (bootstrap.AbortError{Code: code, Msg: "out of cheese"}) {
		t.Errorf("%v, want the abort with code %d", err, code)
	}
}

func TestRunLocalReturnsAnAbortInClose(t *testing.T) {
	for _, ranks := range []int{2, 3} {
		table := am.NewTable()
		var job atomic.Pointer[Job]
		abort := table.Handle("abort", func(*am.Call) {
			for j := job.Load(); !j.members.has(leaving); {
				time.Sleep(time.Millisecond)
			}
			job.Load().Abort(3, "out of cheese")
		})
		ctx := testContext(t)
		err := RunLocalConfig(ctx, ranks, Config{SegmentSize: 4096, Handlers: table}, func(j *Job) error {
			if j.Rank() == 0 {
				job.Store(j)
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			if j.Rank() > 0 {
				return abort.Post(ctx, j, 0)
			}
			return nil
		})
		wantAbort(t, err, 3)
	}
}

func TestRunLocalTellsAnErrorOfCloseOnce(t *testing.T) {
	cfg := Config{Fabric: FabricSHM, SegmentSize: 4096, CloseTimeout: 50 * time.Millisecond, Getenv: noEnv}
	var closed sync.WaitGroup
	closed.Add(1)
	err := RunLocalConfig(testContext(t), 2, cfg, func(j *Job) error {
		if j.Rank() == 1 {
			closed.Wait()
			return nil
		}
		defer closed.Done()
		return j.Close()
	})
	if n := strings.Count(fmt.Sprint(err), "not every rank has called Close"); n != 1 {
		t.Errorf("%v tells it %d times", err, n)
	}
}
