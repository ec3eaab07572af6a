package jobtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/launch"
)

// ends are the ways in which rank 1 leaves, and the code of a rank that does.
var ends = map[string]struct {
	do   func()
	code int
}{
	"exit 0":  {func() { os.Exit(0) }, 0},
	"exit 3":  {func() { os.Exit(3) }, 3},
	"panic":   {func() { panic("out of cheese") }, 2},
	"SIGINT":  {func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT); select {} }, 128 + 2},
	"SIGKILL": {func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }, 128 + 9},
}

// exitProgram is a rank of a job whose rank 1 ends at a place in a way, both named by
// IBCONDUIT_TEST_EXIT.
func exitProgram(ctx context.Context, j *conduit.Job) error {
	fmt.Printf("pid %d\n", os.Getpid())
	place, how, _ := strings.Cut(os.Getenv("IBCONDUIT_TEST_EXIT"), "/")
	switch {
	case place == "in Close":
		return exitInClose(ctx, j, ends[how].do)
	case j.Rank() != 1:
		return outlive(ctx, j)
	case place == "before its first use":
		ends[how].do()
	}
	return withWorker(j, func(w *conduit.Worker) error {
		block := make([]byte, 64<<10)
		for i := range 200 {
			if err := conduit.PutSliceNBI(w, conduit.At[byte](2*(i%2), 1<<17), block); err != nil {
				return err
			}
		}
		ends[how].do() // with operations in flight, its own and the others'
		return nil
	})
}

// outlive uses rank 1 until it is found down, and says so.
func outlive(ctx context.Context, j *conduit.Job) error {
	w, err := j.NewWorker()
	if err != nil {
		return err
	}
	defer w.Close()
	w.SetContext(ctx)
	block := make([]byte, 64<<10)
	for err == nil {
		err = conduit.PutSlice(w, conduit.At[byte](1, uint64(j.Rank())<<17), block)
	}
	berr := j.Barrier(ctx)
	for what, err := range map[string]error{"put": err, "barrier": berr} {
		var down *conduit.PeerDownError
		if !errors.As(err, &down) || down.Rank != 1 {
			return fmt.Errorf("%s: %w, want rank 1 down", what, err)
		}
	}
	fmt.Printf("rank %d found rank 1 down\n", j.Rank())
	return err
}

// exitInClose: rank 1 ends while it waits in Close for rank 2, and rank 0 for both.
func exitInClose(ctx context.Context, j *conduit.Job, end func()) error {
	switch j.Rank() {
	case 1:
		go j.Close()
		if err := until(ctx, "it is in Close", func() bool { return inCall("Close") }); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // mostly rank 0 is there then, too
		end()
	case 2:
		return until(ctx, "rank 1 is down", func() bool { return knowsDown(j, 1) })
	}
	return nil
}

// However a rank ends, and wherever: the job ends by itself, long before any of its
// time limits, no process is left, those that needed the rank name it, and the launcher
// returns the code of the rank that ended first without success.
func TestHoweverARankEndsTheCodeIsRight(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg conduit.Config) {
		for _, place := range []string{"before its first use", "with work in flight", "in Close"} {
			for how, end := range ends {
				if cfg.Fabric == conduit.FabricIBV && how != "SIGKILL" && how != "exit 0" {
					continue // to the others' devices the rest is the same
				}
				t.Run(place+"/"+how, func(t *testing.T) {
					env := rankEnv("exit", cfg, "IBCONDUIT_TEST_EXIT="+place+"/"+how, "IBCONDUIT_TEST_CLOSE=1h")
					want := end.code
					if want == 0 && place != "in Close" {
						want = 1 // the others', which miss it
					}
					out, code := launched(t, 3, env)
					if code != want {
						t.Errorf("exit code %d, want %d", code, want)
					}
					found := strings.Count(out, "found rank 1 down\n")
					if place == "in Close" && found+strings.Count(out, ": error:") != 0 || place != "in Close" && found != 2 {
						t.Errorf("%d ranks found rank 1 down", found)
					}
					noneLeft(t, out, 3)
					if t.Failed() {
						t.Log(out)
					}
				})
			}
		}
	})
}

// noneLeft checks that the n processes that printed their numbers are gone.
func noneLeft(t *testing.T, out string, n int) {
	t.Helper()
	for line := range strings.Lines(out) {
		if text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "pid "); ok {
			n--
			if pid, err := strconv.Atoi(text); err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				t.Errorf("process %s is still there", text)
			}
		}
	}
	if n != 0 {
		t.Errorf("%d ranks did not print their number", n)
	}
}

// interrupter sends a signal once a text was written often enough.
type interrupter struct {
	output
	text    string
	times   int
	signal  syscall.Signal // 0: SIGINT
	signals chan os.Signal
}

func (i *interrupter) Write(b []byte) (int, error) {
	n, err := i.output.Write(b)
	if i.times > 0 && strings.Count(i.String(), i.text) >= i.times {
		i.times = 0
		i.signals <- cmp.Or(i.signal, syscall.SIGINT)
	}
	return n, err
}

// An interrupt at the terminal goes to all ranks at once, wherever they are: here one
// computes, one waits in a barrier, one in Close.
func TestAnInterruptEndsAJobWhoseRanksWait(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg conduit.Config) {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		out := &interrupter{text: "pid ", times: 3, signals: make(chan os.Signal, 1)}
		code, err := launch.Run(testContext(t), launch.Config{
			N: 3, Path: exe, Env: rankEnv("wait", cfg, "IBCONDUIT_TEST_CLOSE=1h"), Stdout: out, Stderr: out, Signals: out.signals,
		})
		if err != nil || code != 130 {
			t.Errorf("exit code %d, %v; want 130\n%s", code, err, out.String())
		}
		noneLeft(t, out.String(), 3)
	})
}

// waitProgram waits for ever, each rank in its own way.
func waitProgram(_ context.Context, j *conduit.Job) error {
	fmt.Printf("pid %d\n", os.Getpid())
	switch j.Rank() {
	case 0:
		return nil // into Close
	case 1:
		return j.Barrier(context.Background())
	}
	select {}
}
