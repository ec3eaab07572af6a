//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/launch"
	"github.com/ibconduit/conduit/internal/proctest"
)

// The test binary is also ibrun, and a rank of a job: what it is to be stands
// in the environment.
const (
	asIbrun = "IBCONDUIT_TEST_IBRUN"
	asRank  = "IBCONDUIT_TEST_RANK"

	joinTimeout = "IBCONDUIT_TEST_JOIN_TIMEOUT"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asRank) == "counts":
		os.Exit(counts())
	case os.Getenv(asRank) == "messages":
		os.Exit(messages())
	case os.Getenv(asRank) == "conduit":
		os.Exit(whole())
	case os.Getenv(asRank) != "":
		os.Exit(rank(os.Getenv(asRank)))
	case os.Getenv(asIbrun) != "":
		main()
	default:
		goleak.VerifyTestMain(m)
	}
}

// counts is a rank of the tests of --preload, where the build has memory events.
var counts = func() int { return 1 }

// rank joins the job that ibrun made, and then does what the test wants.
func rank(what string) int {
	me := os.Getenv("IBCONDUIT_RANK")
	if what == "rank 1 never joins" && me == "1" {
		awaitEnds(2)
		return 0
	}
	if a, ok := absences[what]; ok {
		a.before(me)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, ok := outlived[what]; ok {
		fmt.Println(outlive(ctx, what))
		return 99
	}
	timeout, _ := time.ParseDuration(os.Getenv(joinTimeout)) // else the default
	b, err := bootstrap.New(ctx, bootstrap.Options{Timeout: timeout})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	got, err := b.Exchange(ctx, []byte("blob of "+me))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if what == "waits for a loss" {
		fmt.Println("waits")
		l := <-b.Lost()
		fmt.Printf("lost %d: %v\n", l.Rank, l.Cause)
		return 1
	}
	if what == "rank 2 is killed" {
		if me == "2" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		l := <-b.Lost()
		fmt.Printf("survivor: %v\n", l.Cause)
		return 1
	}
	for r, blob := range got {
		if string(blob) != fmt.Sprintf("blob of %d", r) {
			fmt.Printf("rank %d gave %q\n", r, blob)
			return 1
		}
	}
	fmt.Printf("%d of %d by %s\n", b.Rank(), b.Size(), b.Name())
	if err := errors.Join(b.Barrier(ctx), b.Close()); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// self is the test binary.
var self, _ = os.Executable()

func ibrun(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), append(env, asIbrun+"=1", "GORACE=atexit_sleep_ms=0")...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// finish runs ibrun to its end.
func finish(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := ibrun(t, env, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ee := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ee) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func lines(s string) []string {
	l := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	slices.Sort(l)
	return l
}

// watch collects output and closes full when it holds n lines.
type watch struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	n    int
	full chan struct{}
}

func newWatch(n int) *watch { return &watch{n: n, full: make(chan struct{})} }

func (w *watch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := bytes.Count(w.buf.Bytes(), []byte("\n"))
	w.buf.Write(p)
	if before < w.n && bytes.Count(w.buf.Bytes(), []byte("\n")) >= w.n {
		close(w.full)
	}
	return len(p), nil
}

func (w *watch) numbers(t *testing.T) []int {
	t.Helper()
	select {
	case <-w.full:
	case <-time.After(30 * time.Second):
		t.Fatal("the ranks did not start")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return numbers(t, w.buf.String())
}

func numbers(t *testing.T, text string) (pids []int) {
	t.Helper()
	for _, f := range strings.Fields(text) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func TestJobOfRealRanksMeets(t *testing.T) {
	code, out, errs := finish(t, []string{asRank + "="}, "-n", "8", "--env", asRank+"=exchange", self)
	var want []string
	for r := range 8 {
		want = append(want, fmt.Sprintf("[%d] %d of 8 by launch (IBCONDUIT_RANK)", r, r))
	}
	if code != 0 || !slices.Equal(lines(out), want) || errs != "" {
		t.Errorf("code %d\n%s%s", code, out, errs)
	}
}

func TestSurvivorsAndIbrunNameTheDeadRank(t *testing.T) {
	code, out, errs := finish(t, nil, "-n", "4", "--env", asRank+"=rank 2 is killed", self)
	if code != 137 {
		t.Errorf("code %d, want 137; %s", code, errs)
	}
	if n := strings.Count(out, "survivor: bootstrap: rank 2 ("); n != 3 {
		t.Errorf("%d of 3 survivors reported it:\n%s", n, out)
	}
	if !strings.Contains(errs, "ibrun: rank 2 (pid ") || !strings.Contains(errs, "): signal: killed") {
		t.Errorf("%s", errs)
	}
}

func TestRankThatNeverJoinsIsNamedByTheOthers(t *testing.T) {
	for _, timeout := range []string{"1s", "4s", "16s"} { // a busy machine may need more
		code, out, _ := finish(t, nil, "-n", "3", "--grace", "20s", "--env", asRank+"=rank 1 never joins", "--env", joinTimeout+"="+timeout, self)
		if timeout != "16s" && !strings.Contains(out, "2 of 3 ranks arrived") {
			continue
		}
		if n := strings.Count(out, "2 of 3 ranks arrived within "+timeout+"; missing rank 1"); n != 2 || code != 1 {
			t.Errorf("code %d, %d of 2 reported it:\n%s", code, n, out)
		}
		break
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		errs string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"-n", "3", "sh", "-c", "test $IBCONDUIT_RANK != 1 || exit 3"}, 3, "ibrun: rank 1 (pid "},
		{[]string{"sh", "-c", "kill -SEGV $$"}, 139, "signal: segmentation fault"},
		{[]string{"no-such-program-at-all"}, 127, "no-such-program-at-all"},
		{[]string{"/etc/passwd"}, 126, "permission denied"},
		{[]string{"--timeout", "200ms", "sleep", "60"}, 124, "not finished within 200ms"},
		{nil, 80, "ibrun --help"},
		{[]string{"-n", "0", "true"}, 80, "need at least 1 rank"},
		{[]string{"-n", "9223372036854775807", "true"}, 80, "at most 1048576 ranks"},
		{[]string{"-n", "many", "true"}, 80, "ibrun --help"},
		{[]string{"--env", "novalue", "true"}, 80, "want K=V"},
		{[]string{"--env", "IBCONDUIT_SIZE=5", "true"}, 80, "ibrun itself sets IBCONDUIT_SIZE"},
		{[]string{"--grace", "0s", "true"}, 80, "need a time above 0"},
		{[]string{"--timeout=-5s", "true"}, 80, "need a time above 0"},
		{[]string{"--no-such-flag", "true"}, 80, "unknown flag"},
		{[]string{"--help"}, 0, ""},
	} {
		code, out, errs := finish(t, nil, c.args...)
		if code != c.code || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
			t.Errorf("ibrun %q: code %d, want %d; %s", c.args, code, c.code, errs)
		}
		if len(c.args) > 0 && c.args[0] == "--help" && !strings.Contains(out, "Usage: ibrun") {
			t.Errorf("help: %s", out)
		}
	}
}

func TestTheLimitOfRanksIsThatOfTheBootstrap(t *testing.T) {
	if launch.MaxRanks != bootstrap.MaxRanks {
		t.Errorf("%d ranks are started, %d can meet", launch.MaxRanks, bootstrap.MaxRanks)
	}
}

func TestTooFewDescriptorsSayWhatToRaise(t *testing.T) {
	cmd := ibrun(t, nil)
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `ulimit -n 64 && exec "$0" -n 100 sleep 600`, self}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 126 || !strings.Contains(string(out), "too many open files") || !strings.Contains(string(out), "raise ulimit -n") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestFlagsAfterTheProgramAreTheProgramsOwn(t *testing.T) {
	for _, args := range [][]string{
		{"echo", "-n", "7", "--prefix", "--", "x"},
		{"--", "echo", "-n", "7", "--prefix", "--", "x"},
	} {
		if code, out, errs := finish(t, nil, args...); code != 0 || out != "7 --prefix -- x" {
			t.Errorf("%q: code %d, %q, %s", args, code, out, errs)
		}
	}
}

func TestHabitsOfMpirun(t *testing.T) {
	count := "echo $IBCONDUIT_SIZE $*"
	for want, args := range map[string][]string{
		"2 -np 7\n2 -np 7\n": {"-np", "2", "--no-prefix", "sh", "-c", count, "sh", "-np", "7"},
		"1 --np\n":           {"--np", "1", "--", "sh", "-c", count, "sh", "--np"},
		"2 x\n2 x\n":         {"--env", "A=-np", "--no-prefix", "-np", "2", "--", "sh", "-c", count, "sh", "x"},
	} {
		if code, out, errs := finish(t, nil, args...); code != 0 || out != want {
			t.Errorf("%q: code %d, %q, %s", args, code, out, errs)
		}
	}
	if code, out, errs := finish(t, nil, "--version"); code != 0 || !strings.HasPrefix(out, "ibrun ") || errs != "" {
		t.Errorf("--version: code %d, %q, %s", code, out, errs)
	}
}

func TestEnvMayHoldCommasAndEqualSigns(t *testing.T) {
	if _, out, errs := finish(t, nil, "--env", "A=1,2=3", "--env", "B=", "sh", "-c", `echo "$A|${B-unset}"`); out != "1,2=3|\n" {
		t.Errorf("%q %s", out, errs)
	}
}

func TestPrefix(t *testing.T) {
	for want, args := range map[string][]string{
		"x\n":                     {"echo", "x"},
		"[0] x\n":                 {"--prefix", "echo", "x"},
		"[0] 0\n[1] 1\n":          {"-n", "2", "sh", "-c", "echo $IBCONDUIT_RANK"},
		"0\n1\n":                  {"-n", "2", "--no-prefix", "sh", "-c", "echo $IBCONDUIT_RANK"},
		"[ 0] x\n":                {"-n", "11", "sh", "-c", "test $IBCONDUIT_RANK != 0 || echo x"},
		strings.Repeat("z", 3000): {"sh", "-c", "head -c 3000 /dev/zero | tr '\\0' z"},
	} {
		if code, out, errs := finish(t, nil, args...); code != 0 || !slices.Equal(lines(out), lines(want)) {
			t.Errorf("%q: code %d, %q, want %q; %s", args, code, out, want, errs)
		}
	}
}

func TestStandardErrorStaysApart(t *testing.T) {
	_, out, errs := finish(t, nil, "-n", "2", "sh", "-c", "echo out; echo err >&2")
	if !slices.Equal(lines(out), []string{"[0] out", "[1] out"}) || !slices.Equal(lines(errs), []string{"[0] err", "[1] err"}) {
		t.Errorf("%q %q", out, errs)
	}
}

func TestHugeLineWithoutEndReachesTheOutputWhole(t *testing.T) {
	code, out, errs := finish(t, nil, "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' z")
	if code != 0 || len(out) != 5_000_000 || strings.Trim(out, "z") != "" {
		t.Errorf("code %d, %d bytes; %s", code, len(out), errs)
	}
}

// started runs a script that prints pids, and returns when it has.
func started(t *testing.T, pids int, args ...string) (*exec.Cmd, *bytes.Buffer, []int) {
	t.Helper()
	w, errs := newWatch(pids), &bytes.Buffer{}
	cmd := ibrun(t, nil, args...)
	cmd.Stdout, cmd.Stderr = w, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, errs, w.numbers(t)
}

// endWith ends an ibrun that started by a signal: it exits with the code and the words, and the
// processes whose pids it has printed are gone.
func endWith(t *testing.T, sig syscall.Signal, code int, words string, pids int, args ...string) {
	t.Helper()
	cmd, errs, all := started(t, pids, args...)
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(errs.String(), words) {
		t.Errorf("%v: code %d, want %d and %q; %s", sig, got, code, words, errs)
	}
	proctest.Gone(t, all...)
}

func TestKillingIbrunLeavesNoRank(t *testing.T) {
	endWith(t, syscall.SIGKILL, -1, "", 4, "-n", "4", "--no-prefix", "sh", "-c", "echo $$; trap '' TERM HUP INT; while :; do sleep 0.05; done")
}

func TestKillingIbrunAlsoEndsAJobInsideTheJob(t *testing.T) {
	for range 5 { // which is killed first is chance
		endWith(t, syscall.SIGKILL, -1, "", 4, "-n", "1", "--no-prefix", self, "-n", "2", "--no-prefix", "sh", "-c",
			"setsid sh -c 'echo $$; exec sleep 60' & echo $$; exec sleep 60")
	}
}

func TestInterruptReachesTheRanksAndSetsTheCode(t *testing.T) {
	endWith(t, syscall.SIGINT, 130, "signal: interrupt", 2, "-n", "2", "--no-prefix", "sh", "-c", "echo $$; exec sleep 60")
}

// Of signals that wait together the lower number comes first: SIGHUP is 1.
func TestUnderNohupAHangupReachesNoRank(t *testing.T) {
	cmd := ibrun(t, nil, "-n", "2", "--no-prefix", "sh", "-c", "trap 'exit 0' USR1; echo $$; while :; do sleep 0.05; done")
	w, errs := newWatch(2), &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = w, errs
	cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path = "/bin/sh"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.numbers(t)
	_ = cmd.Process.Signal(syscall.SIGHUP)
	_ = cmd.Process.Signal(syscall.SIGUSR1)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; %s", err, errs)
	}
}

// Shells ignore both for a background job of a script.
func TestIgnoredKeysOfTheTerminalStayIgnored(t *testing.T) {
	cmd := ibrun(t, nil, "-n", "2", "--no-prefix", "sh", "-c", "kill -INT $$; kill -QUIT $$; echo lives")
	cmd.Args = append([]string{"sh", "-c", `trap "" INT QUIT; exec "$0" "$@"`}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path = "/bin/sh"
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "lives\nlives\n" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestSecondInterruptKillsRemainingRanks(t *testing.T) {
	dir := t.TempDir()
	cmd, errs, pids := started(t, 2, "-n", "2", "--no-prefix", "--env", "D="+dir, "sh", "-c",
		"trap '>$D/$IBCONDUIT_RANK' INT; echo $$; while :; do sleep 0.05; done")
	_ = cmd.Process.Signal(syscall.SIGINT)
	deadline := time.Now().Add(30 * time.Second)
	for ranks, _ := os.ReadDir(dir); len(ranks) < 2 && time.Now().Before(deadline); ranks, _ = os.ReadDir(dir) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond) // two that come at once are one
	_ = cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 137 || !strings.Contains(errs.String(), "second interrupt") {
		t.Errorf("code %d; %s", code, errs)
	}
	proctest.Gone(t, pids...)
}

// shows waits until a file holds a number, and prints it.
const shows = "while ! test -s $F; do sleep 0.01; done; cat $F"

// grandchildren are scripts that print the numbers of what they start: one in the rank's
// group, one in a session of its own, and one whose parent has ended too.
var grandchildren = map[string]string{
	"in the group":          "sleep 600 & echo $!",
	"in another session":    "F=$D/$IBCONDUIT_RANK; export F; setsid sh -c 'echo $$ >$F; exec sleep 600' >/dev/null 2>&1 & " + shows,
	"of a parent that left": "F=$D/$IBCONDUIT_RANK; export F; (setsid sh -c '(exec sleep 600) & echo $! >$F' &) ; " + shows,
}

func TestGrandchildrenEndWithTheJob(t *testing.T) {
	for name, script := range grandchildren {
		t.Run(name, func(t *testing.T) {
			code, out, errs := finish(t, nil, "-n", "2", "--no-prefix", "--env", "D="+t.TempDir(), "sh", "-c", script)
			if code != 0 || len(lines(out)) < 2 {
				t.Fatalf("code %d, %q, %s", code, out, errs)
			}
			proctest.Gone(t, numbers(t, out)...)
		})
	}
}

func TestGrandchildrenEndWithAnIbrunThatIsKilled(t *testing.T) {
	for name, script := range grandchildren {
		t.Run(name, func(t *testing.T) {
			endWith(t, syscall.SIGKILL, -1, "", 2, "-n", "2", "--no-prefix", "--env", "D="+t.TempDir(), "sh", "-c", script+"; sleep 600")
		})
	}
}

// The guard is of no use once the job has ended, and ends with it.
func TestTheGuardEndsWithTheJob(t *testing.T) {
	code, out, errs := finish(t, nil, "sh", "-c", `for p in /proc/[0-9]*; do
		tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "^ibrun-guard $IBCONDUIT_JOB " && echo ${p#/proc/}; done; true`)
	if code != 0 || len(lines(out)) != 1 {
		t.Fatalf("code %d, guards %q, %s", code, out, errs)
	}
	pid := numbers(t, out)[0]
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("guard %d is still there: %v", pid, err)
	}
}

func TestRankZeroReadsTheStandardInput(t *testing.T) {
	cmd := ibrun(t, nil, "-n", "2", "cat")
	cmd.Stdin = strings.NewReader("text\n")
	out, err := cmd.Output()
	if err != nil || string(out) != "[0] text\n" {
		t.Errorf("%q, %v", out, err)
	}
}
