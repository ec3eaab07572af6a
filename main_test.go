package conduit

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/handle/handletest"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestMain(m *testing.M) {
	if program != nil {
		os.Exit(program())
	}
	handletest.VerifyTestMain(m)
}

// program is what this binary is instead of the tests, if a test has started it so.
var program func() int

// fabrics calls fn as a subtest for each network: shared memory, and verbs where
// there is a device (there must be one in the VM).
func fabrics(t *testing.T, fn func(t *testing.T, cfg Config)) {
	t.Run(FabricSHM, func(t *testing.T) { fn(t, Config{Fabric: FabricSHM, SegmentSize: 4 << 20}) })
	t.Run(FabricIBV, func(t *testing.T) {
		fn(t, Config{Fabric: FabricIBV, Device: rdmatest.Device(t), SegmentSize: 4 << 20})
	})
}

// noEnv hides the process's environment from a configuration.
func noEnv(key string) (string, bool) {
	if key == "IBCONDUIT_CACHE" && *withCache != "" {
		return *withCache, true
	}
	return "", false
}

// withCache has all jobs use a cache that do not look at the environment themselves.
var withCache = flag.String("cache", "", "IBCONDUIT_CACHE of the jobs of all tests")

// runLocal runs a job whose ranks must all succeed.
func runLocal(t testing.TB, n int, cfg Config, fn func(ctx context.Context, j *Job) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if cfg.Getenv == nil {
		cfg.Getenv = noEnv
	}
	cfg.CloseTimeout = cmp.Or(cfg.CloseTimeout, time.Minute) // ranks that have returned wait for the others there
	if err := RunLocalConfig(ctx, n, cfg, func(j *Job) error { return fn(ctx, j) }); err != nil {
		t.Error(err)
	}
}

// onFabrics runs a job on each network.
func onFabrics(t *testing.T, n int, cfg Config, fn func(ctx context.Context, j *Job) error) {
	t.Helper()
	fabrics(t, func(t *testing.T, on Config) {
		c := cfg
		c.Fabric, c.Device, c.SegmentSize = on.Fabric, on.Device, cmp.Or(cfg.SegmentSize, on.SegmentSize)
		runLocal(t, n, c, fn)
	})
}

// worked is the function of a rank that has a worker.
func worked(fn func(ctx context.Context, j *Job, w *Worker) error) func(context.Context, *Job) error {
	return func(ctx context.Context, j *Job) error {
		return withWorker(j, func(w *Worker) error { return fn(ctx, j, w) })
	}
}

// joinEach has n ranks of this process join, each with its configuration, runs those that joined,
// and returns the errors by rank.
func joinEach(t *testing.T, n int, cfg func(rank int) Config, run func(context.Context, *Job) error) []error {
	t.Helper()
	ctx := testContext(t)
	errs := make([]error, n)
	var all sync.WaitGroup
	for r := range n {
		all.Go(func() {
			c := cfg(r)
			if c.Getenv == nil {
				c.Getenv = noEnv
			}
			j, err := Join(ctx, c)
			if err == nil {
				err = run(ctx, j)
			}
			errs[r] = err
		})
	}
	all.Wait()
	return errs
}

// failToJoin has ranks join with configurations of their own, which must all fail.
func failToJoin(t *testing.T, cfgs ...Config) []error {
	t.Helper()
	boots := bootstrap.NewGroup(len(cfgs))
	return joinEach(t, len(cfgs), func(r int) Config {
		c := cfgs[r]
		c.Bootstrap = boots[r]
		return c
	}, func(_ context.Context, j *Job) error {
		t.Errorf("rank %d joined", j.Rank())
		return j.Close()
	})
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// withWorker opens a worker for fn and closes it.
func withWorker(j *Job, fn func(w *Worker) error) error {
	w, err := j.NewWorker()
	if err != nil {
		return err
	}
	return errors.Join(fn(w), w.Close())
}

// pattern fills b with bytes that depend on the seed and the place.
func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(seed*131 + i*7 + i>>8)
	}
}

func samePattern(b []byte, seed int) error {
	want := make([]byte, len(b))
	pattern(want, seed)
	if !slices.Equal(b, want) {
		for i := range b {
			if b[i] != want[i] {
				return fmt.Errorf("byte %d of %d is %#x, want %#x", i, len(b), b[i], want[i])
			}
		}
	}
	return nil
}

// until waits for what another rank or goroutine brings about.
func until(ctx context.Context, what string, holds func() bool) error {
	for !holds() {
		if ctx.Err() != nil {
			return fmt.Errorf("never: %s: %w", what, context.Cause(ctx))
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// collecting reports whether the rank is in a collective operation.
func (j *Job) collecting() bool { return j.coll.Running() > 0 }

// collectedFor is a context that ends, as by a deadline, once the rank is in a collective
// operation: how long it takes to get there is not known.
func collectedFor(ctx context.Context, j *Job) context.Context {
	begun, cancel := context.WithCancelCause(ctx)
	go func() {
		_ = until(ctx, "an operation begins", j.collecting)
		cancel(context.DeadlineExceeded)
	}()
	return begun
}

// inClose reports whether the rank has called Close.
func (j *Job) inClose() bool { return j.members.has(leaving) }

// wantErr returns an error unless err matches the target and mentions every text.
func wantErr(err, target error, texts ...string) error {
	if !errors.Is(err, target) {
		return fmt.Errorf("error %v, want one that is %v", err, target)
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			return fmt.Errorf("error %q does not mention %q", err, s)
		}
	}
	return nil
}
