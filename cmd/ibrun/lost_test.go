//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// job is an ibrun over the hosts of a cluster whose ranks have written their numbers.
type job struct {
	*terminal // for its waits only
	cmd       *exec.Cmd
	errs      bytes.Buffer
	pids      []int // of the ranks, by rank
}

// begin starts n ranks of a script, in which begun says that a rank has come so far.
func (c *cluster) begin(n int, script string, args ...string) *job {
	c.t.Helper()
	j := &job{terminal: &terminal{t: c.t, dir: c.dir}}
	j.cmd = ibrun(c.t, c.env, append(args, "bash", "-c", `cd "$0"; begun() { echo $$ >new.$IBCONDUIT_RANK; mv new.$IBCONDUIT_RANK rank.$IBCONDUIT_RANK; }; `+script, c.dir)...)
	j.cmd.Stderr = &j.errs
	if err := j.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	for r := range n {
		j.pids = append(j.pids, j.terminal.pids(fmt.Sprintf("rank.%d", r))...)
	}
	return j
}

// end waits for ibrun and for the end of all ranks.
func (j *job) end() (code int) {
	j.t.Helper()
	if err := j.cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		j.t.Fatal(err)
	}
	for r, pid := range j.pids {
		j.until(fmt.Sprintf("end of rank %d, which is process %d", r, pid), func() bool { return gone(pid) })
	}
	return j.cmd.ProcessState.ExitCode()
}

// gone: there is no such process, or nobody has waited for it.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return err != nil || strings.HasPrefix(rest, "Z")
}

// names looks for a host that was lost with its ranks; or, if ibrun did not know yet that these
// run, for one that could not be used.
func (j *job) names(host string) {
	j.t.Helper()
	text := j.errs.String()
	if !strings.Contains(text, "ibrun: host "+host+" is lost, and ranks 1,2 with it: ssh: signal: killed\n") &&
		!strings.Contains(text, "ibrun: launch: host "+host+": ssh: signal: killed\n") {
		j.t.Errorf("%s", text)
	}
}

// The ranks of the host that is lost end though they ignore SIGTERM.
func TestAHostThatGoesAwayIsNamed(t *testing.T) {
	c := newCluster(t, "", wired)
	j := c.begin(3, `test $IBCONDUIT_RANK = 0 || trap "" TERM; begun; exec sleep 600`, "-H", "a,b:2", "--grace", "1s")
	for _, f := range []string{"in.b", "out.b", "pid.b"} {
		_ = syscall.Kill(c.pid(f), syscall.SIGKILL)
	}
	if code := j.end(); code != 255 {
		t.Errorf("code %d, want 255", code)
	}
	j.names("b")
}

// The others learn of it as of a rank's death.
func TestRanksLearnOfAHostThatGoesAway(t *testing.T) {
	c := newCluster(t, "n", wired)
	j := c.begin(3, `test $IBCONDUIT_RANK != 2 || (while ! test -e go; do sleep 0.01; done; kill -9 $(cat in.b out.b pid.b)) & begun; `+
		asRank+`="waits for a loss" exec $R >said.$IBCONDUIT_RANK`, "-H", "a:2,b", "--env", "R="+self)
	j.made("said.0", "said.1")
	if err := os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := j.end(); code != 255 {
		t.Errorf("code %d, want 255", code)
	}
	for _, f := range []string{"said.0", "said.1"} {
		if text, _ := os.ReadFile(filepath.Join(c.dir, f)); !strings.Contains(string(text), "lost 2: bootstrap: rank 2 (") {
			t.Errorf("%s: %s", f, text)
		}
	}
}

func TestAKilledAgentLeavesNothing(t *testing.T) {
	c := newCluster(t, "", direct)
	j := c.begin(3, `begun; exec sleep 600`, "-H", "a,b:2")
	_ = syscall.Kill(c.pid("pid.b"), syscall.SIGKILL)
	if code := j.end(); code != 255 {
		t.Errorf("code %d, want 255", code)
	}
	j.names("b")
}

func TestAKilledIbrunEndsItsHosts(t *testing.T) {
	c := newCluster(t, "", direct)
	j := c.begin(2, `trap "" TERM; begun; exec sleep 600`, "-H", "a,b", "--grace", "1s")
	_ = j.cmd.Process.Kill()
	j.end()
}

func TestSignalsReachTheRanksOfHosts(t *testing.T) {
	c := newCluster(t, "", direct)
	j := c.begin(2, `trap "echo >hup.$IBCONDUIT_RANK once; " HUP; trap "" INT; begun; while :; do sleep 0.02; done`, "-H", "a,b")
	_ = j.cmd.Process.Signal(syscall.SIGHUP)
	j.made("hup.0", "hup.1")
	ibrun := j.cmd.Process.Pid
	_ = syscall.Kill(ibrun, syscall.SIGTSTP)
	j.state(true, append(j.pids, ibrun))
	_ = syscall.Kill(ibrun, syscall.SIGCONT)
	j.state(false, append(j.pids, ibrun))
	_ = j.cmd.Process.Signal(syscall.SIGINT)
	_ = j.cmd.Process.Signal(syscall.SIGUSR1) // the ranks' end, by default
	if code := j.end(); code != 138 {
		t.Errorf("code %d: %s", code, j.errs.String())
	}
}

func TestASecondInterruptKillsRanksOfHosts(t *testing.T) {
	c := newCluster(t, "", direct)
	j := c.begin(2, `trap "echo >int.$IBCONDUIT_RANK once" INT; begun; while :; do sleep 0.02; done`, "-H", "a,b")
	_ = j.cmd.Process.Signal(syscall.SIGINT)
	j.made("int.0", "int.1")
	time.Sleep(300 * time.Millisecond) // two that come at once are one
	_ = j.cmd.Process.Signal(syscall.SIGINT)
	if code := j.end(); code != 137 {
		t.Errorf("code %d: %s", code, j.errs.String())
	}
}

// A host that lets ssh in and then says nothing does not keep ibrun from ending.
func TestIbrunIsInterruptedBeforeHostsAnswer(t *testing.T) {
	c := newCluster(t, "", "test $host = a || exec sleep 600; exec ON")
	j := &job{terminal: &terminal{t: t, dir: c.dir}, cmd: ibrun(t, c.env, "-H", "a,b", "true")}
	j.cmd.Stderr = &j.errs
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	j.made("pid.b")
	_ = j.cmd.Process.Signal(syscall.SIGTERM)
	if code := j.end(); code != 143 || !strings.Contains(j.errs.String(), "terminated before all hosts had answered") {
		t.Errorf("code %d: %s", code, j.errs.String())
	}
}

// Nor does one whose agent answers and then starts nothing, as where a file system does not answer.
func TestIbrunIsInterruptedBeforeRanksStart(t *testing.T) {
	c := newCluster(t, "", `test $host = a || { printf '\nibrun-agent 2\n'; exec sleep 600; }; exec ON`)
	for _, args := range [][]string{{}, {"--timeout", "1s"}} {
		j := &job{terminal: &terminal{t: t, dir: c.dir}, cmd: ibrun(t, c.env, append(args, "--grace", "1s", "-H", "a,b", "sh", "-c", "echo yes >"+c.dir+"/begun; exec sleep 600")...)}
		j.cmd.Stderr = &j.errs
		if err := j.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		want, says := 124, "; hosts that had not answered: "
		if len(args) == 0 {
			j.made("begun")
			want, says = 130, "interrupt before all hosts had answered; awaited: b\n"
			_ = j.cmd.Process.Signal(syscall.SIGINT)
		}
		if code := j.end(); code != want || !strings.Contains(j.errs.String(), says) {
			t.Errorf("code %d: %s", code, j.errs.String())
		}
	}
}

// A job over hosts reads a terminal only while it has it.
func TestAJobOverHostsOnATerminal(t *testing.T) {
	c := newCluster(t, "", direct)
	x := newTerminal(t)
	x.typed("export " + c.env[0][:len("IBCONDUIT_SSH")] + "='" + strings.TrimPrefix(c.env[0], "IBCONDUIT_SSH=") + "'")
	x.typed(`$IBRUN -H a,b sh -c 'echo >$D/rank.$IBCONDUIT_RANK begun; while ! test -e $D/go; do sleep 0.02; done; echo en""ded' &`)
	x.made("rank.0", "rank.1")
	x.typed(`echo the she""lls; echo >go; wait; echo af""ter`)
	x.shows("the shells")
	x.shows("after")
	if text := x.text(); strings.Contains(text, "Stopped") || !strings.Contains(text, "[b 1] ended") {
		t.Error("the job did not run to its end")
	}
	x.typed(`$IBRUN -H a,b sh -c 'echo $IBCONDUIT_RANK as""ks; read x; echo "got $x."'`)
	x.shows("0 asks")
	x.typed("some text")
	x.shows("[a 0] got some text.")
	x.shows("[b 1] got .")
}
