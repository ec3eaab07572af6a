//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// While ibrun waits for whether a stop was for its whole group, it is continued already. On a busy
// machine that may come when it has stopped, which the shell tells: then it is tried again.
func TestAContinuationBeforeTheStopIsNotLost(t *testing.T) {
	for range 10 {
		x := newTerminal(t)
		x.typed(`$IBRUN -n 2 sh -c 'test $IBCONDUIT_RANK = 1 || echo $PPID >$D/ibrun; trap "echo went on >$D/went.$IBCONDUIT_RANK" USR1; ` +
			`echo $$ >$D/rank.$IBCONDUIT_RANK; while :; do sleep 0.02; done'`)
		pids := x.pids("rank.0", "rank.1", "ibrun")
		_ = syscall.Kill(pids[2], syscall.SIGTSTP)
		x.state(true, pids[1:2]) // ibrun is about to stop
		_ = syscall.Kill(pids[2], syscall.SIGCONT)
		_ = syscall.Kill(pids[2], syscall.SIGUSR1) // it forwards this once it goes on
		x.made("went.0", "went.1")
		x.state(false, pids)
		x.key("\x03")
		x.typed("echo co''de $?")
		over := func() bool { return strings.Contains(x.text(), "code 130") }
		x.until("end of the job", func() bool { return over() || strings.Contains(x.text(), "Stopped") })
		if over() {
			return
		}
		_ = syscall.Kill(pids[2], syscall.SIGTERM) // it runs in the background
	}
	t.Error("ibrun had stopped each time before it was continued")
}

// The terminal may become ours between the stop of rank 0 and that of ibrun: the shell, which knows
// of neither, continues nobody.
func TestAStopThatComesTooLateStopsNobody(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'test $IBCONDUIT_RANK = 1 || echo $PPID >$D/ibrun; echo $$ >$D/rank.$IBCONDUIT_RANK; while :; do sleep 0.02; done'`)
	pids := x.pids("rank.0", "rank.1", "ibrun")
	_ = syscall.Kill(pids[0], syscall.SIGSTOP)
	x.state(true, pids[:1])
	_ = syscall.Kill(pids[2], syscall.SIGTTIN)
	x.state(false, pids)
	x.key("\x03")
	x.typed("echo co''de $?")
	x.shows("code 130")
}

// So it is where ibrun is about to stop.
func TestFgRightBehindAReadIsNoStop(t *testing.T) {
	x := newTerminal(t)
	for i := range 5 {
		x.typed(fmt.Sprintf(`$IBRUN -n 2 sh -c 'test $IBCONDUIT_RANK = 1 && exit; echo >$D/reads%d; read x; echo "go""t $x."' & until test -e $D/reads%d; do :; done; fg`, i, i))
		x.typed(fmt.Sprintf("it%d", i))
		x.shows(fmt.Sprintf("got it%d.", i))
	}
}

// A write that the terminal refuses sends its signal again and again until ibrun has stopped: none
// of them stops the job a second time.
func TestAWriteFromTheBackgroundStopsOnce(t *testing.T) {
	x := newTerminal(t)
	x.typed("stty tostop")
	for i := range 6 {
		x.typed(`$IBRUN -n 2 sh -c 'echo te""xt' &`)
		x.foreground()
		x.typed(fmt.Sprintf("echo co''de %d $?", i))
		x.shows(fmt.Sprintf("code %d 0\n", i))
	}
}

// Rank 0, which the terminal stops together with ibrun, stays stopped as the others.
func TestAJobThatWritesStopsWithAllRanks(t *testing.T) {
	x := newTerminal(t)
	x.typed("stty tostop")
	x.typed(`$IBRUN -n 2 sh -c 'echo $$ >$D/rank.$IBCONDUIT_RANK; while :; do echo te""xt; sleep 0.01; done'`)
	pids := x.pids("rank.0", "rank.1")
	from := 0
	for range 4 {
		// ibrun may be told late that it goes on, and a Ctrl-Z before that is none.
		x.until("text of a rank that goes on", func() bool { return strings.Contains(x.text()[from:], "] text") })
		x.key("\x1a")
		x.state(true, pids)
		x.typed("bg; until jobs -s | grep -q .; do sleep 0.01; done; echo sto''pped >$D/stopped")
		x.made("stopped")
		x.state(true, pids)
		if err := os.Remove(filepath.Join(x.dir, "stopped")); err != nil {
			t.Fatal(err)
		}
		x.typed("fg")
		x.state(false, pids)
		from = len(x.text())
	}
	x.key("\x03")
	x.typed("echo co''de $?")
	x.shows("code 130")
}
