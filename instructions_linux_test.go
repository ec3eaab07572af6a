package conduit

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/racetest"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/internal/steptest"
)

// envStepped names the operation that this binary runs again and again, to be stepped.
const envStepped = "IBCONDUIT_TEST_STEPPED"

func init() {
	if name := os.Getenv(envStepped); name != "" {
		program = func() int { return steppedMain(name) }
	}
}

// steppedFor bounds the stepping, which takes seconds unless the machine is very busy. The stepped
// process ends by itself after twice that.
const steppedFor = 4 * time.Minute

// stepped are operations by name. Rank 0 runs a loop of the first function, rank 1 of the second;
// one of them is counted.
var stepped = map[string]struct {
	rank  int
	loops [2]func(ctx context.Context, w *Worker) error
	most  int // instructions: a tenth above what it takes
}{
	"put and back": {0, [2]func(context.Context, *Worker) error{loopPuts, echoPuts}, 582},
	"get":          {0, [2]func(context.Context, *Worker) error{loopGets, idle}, 600},
	"fetch-add":    {0, [2]func(context.Context, *Worker) error{loopAdds, idle}, 575},
}

// operation marks where an operation begins.
//
//go:noinline
func operation() { runtime.KeepAlive(envStepped) }

func loopPuts(ctx context.Context, w *Worker) error {
	for n := uint64(1); ; n++ {
		operation()
		if err := Put(w, At[uint64](1, 0), n); err != nil {
			return err
		}
		if err := w.WaitUntil(ctx, 0, Equal, n); err != nil {
			return err
		}
	}
}

func echoPuts(ctx context.Context, w *Worker) error {
	for n := uint64(1); ; n++ {
		if err := w.WaitUntil(ctx, 0, Equal, n); err != nil {
			return err
		}
		if err := Put(w, At[uint64](0, 0), n); err != nil {
			return err
		}
	}
}

func loopGets(_ context.Context, w *Worker) error {
	for {
		operation()
		if _, err := Get(w, At[uint64](1, 0)); err != nil {
			return err
		}
	}
}

func loopAdds(_ context.Context, w *Worker) error {
	for {
		operation()
		if _, err := FetchAdd(w, At[uint64](1, 0), 1); err != nil {
			return err
		}
	}
}

func idle(ctx context.Context, _ *Worker) error {
	<-ctx.Done()
	return nil
}

// steppedMain runs an operation until it is killed, after the number of the thread that is to be
// stepped.
func steppedMain(name string) int {
	debug.SetGCPercent(-1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*steppedFor)
	defer cancel()
	op := stepped[name]
	cfg := Config{Fabric: FabricIBV, Device: os.Getenv(rdmatest.EnvDevice), SegmentSize: 1 << 20, Getenv: noEnv}
	err := RunLocalConfig(ctx, 2, cfg, func(j *Job) error {
		runtime.LockOSThread()
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		if j.Rank() == op.rank {
			fmt.Println(unix.Gettid())
		}
		return op.loops[j.Rank()](ctx, w)
	})
	fmt.Println(err)
	return 1
}

// What operations cost above the device does not creep up. Times say nothing on a busy machine,
// instructions repeat.
func TestInstructionsOfOperationsAreBounded(t *testing.T) {
	device := rdmatest.Device(t)
	if racetest.Enabled || owner.Checked || testing.CoverMode() != "" || rdmatest.Machine() {
		t.Skip("counts the release build's instructions, natively")
	}
	const operations = 16
	for _, name := range slices.Sorted(maps.Keys(stepped)) {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(cmd.Environ(), envStepped+"="+name, rdmatest.EnvDevice+"="+device, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=4")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }() // it never ends by itself
			var tid int
			if _, err := fmt.Fscan(bufio.NewReader(out), &tid); err != nil {
				t.Fatalf("no thread to be stepped: %v", err)
			}
			most := stepped[name].most
			c, err := steptest.Operations(tid, "github.com/ibconduit/conduit.operation", operations, most, steppedFor)
			if err != nil {
				steptest.Skip(t, err)
				t.Fatal(err)
			}
			if c.Operations == 0 {
				t.Fatalf("no operation ended in %v", steppedFor)
			}
			t.Logf("%d instructions over %d operations, at most %d", c.Own, c.Operations, most)
			if c.Own > most || c.Own < most/2 {
				t.Errorf("%d instructions, want %d to %d:\n%s", c.Own, most/2, most, c)
			}
		})
	}
}
