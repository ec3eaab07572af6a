//go:build linux

package main

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// absence is a job of four ranks some of which end before they join.
type absence struct {
	ends map[string]func()
	last string // the rank that joins only when all others have ended, if any
	says string // by the others
	code int
}

var absences = map[string]absence{
	"rank 2 exits with 0": {ends: map[string]func(){"2": exits(0)}, says: "rank 2 ended before all ranks had arrived: exit status 0", code: 1},
	"rank 2 exits with 3": {ends: map[string]func(){"2": exits(3)}, says: "rank 2 ended before all ranks had arrived: exit status 3", code: 3},
	"rank 2 is shot":      {ends: map[string]func(){"2": shot}, says: "rank 2 ended before all ranks had arrived: signal: killed", code: 137},
	"rank 0 exits with 3": {ends: map[string]func(){"0": exits(3)}, says: "rank 0 ended before all ranks had arrived: exit status 3", code: 3},
	"two exit with 3":     {ends: map[string]func(){"1": exits(3), "3": exits(3)}, says: " ended before all ranks had arrived: exit status 3", code: 3},
	"two, one is rank 0":  {ends: map[string]func(){"0": exits(3), "1": exits(3)}, says: " ended before all ranks had arrived: exit status 3", code: 3},
	"rank 0 comes last":   {ends: map[string]func(){"2": exits(3)}, last: "0", says: "rank 2 ended before all ranks had arrived: exit status 3", code: 3},
	"rank 3 comes last":   {ends: map[string]func(){"2": exits(3)}, last: "3", says: "rank 2 ended before all ranks had arrived: exit status 3", code: 3},
}

func exits(code int) func() { return func() { os.Exit(code) } }

func shot() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }

// before is what a rank does before it joins.
func (a *absence) before(me string) {
	if end := a.ends[me]; end != nil {
		end()
	}
	if me == a.last {
		awaitEnds(3)
	}
}

// awaitEnds waits until so many ranks have ended.
func awaitEnds(n int) {
	fd, _, _ := strings.Cut(os.Getenv("IBCONDUIT_ENDED_FD"), ":")
	for {
		if list, _ := os.ReadFile("/proc/self/fd/" + fd); bytes.Count(list, []byte("\n")) >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Join fails there: otherwise ibrun would end them, after 20 s and without a reason.
func TestRanksThatEndBeforeTheyJoinAreNamed(t *testing.T) {
	for what, a := range absences {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			code, out, errs := finish(t, nil, "-n", "4", "--grace", "20s", "--env", asRank+"="+what, self)
			want := 4 - len(a.ends)
			if n := strings.Count(out, a.says+"\n"); n != want || code != a.code {
				t.Errorf("code %d, want %d; %d of %d ranks say %q:\n%s%s", code, a.code, n, want, a.says, out, errs)
			}
		})
	}
}
