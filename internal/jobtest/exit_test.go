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

// However a rank ends, and wherever: the job ends by itself, long before any of its time limits,
// those that needed the rank name it, and the launcher returns the code of the rank that ended
// first without success.
func init() {
	for how, end := range ends {
		others := end.code
		if others == 0 {
			others = 1 // of those that miss the rank
		}
		do := func(context.Context, *conduit.Job) { end.do() }
		shm := how != "SIGKILL" && how != "exit 0" // to the others' devices the rest is the same
		endings["before its first use, "+how] = ending{shm: shm, codes: []int{others}, found: 2, part: rank(1, do, outlive)}
		endings["with work in flight, "+how] = ending{shm: shm, codes: []int{others}, found: 2, part: rank(1, inFlight(end.do), outlive)}
		endings["in Close, "+how] = ending{shm: shm, codes: []int{end.code}, quiet: true, part: exitInClose(end.do)}
	}
}

// inFlight ends rank 1 with operations in flight, its own and the others'.
func inFlight(end func()) func(context.Context, *conduit.Job) {
	return func(_ context.Context, j *conduit.Job) {
		err := withWorker(j, func(w *conduit.Worker) error {
			block := make([]byte, 64<<10)
			for i := range 200 {
				if err := conduit.PutSliceNBI(w, conduit.At[byte](2*(i%2), 1<<17), block); err != nil {
					return err
				}
			}
			end()
			return nil
		})
		fmt.Println("rank 1 has not ended:", err)
	}
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
	return err
}

// exitInClose: rank 1 ends while it waits in Close for rank 2, and rank 0 for both.
func exitInClose(end func()) func(context.Context, *conduit.Job) error {
	return func(ctx context.Context, j *conduit.Job) error {
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
}

// dieProgram: rank 1 dies without a word; the others must find out at their
// barrier, at puts and at gets, and name the rank.
func dieProgram(ctx context.Context, j *conduit.Job) error {
	return withWorker(j, func(w *conduit.Worker) error {
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		// It waits for the others to be through the barrier: one that is still in it when rank 1 dies
		// rightly fails.
		if j.Rank() == 1 {
			if err := w.WaitUntil(ctx, 8, conduit.GreaterEqual, 2); err != nil {
				return err
			}
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		if _, err := conduit.FetchAdd(w, conduit.At[uint64](1, 8), 1); err != nil && !errors.Is(err, conduit.ErrPeerDown) {
			return err
		}
		err := j.Barrier(ctx)
		var down *conduit.PeerDownError
		if !errors.As(err, &down) || down.Rank != 1 {
			return fmt.Errorf("barrier with a dead rank: %w", err)
		}
		if _, err = conduit.Get(w, conduit.At[int64](1, 0)); !errors.As(err, &down) || down.Rank != 1 {
			return fmt.Errorf("get from a dead rank: %w", err)
		}
		if err = conduit.Put(w, conduit.At[int64](1, 0), 1); !errors.As(err, &down) || down.Rank != 1 {
			return fmt.Errorf("put to a dead rank: %w", err)
		}
		// The others are as reachable as before.
		alive := 2 - j.Rank()
		if _, err := conduit.FetchAdd(w, conduit.At[int64](alive, 0), 1); err != nil && !errors.Is(err, conduit.ErrPeerDown) {
			return fmt.Errorf("a living rank %d: %w", alive, err)
		}
		if err := j.Barrier(ctx); !errors.Is(err, conduit.ErrPeerDown) && !errors.Is(err, conduit.ErrCollective) {
			return fmt.Errorf("second barrier with a dead rank: %w", err)
		}
		fmt.Printf("rank %d found rank 1 down\n", j.Rank())
		return meetSurvivors(ctx, w)
	})
}

// meetSurvivors waits until all ranks but 1 have come this far: Close waits for
// no rank once one is dead, and one that has left can no longer be reached.
func meetSurvivors(ctx context.Context, w *conduit.Worker) error {
	for _, r := range []int{0, 2} {
		if _, err := conduit.FetchAdd(w, conduit.At[uint64](r, 24), 1); err != nil {
			return fmt.Errorf("a living rank %d: %w", r, err)
		}
	}
	for {
		if err := w.WaitUntil(ctx, 24, conduit.GreaterEqual, 2); !errors.Is(err, conduit.ErrPeerDown) {
			return err
		}
	}
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
