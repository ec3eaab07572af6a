package conduit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// slowLane never completes a get or an atomic before ready is set.
type slowLane struct {
	fabric.Lane
	dst       []byte
	ready     bool
	abandoned []fabric.Handle
	getErr    error
}

func (l *slowLane) Mapped(int) []byte { return nil }

func (l *slowLane) Get(_ int, _ uint64, dst []byte, _ fabric.Flag) (fabric.Handle, error) {
	l.dst = dst
	if l.getErr != nil {
		return fabric.Done, l.getErr
	}
	return 7, nil
}

func (l *slowLane) Wait(ctx context.Context, _ fabric.Handle) (uint64, error) {
	if !l.ready {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	return 0, nil
}

func (l *slowLane) Atomic(int, uint64, fabric.Atomic, fabric.Flag) (uint64, fabric.Handle, error) {
	return 0, 7, nil
}

func (l *slowLane) Abandon(h fabric.Handle) { l.abandoned = append(l.abandoned, h) }

func (l *slowLane) Test(fabric.Handle) (uint64, bool, error) { return 0, l.ready, nil }

// slow makes a worker of a job of one rank reach everything through a slowLane.
func slow(t *testing.T, fn func(w *Worker, l *slowLane) error) {
	t.Helper()
	runLocal(t, 1, Config{Fabric: FabricSHM, SegmentSize: 1 << 20}, worked(func(_ context.Context, j *Job, w *Worker) error {
		l := &slowLane{Lane: w.lanes[0]}
		w.lanes[0], w.byNet[0] = l, l
		w.refresh()
		return fn(w, l)
	}))
}

func TestAPromiseOutlivesAWaitThatItsContextEnds(t *testing.T) {
	slow(t, func(w *Worker, l *slowLane) error {
		p := GetAsync(w, At[int64](0, 0))
		cause := errors.New("enough of this")
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		if _, err := p.Wait(ctx); !errors.Is(err, cause) {
			t.Errorf("wait: %v", err)
		}
		first := l.dst
		GetAsync(w, At[int64](0, 8)) // must not arrive where the first one does
		if &first[0] == &l.dst[0] {
			t.Error("the place of a get in flight was given to another")
		}
		first[0], l.ready = 42, true
		if v, err := p.Wait(context.Background()); v != 42 || err != nil {
			t.Errorf("waited for again: %d, %v", v, err)
		}
		return nil
	})
}

func TestAPromiseOutlivesACallOfASecondGoroutine(t *testing.T) {
	if !owner.Checked {
		t.Skip("calls of a second goroutine are refused with -tags debug only")
	}
	slow(t, func(w *Worker, l *slowLane) error {
		p := GetAsync(w, At[int64](0, 0))
		if err := w.guard.Enter(); err != nil { // as if another goroutine were inside
			return err
		}
		_, terr := p.Test()
		_, werr := p.Wait(context.Background())
		w.guard.Exit()
		if !errors.Is(terr, ErrConcurrent) || !errors.Is(werr, ErrConcurrent) {
			t.Errorf("test: %v; wait: %v", terr, werr)
		}
		l.dst[0], l.ready = 42, true
		if v, err := p.Wait(context.Background()); v != 42 || err != nil {
			t.Errorf("wait after that: %d, %v", v, err)
		}
		return nil
	})
}

func TestAGetThatFailsHalfWayKeepsItsBuffer(t *testing.T) {
	slow(t, func(w *Worker, l *slowLane) error {
		l.getErr = errors.New("the second piece could not be posted")
		if _, err := Get(w, At[int64](0, 0)); !errors.Is(err, l.getErr) {
			t.Errorf("get: %v", err)
		}
		first := l.dst
		if _, err := Get(w, At[int64](0, 0)); !errors.Is(err, l.getErr) {
			t.Errorf("get: %v", err)
		}
		if &first[0] == &l.dst[0] {
			t.Error("Get used a buffer into which an earlier one may still arrive")
		}
		GetAsync(w, At[int64](0, 0))
		first = l.dst
		GetAsync(w, At[int64](0, 0))
		if &first[0] == &l.dst[0] {
			t.Error("GetAsync used a place where an earlier one may still arrive")
		}
		return nil
	})
}

func TestAPanicEndsAChain(t *testing.T) {
	slow(t, func(w *Worker, l *slowLane) error {
		func() {
			defer func() { recover() }()
			w.Chain(func() error {
				PutNBI(w, At[int64](0, 8), 5)
				panic("in the middle")
			})
		}()
		if v := w.job.Segment()[8]; v != 5 || w.inChain {
			t.Errorf("what was collected before a panic was not posted: %d, %v", v, w.inChain)
		}
		return w.Chain(func() error { return nil })
	})
}

// Ranks leave because of a death, and are found down then: the errors name the death.
func TestCollectivesNameTheRankThatDiedFirst(t *testing.T) {
	ctx := testContext(t)
	died := errors.New("died on purpose")
	err := RunLocalConfig(ctx, 4, Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Getenv: noEnv}, func(j *Job) error {
		if j.Rank() != 3 {
			return j.Barrier(ctx)
		}
		j.members.die(2, died)
		j.members.die(0, errors.New("it left"))
		j.members.die(1, errors.New("it left"))
		var down *PeerDownError
		if err := j.Barrier(ctx); !errors.As(err, &down) || down.Rank != 2 || !errors.Is(err, died) {
			t.Errorf("Barrier: %v, want rank 2 down", err)
		}
		return died
	})
	if !errors.Is(err, died) {
		t.Error(err)
	}
}

// heraldNetwork reports a death while a lane is opened and closed, as verbs
// does when what an earlier lane left in flight fails.
type heraldNetwork struct {
	fabric.Network
	j *Job
}

type heraldLane struct {
	fabric.Lane
	j *Job
}

func (n heraldNetwork) NewLane() (fabric.Lane, error) {
	n.j.members.die(1, errors.New("found out while opening"))
	l, err := n.Network.NewLane()
	return heraldLane{l, n.j}, err
}

func (n heraldNetwork) Close() error { return nil }

func (l heraldLane) Close() error {
	l.j.members.die(2, errors.New("found out while closing"))
	return l.Lane.Close()
}

func TestADeathFoundByAWorkerHangsNothing(t *testing.T) {
	cfg := Config{Fabric: FabricSHM, SegmentSize: 1 << 20, CloseTimeout: 100 * time.Millisecond, Getenv: noEnv}
	err := RunLocalConfig(t.Context(), 3, cfg, func(j *Job) error {
		if j.Rank() != 0 {
			return nil
		}
		(&joining{Job: j}).addNetwork(heraldNetwork{j.networks.all[0], j})
		done := make(chan error, 1)
		go func() { done <- withWorker(j, func(*Worker) error { return nil }) }()
		select {
		case err := <-done:
			if n := len(j.DownRanks()); n != 2 {
				t.Errorf("%d ranks are down", n)
			}
			return err
		case <-time.After(time.Minute):
			panic("NewWorker or Worker.Close hangs")
		}
	})
	// The other ranks are alive: they wait for rank 0, which takes them for dead.
	if err != nil && (!errors.Is(err, context.DeadlineExceeded) || strings.Contains("\n"+err.Error(), "\nrank 0: ")) {
		t.Error(err)
	}
}
