package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// listOf is a launcher's list, to which it may add.
func listOf(t *testing.T, text string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "list"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	add(t, f, text)
	return f
}

func add(t *testing.T, f *os.File, text string) {
	t.Helper()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestTheFirstEndedRankNotArrivedIsNamed(t *testing.T) {
	arrived := func(rank int) bool { return rank == 1 }
	for text, want := range map[string]string{
		"":                                      "",
		"2 exit status 3":                       "", // the rest of the line is to come
		"2 exit status 3\n":                     "bootstrap: rank 2 ended before all ranks had arrived: exit status 3",
		"4 signal: killed\n2 exit status 3\n":   "bootstrap: rank 4 ended before all ranks had arrived: signal: killed",
		"1 exit status 0\n2 signal: killed\n":   "bootstrap: rank 2 ended before all ranks had arrived: signal: killed",
		"-1 exit status 0\nnot a list\n\n 2 \n": "",
	} {
		got := ""
		if e := (&endedList{listOf(t, text)}).first(arrived); e != nil {
			got = e.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestTCPAllNameARankThatEndedBeforeArrival(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "while"} {
		t.Run(when+" the others join", func(t *testing.T) {
			t.Parallel()
			file := listOf(t, "")
			rvs := tcpRanks(t, 4, func(_ int, rv *rendezvous) { rv.ended = &endedList{file} })
			rvs[2] = nil
			if when == "before" {
				add(t, file, "2 exit status 3\n")
			} else {
				time.AfterFunc(2*endedLook, func() { add(t, file, "2 exit status 3\n") })
			}
			_, errs := join(bounded(t), rvs)
			for r, err := range errs {
				if r != 2 {
					refusal(t, fmt.Sprintf("rank %d", r), err, ReasonDied, "bootstrap: rank 2 ended before all ranks had arrived: exit status 3")
				}
			}
		})
	}
}

// Rank 0 may have ended too, or join late: its listener is there, and does not answer.
func TestTCPUnansweredRankNamesTheEndedOne(t *testing.T) {
	t.Parallel()
	file := listOf(t, "2 exit status 3\n0 exit status 1\n")
	rvs := tcpRanks(t, 3, func(_ int, rv *rendezvous) { rv.ended, rv.grace = &endedList{file}, 50*time.Millisecond })
	defer rvs[0].listener.Close()
	_, err := rvs[1].join(bounded(t))
	refusal(t, "rank 1", err, ReasonDied, "bootstrap: rank 2 ended before all ranks had arrived: exit status 3")
}

// joinedWith joins ranks that have the launcher's list.
func joinedWith(t *testing.T, n int, list *os.File) []Bootstrap {
	t.Helper()
	ranks, errs := join(bounded(t), tcpRanks(t, n, func(_ int, rv *rendezvous) {
		own, err := os.Open(list.Name())
		if err != nil {
			t.Fatal(err)
		}
		rv.ended = &endedList{own}
	}))
	noErrors(t, errs)
	t.Cleanup(func() { closeAll(ranks) })
	return ranks
}

// The deaths may come together with that of rank 0, which then has not reported them, or later.
func TestTCPDeathsAreFoundWithoutRankZero(t *testing.T) {
	t.Parallel()
	list := listOf(t, "")
	ranks := joinedWith(t, 4, list)
	for _, dead := range []int{0, 2, 3} {
		die(ranks[dead])
		add(t, list, fmt.Sprintf("%d signal: killed\n", dead))
		l := lossOf(t, ranks[1])
		wantLost(t, 1, l.Cause, dead, io.EOF)
		if want := "bootstrap: rank 2 went away: the process ended: signal: killed"; dead == 2 && l.Cause.Error() != want {
			t.Errorf("%q, want %q", l.Cause, want)
		}
	}
}

// A rank that is slow to close reads that the others have ended.
func TestTCPAnOrderlyEndIsNoLoss(t *testing.T) {
	t.Parallel()
	list := listOf(t, "")
	ranks := joinedWith(t, 3, list)
	noErrors(t, []error{ranks[0].Close(), ranks[2].Close()})
	add(t, list, "0 exit status 0\n2 exit status 0\n")
	if err := ranks[1].Barrier(bounded(t)); !errors.Is(err, ErrLeft) { // it has noticed
		t.Errorf("barrier of the last rank: %v", err)
	}
	time.Sleep(2 * endedLook)
	noErrors(t, []error{ranks[1].Close()})
	if l, ok := <-ranks[1].Lost(); ok {
		t.Errorf("an orderly end is taken for a loss: %v", l)
	}
}

func TestAwaitingAnEndEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(bounded(t))
	time.AfterFunc(2*endedLook, cancel)
	if e := (&endedList{listOf(t, "")}).await(ctx, nil); e != nil {
		t.Error(e)
	}
}
