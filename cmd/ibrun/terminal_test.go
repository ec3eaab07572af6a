//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is an interactive shell on a terminal of its own, in a directory of its own.
type terminal struct {
	t      *testing.T
	dir    string
	master *os.File
	mu     sync.Mutex
	seen   bytes.Buffer
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var number int
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		number, _ = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
	})
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, dir: t.TempDir(), master: master}
	shell := exec.Command("bash", "--norc", "--noprofile", "--noediting", "-i")
	shell.Dir = x.dir
	shell.Env = append(os.Environ(), asIbrun+"=1", "PS1=", "IBRUN="+self, "GORACE=atexit_sleep_ms=0", "HISTFILE=")
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			x.mu.Lock()
			x.seen.Write(buf[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = shell.Process.Kill() // the end of the session's leader hangs up the terminal
		_ = shell.Wait()
		master.Close()
		<-read
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", x.text())
		}
	})
	x.typed("stty -echo; export D=$PWD; echo be''gun")
	x.shows("begun")
	return x
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return strings.ReplaceAll(x.seen.String(), "\r\n", "\n")
}

func (x *terminal) typed(line string) { x.key(line + "\n") }

func (x *terminal) key(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// shows waits for a text.
func (x *terminal) shows(what string) {
	x.t.Helper()
	x.until(fmt.Sprintf("%q on the terminal", what), func() bool { return strings.Contains(x.text(), what) })
}

// made waits for files in the directory, which are ready when they are not empty.
func (x *terminal) made(names ...string) {
	x.t.Helper()
	for _, n := range names {
		x.until("file "+n, func() bool { b, _ := os.ReadFile(filepath.Join(x.dir, n)); return len(b) > 0 })
	}
}

func (x *terminal) until(what string, done func() bool) {
	x.t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			x.t.Fatalf("no %s", what)
		}
	}
}

// pids are the ranks' numbers, which they have written to files.
func (x *terminal) pids(names ...string) (all []int) {
	x.t.Helper()
	x.made(names...)
	for _, n := range names {
		b, _ := os.ReadFile(filepath.Join(x.dir, n))
		all = append(all, numbers(x.t, string(b))...)
	}
	return all
}

// state waits until processes are, or are not, stopped.
func (x *terminal) state(stopped bool, pids []int) {
	x.t.Helper()
	for _, pid := range pids {
		x.until(fmt.Sprintf("process %d with stopped = %v", pid, stopped), func() bool { return isStopped(pid) == stopped })
	}
}

// isStopped: so is a shell that waits for a child which was stopped on its way to another program
// (vfork(2)); it is stopped itself when that goes on.
func isStopped(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	if !strings.HasPrefix(rest, "D") {
		return strings.HasPrefix(rest, "T")
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, c := range strings.Fields(string(children)) {
		if n, err := strconv.Atoi(c); err == nil && isStopped(n) {
			return true
		}
	}
	return false
}

// foreground waits until the shell has heard that the job stopped, which is after its last thread
// did: what it takes for running it does not continue.
func (x *terminal) foreground() {
	x.t.Helper()
	x.typed("until jobs -s | grep -q .; do sleep 0.01; done; fg")
}

func TestABackgroundJobRunsToItsEnd(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'sleep 0.3; echo st""ep' & wait; echo en""d`)
	x.shows("end")
	if text := x.text(); !strings.Contains(text, "[0] step") || !strings.Contains(text, "[1] step") || strings.Contains(text, "Stopped") {
		t.Error("the job did not run to its end")
	}
}

// What is typed for the shell while a job runs stays the shell's, and what is typed for rank 0 and
// not read as well.
func TestTheShellKeepsWhatIsTypedForIt(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'while ! test -e $D/first; do sleep 0.01; done' & echo sta""rted`)
	x.shows("started")
	x.typed(`echo mi""ne; echo >first; wait`)
	x.shows("mine")
	x.typed(`$IBRUN -n 2 sh -c 'while ! test -e $D/go; do sleep 0.01; done'`)
	x.typed(`echo later""too`)
	time.Sleep(200 * time.Millisecond)
	if err := os.WriteFile(filepath.Join(x.dir, "go"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	x.shows("latertoo")
}

func TestRankZeroReadsTheTerminal(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'echo $IBCONDUIT_RANK on $(tty); read x; echo "got $x."'`)
	x.shows("0 on /dev/pts/")
	x.typed("some text")
	x.shows("[0] got some text.\n")
	x.shows("[1] got .\n")
}

// A program may open the terminal whatever its input is, as those that ask for a password do.
func TestRankZeroMayOpenTheTerminal(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'test $IBCONDUIT_RANK = 1 || { echo >$D/asks; read x </dev/tty; echo "got $x."; }' </dev/null`)
	x.made("asks")
	x.typed("secret")
	x.shows("[0] got secret.\n")
}

// Other ranks get an error, where they would be stopped and the job would hang.
func TestOtherRanksAreNotStoppedByTheTerminal(t *testing.T) {
	x := newTerminal(t)
	x.typed(`stty tostop; $IBRUN -n 2 --no-prefix sh -c 'test $IBCONDUIT_RANK = 0 || { echo wri""tes; read x </dev/tty || echo fa""ils; }'; stty -tostop; echo en""d`)
	x.shows("writes")
	x.shows("fails")
	x.shows("end")
}

// counting ranks write their numbers, and how many interrupts they have received.
const counting = `n=0; trap 'n=$((n+1)); echo $n >$D/count.$IBCONDUIT_RANK' INT; echo $$ >$D/rank.$IBCONDUIT_RANK; while ! test -e $D/go; do sleep 0.01; done`

// interruptedOnce waits longer than ibrun does to learn whether a signal was for its group.
func (x *terminal) interruptedOnce() {
	x.t.Helper()
	x.made("count.0", "count.1")
	time.Sleep(700 * time.Millisecond)
	for _, n := range []string{"count.0", "count.1"} {
		if b, _ := os.ReadFile(filepath.Join(x.dir, n)); string(b) != "1\n" {
			x.t.Errorf("%s holds %q interrupts, want 1", n, b)
		}
	}
}

func TestCtrlCReachesEachRankOnce(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c '` + strings.ReplaceAll(counting, "'", `'"'"'`) + `'`)
	x.pids("rank.0", "rank.1")
	x.key("\x03")
	x.interruptedOnce()
}

// A signal for ibrun alone, while it has the terminal, reaches rank 0 through ibrun.
func TestAnInterruptOfIbrunReachesEachRankOnce(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'test $IBCONDUIT_RANK = 1 || echo $PPID >$D/ibrun; ` + strings.ReplaceAll(counting, "'", `'"'"'`) + `'`)
	x.pids("rank.0", "rank.1")
	_ = syscall.Kill(x.pids("ibrun")[0], syscall.SIGINT)
	x.interruptedOnce()
}

// pkill -f finds a program by its arguments.
func TestPkillOfIbrunReachesRankZero(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 1 sh -c 'echo $$ >$D/rank.0; echo $PPID >$D/ibrun; while :; do sleep 0.02; done'; echo code $?`)
	pids := x.pids("rank.0", "ibrun")
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[1]))
	for _, path := range children {
		b, _ := os.ReadFile(path)
		for _, pid := range numbers(t, string(b)) {
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); pid != pids[0] && bytes.Contains(line, []byte("ibrun")) {
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
		}
	}
	_ = syscall.Kill(pids[1], syscall.SIGTERM)
	x.shows("code 143")
}

// Only a program that an interrupt has ended ends the shell's loop.
func TestCtrlCEndsAJob(t *testing.T) {
	x := newTerminal(t)
	x.typed(`for i in 1 2; do $IBRUN -n 2 sh -c 'echo $$ >$D/rank.$IBCONDUIT_RANK; exec sleep 600'; echo af""ter; done`)
	x.pids("rank.0", "rank.1")
	x.key("\x03")
	x.typed("echo co''de $?")
	x.shows("code 130")
	if strings.Contains(x.text(), "after") {
		t.Error("the loop went on")
	}
}

// The interrupt comes while ibrun gets ready to tell for whom such are.
func TestCtrlCBeforeRanksStart(t *testing.T) {
	x := newTerminal(t)
	x.typed(`echo $$ >$D/shell; $IBRUN -n 2 sleep 600`)
	children := func(pid int) (all []int) {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, path := range lists {
			b, _ := os.ReadFile(path)
			all = append(all, numbers(t, string(b))...)
		}
		return all
	}
	shell := x.pids("shell")[0]
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); { // it takes a few milliseconds
		if ibrun := children(shell); len(ibrun) == 1 && len(children(ibrun[0])) > 1 { // the guard is the first
			break
		}
	}
	x.until("end of ibrun", func() bool {
		x.key("\x03")
		time.Sleep(time.Second)
		x.typed("echo en''ded")
		time.Sleep(100 * time.Millisecond)
		return strings.Contains(x.text(), "ended")
	})
}

func TestStopAndContinueReachAllRanks(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 3 sh -c 'test $IBCONDUIT_RANK != 0 || echo $PPID >$D/ibrun; echo $$ >$D/rank.$IBCONDUIT_RANK; exec sleep 600'`)
	pids := x.pids("rank.0", "rank.1", "rank.2", "ibrun")
	x.key("\x1a")
	x.state(true, pids)
	x.typed("bg")
	x.state(false, pids)
	_ = syscall.Kill(pids[3], syscall.SIGTSTP) // for ibrun alone
	x.state(true, pids)
	x.foreground()
	x.state(false, pids)
	x.key("\x03")
	x.typed("echo co''de $?")
	x.shows("code 130")
}

// Where ibrun is all that runs on a terminal nobody could continue it, and Ctrl-Z stops it as
// little as any program.
func TestCtrlZWithoutAShellStopsNothing(t *testing.T) {
	for _, how := range []string{"-n 2", "-n 1", "-H localhost,other"} {
		t.Run(how, func(t *testing.T) {
			x := newTerminal(t)
			c := newCluster(t, "", direct)
			x.typed("export " + strings.Replace(c.env[0], "=", "='", 1) + "'")
			x.typed("echo $$ >$D/ibrun; exec $IBRUN " + how + ` sh -c 'trap "echo yes >$D/stop" TSTP; echo yes >$D/rank.$IBCONDUIT_RANK; while ! test -e $D/go; do sleep 0.02; done; echo en""ded'`)
			x.made("rank.0")
			x.key("\x1a")
			if strings.HasPrefix(how, "-n") { // rank 0 is in the group too
				x.made("stop")
			}
			if err := os.WriteFile(filepath.Join(x.dir, "go"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			x.shows("ended")
			pid := x.pids("ibrun")[0]
			x.until("end of ibrun", func() bool { return gone(pid) })
		})
	}
}

func TestAReadFromTheBackgroundStopsTheJob(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'echo $$ >$D/rank.$IBCONDUIT_RANK; test $IBCONDUIT_RANK = 1 && exec sleep 600; while ! test -s $D/rank.1; do sleep 0.01; done; echo $PPID >$D/ibrun; read x; echo "got $x."; kill $(cat $D/rank.1)' &`)
	pids := x.pids("rank.0", "rank.1", "ibrun")
	x.state(true, pids)
	x.foreground()
	x.state(false, pids)
	x.typed("it")
	x.shows("[0] got it.")
}

// What rank 0 leaves behind, in ibrun's group or its own, ends with it as that of others does.
func TestRankZeroLeavesNothingOnTheTerminal(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'sleep 600 & echo $! >$D/left.$IBCONDUIT_RANK; test $IBCONDUIT_RANK = 0 || while ! test -e $D/go; do sleep 0.01; done'`)
	left := x.pids("left.0", "left.1")
	x.until("end of what rank 0 left", func() bool { return syscall.Kill(left[0], 0) != nil })
	x.typed("") // nothing of the shell's was killed
	if err := os.WriteFile(filepath.Join(x.dir, "go"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	x.typed("echo al''ive")
	x.shows("alive")
	if syscall.Kill(left[1], 0) == nil {
		t.Errorf("process %d is still there", left[1])
	}
}

// A pipeline's other members are in the group of ibrun, and none of its business.
func TestThePipelineIsLeftAlone(t *testing.T) {
	x := newTerminal(t)
	x.typed(`$IBRUN -n 2 sh -c 'echo li""ne' | (sleep 0.5; cat; echo ca""t ended)`)
	x.shows("cat ended")
	x.shows("[1] line")
	x.typed(`$IBRUN -n 2 sh -c 'echo wo""rd' > >(sleep 0.5; cat)`)
	x.shows("[0] word")
	x.shows("[1] word")
}
