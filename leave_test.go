package conduit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/proctest"
)

// Once a rank is dead Close waits for no other, and a wait for a word of a rank that has left so
// ends.
func TestALeaverBecauseOfADeathIsFoundDown(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.Getenv = noEnv
		ctx := testContext(t)
		found := make(chan error, 1)
		err := RunLocalConfig(ctx, 3, cfg, func(j *Job) error {
			return withWorker(j, func(w *Worker) error {
				switch j.Rank() {
				case 0: // leaves when rank 1 knows of the death
					for {
						if err := w.WaitUntil(ctx, 0, Equal, 1); !errors.Is(err, ErrPeerDown) {
							return err
						}
					}
				case 1:
					found <- waitForLeaver(ctx, w)
					return nil
				}
				return errors.New("out of cheese")
			})
		})
		if err == nil || !strings.Contains(err.Error(), "out of cheese") {
			t.Errorf("%v, want only the error of rank 2", err)
		}
		if err := <-found; err != nil {
			t.Error(err)
		}
	})
}

// waitForLeaver waits for a word that rank 0 never writes.
func waitForLeaver(ctx context.Context, w *Worker) error {
	for _, rank := range []int{2, 0} {
		if err := wantDown(rank, w.WaitUntil(ctx, 8, Equal, 1)); err != nil {
			return err
		}
		if rank == 2 {
			if err := Put(w, At[uint64](0, 0), 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// The death may be one that only this rank has found out, as by Config.Messages.SilentAfter.
func TestALeaverThatAloneKnowsADeathIsFoundDown(t *testing.T) {
	for _, leaver := range []int{0, 2} {
		t.Run(fmt.Sprint("rank ", leaver), func(t *testing.T) {
			overTCP(t, 3, Config{SegmentSize: 4096}, func(ctx context.Context, j *Job) error {
				if j.Rank() == leaver {
					j.members.die(1, errors.New("it says nothing"))
					return j.Close()
				}
				return errors.Join(withWorker(j, func(w *Worker) error {
					if err := w.WaitUntil(ctx, 0, Equal, 1); !errors.Is(err, ErrPeerDown) {
						return fmt.Errorf("%w, want rank %d down", err, leaver)
					}
					if why := j.DownRanks()[leaver]; why == nil || !strings.Contains(why.Error(), "it says nothing") {
						return fmt.Errorf("%v, want rank %d down", j.DownRanks(), leaver)
					}
					return nil
				}), j.Close())
			})
		})
	}
}

// A rank that waits in Close, and knows nothing of the death, leaves for the one that does; what
// both say is why.
func TestARankInCloseIsNotBlamedForADeath(t *testing.T) {
	for _, inClose := range []bool{false, true} {
		t.Run(fmt.Sprintf("in Close %v", inClose), func(t *testing.T) {
			overTCP(t, 4, Config{SegmentSize: 4096}, func(ctx context.Context, j *Job) error {
				switch j.Rank() {
				case 2: // finds rank 1 down
					if inClose { // no other rank reports it
						finds(j, 1, 300*time.Millisecond)
						return wantDown(1, j.Close())
					}
					j.members.die(1, errors.New("it says nothing"))
					return j.Close()
				case 3:
					return j.Close()
				}
				if err := until(ctx, "two ranks are down", func() bool { return len(j.DownRanks()) >= 2 }); err != nil {
					return err
				}
				first, others := j.members.first("wait"), j.DownRanks()
				var down *PeerDownError
				if !errors.As(first, &down) || down.Rank != 2 || !strings.Contains(first.Error(), "it says nothing") || others[3] == nil || !strings.Contains(others[3].Error(), "for rank 2") {
					return fmt.Errorf("%w, %v, want rank 2 down first, and rank 3 for it", first, others)
				}
				return j.Close()
			})
		})
	}
}

// Rank 0 runs the bootstrap's hub: were it gone by then, no rank would learn of one that leaves
// because of a death, or gave up.
func TestRankZeroStaysForTheReasonOfOthers(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"death": 0, "time over": 400 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			cfg := func(rank int) Config {
				if rank == 2 {
					return Config{SegmentSize: 4096, CloseTimeout: timeout}
				}
				return Config{SegmentSize: 4096, CloseTimeout: 10 * timeout}
			}
			overTCPWith(t, 4, cfg, func(ctx context.Context, j *Job) error {
				switch j.Rank() {
				case 2:
					if timeout == 0 {
						finds(j, 1, 300*time.Millisecond)
						return wantDown(1, j.Close())
					}
					if err := j.Close(); !errors.Is(err, context.DeadlineExceeded) {
						return fmt.Errorf("%w, want the end of CloseTimeout", err)
					}
					return nil
				case 0:
					time.Sleep(timeout / 4)
					return j.Close()
				}
				err := withWorker(j, func(w *Worker) error { return awaitDown(ctx, w, 2) })
				_ = j.Close()
				return err
			})
		})
	}
}

// hastyBootstrap has another rank leave, and be found down, in the moment in which this one gives
// up.
type hastyBootstrap struct {
	bootstrap.Bootstrap
	j *Job
}

func (b hastyBootstrap) Barrier(ctx context.Context) error {
	err := b.Bootstrap.Barrier(ctx)
	b.j.members.die(2, bootstrap.ErrLeft)
	return err
}

// Each could take the other's departure for the death that a third one reports: the job would end
// as if all were well.
func TestGivingUpInCloseIsAnErrorBesideADeath(t *testing.T) {
	cfg := Config{Fabric: FabricSHM, SegmentSize: 4096, CloseTimeout: 50 * time.Millisecond, Getenv: noEnv}
	err := RunLocalConfig(testContext(t), 3, cfg, func(j *Job) error {
		if j.Rank() == 0 {
			j.boot = hastyBootstrap{j.boot, j}
		} else {
			for len(j.DownRanks()) == 0 { // rank 0
				time.Sleep(time.Millisecond)
			}
		}
		return nil // into Close
	})
	if err == nil || !strings.Contains(err.Error(), "rank 0: ") || !strings.Contains(err.Error(), "not every rank has called Close") {
		t.Errorf("%v, want that rank 0 waited in vain", err)
	}
}

func wantDown(rank int, err error) error {
	if down := (*PeerDownError)(nil); !errors.As(err, &down) || down.Rank != rank {
		return fmt.Errorf("%w, want rank %d down", err, rank)
	}
	return nil
}

// notComing are jobs of which the last rank does not close; part is what the others do before they
// close.
var notComing = map[string]struct {
	ranks int
	cfg   func(rank int) Config // may be nil
	part  func(*Job)
	runs  int // by chance one of many
}{
	"one finds it, and then rank 0's time is over": {3, nil, func(j *Job) {
		if j.Rank() == 1 {
			time.Sleep(300 * time.Millisecond)
			finds(j, 2, 300*time.Millisecond)
		}
	}, 1},
	"the finder has a handler that takes long": {3, func(int) Config {
		return Config{SegmentSize: 4096, CloseTimeout: 10 * time.Second, Handlers: slowTable}
	}, func(j *Job) {
		if j.Rank() == 0 {
			time.AfterFunc(100*time.Millisecond, func() { _ = slowHandler.Post(context.Background(), j, 1) })
		} else {
			finds(j, 2, 400*time.Millisecond)
		}
	}, 1},
	"one finds it, and in the same moment another one's time is over": {4, func(rank int) Config {
		if rank == 2 {
			return Config{SegmentSize: 4096, CloseTimeout: 100 * time.Millisecond}
		}
		return Config{SegmentSize: 4096, CloseTimeout: 3 * time.Second}
	}, func(j *Job) {
		if j.Rank() == 1 {
			finds(j, 3, 100*time.Millisecond+time.Duration(rand.IntN(600)-200)*time.Microsecond)
		}
	}, 8},
	"one finds it, and then another one ends": {4, nil, func(j *Job) {
		switch j.Rank() {
		case 1:
			finds(j, 3, 200*time.Millisecond)
		case 2:
			time.Sleep(500 * time.Millisecond)
			_ = j.boot.Fail(errors.New("as one that exits")) // which says nothing of the others
		}
	}, 1},
	"a handler keeps Close from its end, which is called again": {2, func(int) Config {
		return Config{SegmentSize: 4096, CloseTimeout: 300 * time.Millisecond, Handlers: slowTable, Messages: am.Config{CloseAfter: 300 * time.Millisecond}}
	}, func(j *Job) {
		go func() { _ = slowHandler.Post(context.Background(), j, 0) }() // of itself
		time.Sleep(50 * time.Millisecond)
		for errors.Is(j.Close(), am.ErrBusy) {
			time.Sleep(10 * time.Millisecond)
		}
	}, 1},
}

var (
	slowTable   = am.NewTable()
	slowHandler = slowTable.Handle("slow", func(*am.Call) { time.Sleep(3 * time.Second) })
)

// finds has only the network of this rank find another one down, a while after this one called
// Close.
func finds(j *Job, rank int, after time.Duration) {
	go func() {
		for !j.members.has(leaving) { // at once, as a rule
			runtime.Gosched()
		}
		time.Sleep(after)
		j.members.die(rank, errors.New("it says nothing"))
	}()
}

// Whatever else ends meanwhile, and whichever rank gives up: if all returned nil the job would look
// well, and its launcher wait for ever.
func TestSomeRankReportsTheOneThatDidNotClose(t *testing.T) {
	for name, c := range notComing {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := c.cfg
			if cfg == nil {
				cfg = func(int) Config { return Config{SegmentSize: 4096, CloseTimeout: time.Second} }
			}
			for range c.runs {
				var others sync.WaitGroup
				others.Add(c.ranks - 1)
				errs := make([]error, c.ranks)
				overTCPWith(t, c.ranks, cfg, func(_ context.Context, j *Job) error {
					if j.Rank() == c.ranks-1 {
						others.Wait()
						_ = j.Close()
						return nil
					}
					defer others.Done()
					c.part(j)
					if err := j.Close(); !errors.Is(err, os.ErrClosed) { // it has not ended before
						errs[j.Rank()] = err
					}
					return nil
				})
				if errors.Join(errs...) == nil {
					t.Error("no rank reported it")
				}
			}
		})
	}
}

// The launcher sees the end of a process, with the code that it has: it is no error of those in
// Close, however slow the bootstrap is.
func TestTheEndOfAProcessIsNoErrorOfClose(t *testing.T) {
	var others sync.WaitGroup
	others.Add(2)
	overTCP(t, 3, Config{SegmentSize: 4096}, func(_ context.Context, j *Job) error {
		if j.Rank() == 2 { // which the bootstrap takes for one that lives
			others.Wait()
			_ = j.Close()
			return nil
		}
		defer others.Done()
		if j.Rank() == 1 {
			time.AfterFunc(100*time.Millisecond, func() { j.members.die(2, fmt.Errorf("it has ended: %w", io.EOF)) })
		}
		return j.Close()
	})
}

// overTCP runs a job of ranks of this process that meet over TCP; run is called when all have
// joined.
func overTCP(t *testing.T, ranks int, cfg Config, run func(context.Context, *Job) error) {
	t.Helper()
	overTCPWith(t, ranks, func(int) Config { return cfg }, run)
}

func overTCPWith(t *testing.T, ranks int, cfg func(rank int) Config, run func(context.Context, *Job) error) {
	t.Helper()
	addr := proctest.HeldAddr(t)
	var joined atomic.Int32
	errs := joinEach(t, ranks, func(r int) Config {
		c := cfg(r)
		c.Getenv = variables(fmt.Sprintf("IBCONDUIT_RANK=%d IBCONDUIT_SIZE=%d IBCONDUIT_ADDR=%s", r, ranks, addr))
		return c
	}, func(ctx context.Context, j *Job) error {
		joined.Add(1)
		if err := until(ctx, "all have joined", func() bool { return int(joined.Load()) == ranks }); err != nil {
			return err
		}
		return run(ctx, j)
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Rank 0 runs the bootstrap's hub. A rank that leaves after it is a loss as well, though no hub
// reports it.
func TestALeaverAfterRankZeroIsFoundDown(t *testing.T) {
	overTCP(t, 3, Config{SegmentSize: 4096, CloseTimeout: 100 * time.Millisecond}, func(ctx context.Context, j *Job) error {
		err := withWorker(j, func(w *Worker) error { return awaitDown(ctx, w, j.Rank()) }) // those before it
		if e := j.Close(); j.Rank() != 0 {
			err = errors.Join(err, e)
		}
		return err
	})
}

// awaitDown returns when n ranks are down.
func awaitDown(ctx context.Context, w *Worker, n int) error {
	for len(w.Job().DownRanks()) < n {
		if err := w.WaitUntil(ctx, 0, Equal, 1); !errors.Is(err, ErrPeerDown) {
			return fmt.Errorf("%w, want %d ranks down; so far: %v", err, n, w.Job().DownRanks())
		}
	}
	return nil
}
