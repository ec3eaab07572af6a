package jobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/handle/handletest"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// The test binary is also the program that the tests start: with IBCONDUIT_TEST_RANK set it is a
// rank.
func TestMain(m *testing.M) {
	switch what := os.Getenv("IBCONDUIT_TEST_RANK"); what {
	case "":
		handletest.VerifyTestMain(m)
	case "ending":
		os.Exit(endingMain(endings, nil))
	case "ending with messages":
		os.Exit(endingMain(messageEndings, exitTable))
	default:
		os.Exit(rankMain(what))
	}
}

// fabrics calls fn as a subtest for each network: shared memory, and verbs where
// there is a device (there must be one in the VM).
func fabrics(t *testing.T, fn func(t *testing.T, cfg conduit.Config)) {
	t.Run(conduit.FabricSHM, func(t *testing.T) { fn(t, conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 4 << 20}) })
	t.Run(conduit.FabricIBV, func(t *testing.T) {
		fn(t, conduit.Config{Fabric: conduit.FabricIBV, Device: rdmatest.Device(t), SegmentSize: 4 << 20})
	})
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// withWorker opens a worker for fn and closes it.
func withWorker(j *conduit.Job, fn func(w *conduit.Worker) error) error {
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

// knowsDown reports whether the job knows that a rank is down.
func knowsDown(j *conduit.Job, rank int) bool { return j.DownRanks()[rank] != nil }

// inCall reports whether a goroutine of this process is in a method of its job.
func inCall(method string) bool {
	stacks := make([]byte, 1<<20)
	return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("conduit.(*Job)."+method+"("))
}
