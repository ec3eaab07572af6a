//go:build linux && cgo

package softverbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// programs are what ranks do. Rank 1 says that it is there, and waits for what rank 0 puts, which
// the faults hit: not while rank 1 still joins.
var programs = map[string]func(ctx context.Context, rank int, w *conduit.Worker) error{
	"puts":  manyPuts,
	"times": timedPuts,
}

const puts = 500

// meet has rank 0 wait until rank 1 is in its program.
func meet(ctx context.Context, rank int, w *conduit.Worker) error {
	if rank == 0 {
		return w.WaitUntil(ctx, 0, conduit.Equal, 1)
	}
	return conduit.Put(w, conduit.At[uint64](0, 0), 1)
}

// manyPuts of rank 0, one after the other, reach rank 1's word.
func manyPuts(ctx context.Context, rank int, w *conduit.Worker) error {
	if err := meet(ctx, rank, w); err != nil {
		return err
	}
	if rank == 0 {
		for i := range uint64(puts) {
			if err := conduit.Put(w, conduit.At[uint64](1, 0), i+1); err != nil {
				return fmt.Errorf("put %d: %w", i, err)
			}
		}
		return nil
	}
	return w.WaitUntil(ctx, 0, conduit.Equal, puts)
}

// timedPuts prints the least time of ten.
func timedPuts(ctx context.Context, rank int, w *conduit.Worker) error {
	if err := meet(ctx, rank, w); err != nil {
		return err
	}
	if rank == 0 {
		least := time.Hour
		for i := range uint64(10) {
			start := time.Now()
			if err := conduit.Put(w, conduit.At[uint64](1, 0), i+1); err != nil {
				return err
			}
			least = min(least, time.Since(start))
		}
		fmt.Printf("least %d us\n", least.Microseconds())
		return nil
	}
	return w.WaitUntil(ctx, 0, conduit.Equal, 10)
}

// rankMain runs a program as a rank of a job, prints what error it met, and returns the exit code.
func rankMain(program string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	j, err := conduit.Join(ctx, conduit.Config{SegmentSize: 1 << 20, CloseTimeout: 5 * time.Second})
	if err != nil {
		fmt.Println("join:", err)
		return 1
	}
	w, err := j.NewWorker()
	if err == nil {
		w.SetContext(ctx)
		err = errors.Join(programs[program](ctx, j.Rank(), w), w.Close())
	}
	if err != nil {
		fmt.Printf("rank %d: %s: %v\n", j.Rank(), kind(err), err)
		_ = j.Close() // of a job in which something failed
		return 0
	}
	if err := j.Close(); err != nil {
		fmt.Printf("rank %d: close: %v\n", j.Rank(), err)
		return 0
	}
	fmt.Printf("rank %d: done\n", j.Rank())
	return 0
}

// kind is how a program tells the errors apart.
func kind(err error) string {
	var wc *verbs.WCError
	var kinds []string
	for name, is := range map[string]bool{
		"overrun": errors.Is(err, verbs.ErrOverrun), "down": errors.Is(err, fabric.ErrPeerDown), "full": errors.Is(err, unix.ENOMEM),
		"unanswered": errors.As(err, &wc) && wc.Status == verbs.StatusRetryExceeded,
	} {
		if is {
			kinds = append(kinds, name)
		}
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " ")
}

// Each fault on demand reaches the program as the error that it is.
func TestPlantedFaultsAreSeenAsWhatTheyAre(t *testing.T) {
	for name, c := range map[string]struct {
		faults string
		want   []string
	}{
		"none":                        {"", []string{"rank 0: done", "rank 1: done"}},
		"the nth post fails":          {"post=50,node=0,peer=1", []string{"rank 0: down full: ", "refused after 0 were posted"}},
		"a completion queue overruns": {"overrun=50,node=0", []string{"rank 0: overrun: "}},
		"a peer is cut off":           {"cut=50,node=0", []string{"rank 0: down unanswered: "}},
		"a peer dies":                 {"kill=50,node=0", []string{"rank 1: down: "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, _ := withDevice(t, envLauncher+"=puts", "SOFTVERBS_FAULTS="+c.faults)
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in:\n%s", want, out)
				}
			}
		})
	}
}

// A delay is of one direction of one pair, and the wire of all.
func TestDelayAndWireAreSeenInTimes(t *testing.T) {
	for name, c := range map[string]struct {
		env   string
		least int64 // us
	}{
		"wire":        {"SOFTVERBS_WIRE_NS=3000000", 3000},
		"delay":       {"SOFTVERBS_FAULTS=delay=20ms,node=0,peer=1", 20000},
		"other delay": {"SOFTVERBS_FAULTS=delay=20ms,node=0,peer=7", 0},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := withDevice(t, envLauncher+"=times", c.env)
			var least int64 = -1
			for line := range strings.Lines(out) {
				if _, err := fmt.Sscanf(line, "least %d us", &least); err == nil {
					break
				}
			}
			if err != nil || least < c.least || (c.least == 0 && least >= 20000) {
				t.Errorf("%v, least time %d us, want %d us or more:\n%s", err, least, c.least, out)
			}
		})
	}
}

// A plan with a mistake would be a test that tests nothing.
func TestAPlanThatIsNotUnderstoodEndsTheProgram(t *testing.T) {
	for _, plan := range []string{"pots=3", "post=3x", "post=", "kill=0", "delay=5m", "delay=1 ms", "post=50,node=one"} {
		out, err := withDevice(t, envLauncher+"=puts", "SOFTVERBS_FAULTS="+plan)
		if err == nil || !strings.Contains(out, "not understood") {
			t.Errorf("%s: %v:\n%s", plan, err, out)
		}
	}
}
