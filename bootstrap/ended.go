package bootstrap

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"
)

// endedLook is how often a rank that joins, or that has lost rank 0, reads which ranks have ended.
const endedLook = 100 * time.Millisecond

// endedMost is how much of the launcher's list is read, in bytes.
const endedMost = 1 << 20

// endedList is a file in which the launcher names the ranks that have ended, in their order, as "2
// exit status 3\n": nothing else reports a rank that ends before it has connected, or once rank 0
// is lost. nil: the launcher gave none.
type endedList struct{ file *os.File }

// openEnded takes the list that the launcher gave. As with the life pipe, a missing one is no
// error.
func openEnded(env environment) *endedList {
	const variable = "IBCONDUIT_ENDED_FD"
	spec := env.get(variable)
	if spec == "" {
		return nil
	}
	f, err := adoptFD(variable, spec)
	if err != nil {
		return nil
	}
	return &endedList{f}
}

func (l *endedList) close() {
	if l != nil {
		_ = l.file.Close()
	}
}

// await returns why the job cannot start once a rank has ended that had not arrived, or nil when
// the context ends.
func (l *endedList) await(ctx context.Context, arrived func(rank int) bool) *JoinError {
	if l == nil {
		return nil
	}
	look := time.NewTicker(endedLook)
	defer look.Stop()
	for {
		if e := l.first(arrived); e != nil {
			return e
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// first names the first rank that has ended and had not arrived.
func (l *endedList) first(arrived func(rank int) bool) *JoinError {
	for rank, how := range l.all() {
		if !arrived(rank) {
			return &JoinError{Reason: ReasonDied, Ranks: []int{rank},
				Text: fmt.Sprintf("rank %d ended before all ranks had arrived: %s", rank, how)}
		}
	}
	return nil
}

// all is each rank that has ended, and how.
func (l *endedList) all() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		// ReadAt: all ranks share the file and its offset.
		text, _ := io.ReadAll(io.NewSectionReader(l.file, 0, endedMost))
		for line := range strings.Lines(string(text)) {
			number, how, _ := strings.Cut(line, " ")
			rank, err := strconv.ParseUint(number, 10, 31)
			how, whole := strings.CutSuffix(how, "\n")
			if err == nil && whole && !yield(int(rank), how) {
				return
			}
		}
	}
}

// follow reports all ranks that have ended, again and again, until done is closed.
func (l *endedList) follow(done <-chan struct{}, report func(rank int, how string)) {
	if l == nil {
		return
	}
	look := time.NewTicker(endedLook)
	defer look.Stop()
	for {
		for rank, how := range l.all() {
			report(rank, how)
		}
		select {
		case <-look.C:
		case <-done:
			return
		}
	}
}

// unlessEnded ends the context of a rank that dials when any rank has ended: the job cannot start
// any more. It waits first for rank 0 to report it, which may know more; but rank 0 may have ended
// too, or join late.
func (l *endedList) unlessEnded(ctx context.Context, timeout time.Duration) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	go func() {
		e := l.await(ctx, func(int) bool { return false })
		if e == nil {
			return
		}
		t := time.NewTimer(timeout)
		defer t.Stop()
		select {
		case <-t.C:
			end(e)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil) }
}
