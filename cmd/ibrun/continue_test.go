//go:build linux

package main

import (
	"syscall"
	"testing"
)

// While ibrun waits for whether a stop was for its whole group, it is continued already.
func TestAContinuationBeforeTheStopIsNotLost(t *testing.T) {
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
	x.shows("code 130")
}
