package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/proctest"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result of a job of shell scripts.
type result struct {
	code     int
	err      error
	out, msg string
}

// sh runs n ranks of a script. It is bounded, whatever the script does.
func sh(t *testing.T, n int, script string, change func(*Config)) result {
	t.Helper()
	var out bytes.Buffer
	var messages []string
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cfg := Config{
		N: n, Path: "sh", Args: []string{"-c", script}, Stdout: &out, Stderr: &out,
		Grace: 300 * time.Millisecond, Report: func(m string) { messages = append(messages, m) },
	}
	if change != nil {
		change(&cfg)
	}
	var r result
	r.code, r.err = Run(ctx, cfg)
	r.out, r.msg = out.String(), strings.Join(messages, "\n")
	return r
}

// waits lets a rank of a script come, and wait until another one has come, or is gone: nothing
// else says which of them is quicker. One is gone when the launcher has waited for it.
const waits = `
	come() { echo $$ >new.$IBCONDUIT_RANK; mv new.$IBCONDUIT_RANK pid.$IBCONDUIT_RANK; }
	await() { while ! test -e pid.$1; do sleep 0.01; done; }
	gone() { await $1; while kill -0 $(cat pid.$1) 2>/dev/null; do sleep 0.01; done; }
`

// meet runs n ranks of a script that uses these functions.
func meet(t *testing.T, n int, script string, change func(*Config)) result {
	t.Helper()
	return sh(t, n, waits+script, func(c *Config) {
		c.Dir = t.TempDir()
		if change != nil {
			change(c)
		}
	})
}

// lines sorts the output: ranks write in any order.
func lines(s string) []string {
	l := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	slices.Sort(l)
	return l
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatalf("no number: %q", s)
	}
	return n
}

func numbers(t *testing.T, s string) (all []int) {
	t.Helper()
	for _, l := range lines(s) {
		all = append(all, number(t, l))
	}
	return all
}

func TestRanksGetTheirPlaceAndOneRendezvous(t *testing.T) {
	r := sh(t, 3, `echo $IBCONDUIT_RANK/$IBCONDUIT_SIZE $IBCONDUIT_ADDR $IBCONDUIT_JOB ${IBCONDUIT_LISTEN_FD:+listens}`, nil)
	if r.code != 0 || r.err != nil || r.msg != "" {
		t.Fatalf("%+v", r)
	}
	got := lines(r.out)
	addr := strings.Fields(got[0])[1]
	job := strings.Fields(got[0])[2]
	want := []string{"0/3 " + addr + " " + job + " listens", "1/3 " + addr + " " + job, "2/3 " + addr + " " + job}
	if !slices.Equal(got, want) || !strings.HasPrefix(addr, "127.0.0.1:") {
		t.Errorf("%q", got)
	}
}

func TestSecretIsInThePipeAndNotInTheEnvironment(t *testing.T) {
	r := sh(t, 3, `s=$(cat <&${IBCONDUIT_SECRET_FD%%:*}); env | grep -q "$s" && echo leaked; echo $s`, nil)
	got := slices.Compact(lines(r.out))
	if len(got) != 1 || len(got[0]) != 64 {
		t.Errorf("%+v", r)
	}
}

func TestVariablesOfAnOuterJobAreRemoved(t *testing.T) {
	r := sh(t, 2, `env | grep ^IBCONDUIT_ | sort`, func(c *Config) {
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "IBCONDUIT_RANK=7", "IBCONDUIT_SIZE=9", "IBCONDUIT_SECRET=outer",
			"IBCONDUIT_SECRET_FILE=/outer", "IBCONDUIT_LISTEN_FD=9", "IBCONDUIT_LIFE_FD=9", "IBCONDUIT_ENDED_FD=9", "IBCONDUIT_BOOTSTRAP=pmi1", "IBCONDUIT_TEST_OTHER=kept"}
	})
	for _, outer := range []string{"RANK=7", "=9\n", "outer", "pmi1"} {
		if strings.Contains(r.out, outer) {
			t.Errorf("%q reached a rank:\n%s", outer, r.out)
		}
	}
	if strings.Count(r.out, "IBCONDUIT_TEST_OTHER=kept") != 2 || strings.Count(r.out, "LISTEN_FD") != 1 || strings.Count(r.out, "LIFE_FD") != 2 ||
		strings.Count(r.out, "ENDED_FD") != 2 {
		t.Errorf("%s", r.out)
	}
}

func TestOneRankCanBeGivenMoreEnvironment(t *testing.T) {
	r := sh(t, 3, `echo ${EXTRA-none}`, func(c *Config) {
		c.RankEnv = func(rank int) []string {
			if rank == 1 {
				return []string{"EXTRA=for one"}
			}
			return nil
		}
	})
	if got := lines(r.out); !slices.Equal(got, []string{"for one", "none", "none"}) {
		t.Errorf("%q", got)
	}
}

func TestOnlyRankZeroReadsTheInput(t *testing.T) {
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	_, _ = w.WriteString("to rank 0")
	w.Close()
	r := sh(t, 3, `echo "$IBCONDUIT_RANK:$(cat)"`, func(c *Config) { c.Stdin = in })
	if got := lines(r.out); !slices.Equal(got, []string{"0:to rank 0", "1:", "2:"}) {
		t.Errorf("%q", got)
	}
}

func TestCodeIsThatOfTheFirstRankThatFailed(t *testing.T) {
	for script, want := range map[string]int{
		`exit 0`:                              0,
		`test $IBCONDUIT_RANK != 2 || exit 3`: 3,
		`test $IBCONDUIT_RANK != 1 || kill -9 $$; sleep 60`:                                                    137,
		`test $IBCONDUIT_RANK != 0 && trap "exit 9" TERM; test $IBCONDUIT_RANK = 0 && exit 4; sleep 60 & wait`: 4,
	} {
		r := sh(t, 4, script, nil)
		if r.code != want || r.err != nil {
			t.Errorf("%s: code %d, want %d; %+v", script, r.code, want, r)
		}
	}
}

func TestFailureNamesRankPidAndWhatFollows(t *testing.T) {
	r := sh(t, 4, `test $IBCONDUIT_RANK != 2 || { echo $$; exit 3; }; sleep 60`, nil)
	want := fmt.Sprintf("rank 2 (pid %d): exit status 3; ending the other 3 ranks\n"+
		"ranks 0,1,3 did not end within 300ms: SIGTERM", number(t, r.out))
	if r.msg != want {
		t.Errorf("%q, want %q", r.msg, want)
	}
	r = sh(t, 1, `kill -TERM $$`, nil)
	if !strings.HasSuffix(r.msg, ": signal: terminated") || r.code != 143 {
		t.Errorf("%q, code %d", r.msg, r.code)
	}
}

// The survivors learn of a death from the rendezvous and report it: they must
// have the time.
func TestSurvivorsMaySpeakBeforeTheyAreEnded(t *testing.T) {
	r := meet(t, 2, `come; test $IBCONDUIT_RANK = 0 && exit 5; gone 0; sleep 0.3; echo rank 0 went away; exit 6`, func(c *Config) { c.Grace = 40 * time.Second })
	if r.code != 5 || r.out != "rank 0 went away\n" {
		t.Errorf("%+v", r)
	}
}

func TestRankThatIgnoresSIGTERMIsKilled(t *testing.T) {
	r := meet(t, 3, `trap "" TERM; test $IBCONDUIT_RANK = 0 && { await 1; await 2; exit 2; }; echo $$; come; while :; do sleep 1; done`, nil)
	if r.code != 2 || r.err != nil {
		t.Errorf("%+v", r)
	}
	proctest.Gone(t, numbers(t, r.out)...)
}

func TestContextEndsTheJob(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	code, err := Run(ctx, Config{N: 2, Path: "sleep", Args: []string{"60"}, Grace: time.Second})
	if !errors.Is(err, context.DeadlineExceeded) || code == 0 {
		t.Errorf("code %d, %v", code, err)
	}
}

func TestExitCodesOfProgramsThatDoNotStart(t *testing.T) {
	dir := t.TempDir()
	plain, empty := dir+"/plain", dir+"/empty"
	if err := errors.Join(os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o644), os.WriteFile(empty, []byte("\x7fELF?"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"no-such-program-at-all": 127, dir + "/none": 127, plain: 126, empty: 126, dir: 126} {
		r := sh(t, 2, "", func(c *Config) { c.Path = path })
		var se *StartError
		if r.code != want || !errors.As(r.err, &se) || !strings.Contains(r.err.Error(), path) {
			t.Errorf("%s: code %d, want %d; %v", path, r.code, want, r.err)
		}
	}
	if r := sh(t, 0, "", nil); r.err == nil {
		t.Error("a job of no ranks was run")
	}
}

func TestWhatARankLeavesInItsGroupIsKilled(t *testing.T) {
	r := sh(t, 2, `sleep 600 & echo $!`, nil)
	if r.code != 0 {
		t.Errorf("%+v", r)
	}
	pids := numbers(t, r.out)
	if len(pids) != 2 {
		t.Fatalf("%v", pids)
	}
	proctest.Gone(t, pids...)
}

// A process that left the group and holds the output must not hold the job.
func TestJobEndsThoughAStrayHoldsTheOutput(t *testing.T) {
	r := sh(t, 1, `setsid sh -c 'echo $$ >pid; exec sleep 600' & while ! test -s pid; do sleep 0.01; done; cat pid`,
		func(c *Config) { c.Dir = t.TempDir() })
	pid := number(t, r.out)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	proctest.Gone(t, pid)
	if r.code != 0 || r.err != nil {
		t.Errorf("%+v", r)
	}
}

func TestSignalsAreForwardedToAllRanks(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2} {
		signals := make(chan os.Signal, 1)
		name := strings.TrimPrefix(unix.SignalName(sig), "SIG")
		ready := &trigger{want: 2, then: func() { signals <- sig }}
		r := sh(t, 2, `trap "echo got `+name+`; exit 0" `+name+`; echo ready; while :; do sleep 0.05; done`, func(c *Config) {
			c.Signals, c.Stdout = signals, ready
		})
		if got := strings.Count(ready.String(), "got "+name); got != 2 || r.code != 0 {
			t.Errorf("%v: %d of 2 ranks got it; %+v", sig, got, r)
		}
	}
}

func TestSecondInterruptKills(t *testing.T) {
	signals := make(chan os.Signal, 2)
	ready := &trigger{want: 2, then: func() {
		signals <- syscall.SIGINT
		time.AfterFunc(2*onceTime, func() { signals <- syscall.SIGINT })
	}}
	r := sh(t, 2, `trap "" INT; echo ready; while :; do sleep 0.05; done`, func(c *Config) {
		c.Signals, c.Stdout = signals, ready
	})
	if r.code != 137 || !strings.Contains(r.msg, "second interrupt") {
		t.Errorf("%+v", r)
	}
}

// As timeout(1) sends them.
func TestASignalThatComesTwiceAtOnceIsOne(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		signals := make(chan os.Signal, 2)
		ready := &trigger{want: 2, then: func() { signals <- sig; signals <- sig }}
		script := `n=0; trap 'n=$((n+1))' INT TERM; echo ready; while test $n = 0; do sleep 0.05; done; sleep 0.1; exit $((10+n))`
		if r := sh(t, 2, script, func(c *Config) { c.Signals, c.Stdout = signals, ready }); r.code != 11 {
			t.Errorf("%v: %+v", sig, r)
		}
	}
}

// unread is an output that is not read until it is released.
type unread struct {
	written sync.Once
	then    func()
	release chan struct{}
}

func (w *unread) Write(p []byte) (int, error) {
	w.written.Do(w.then)
	<-w.release
	return len(p), nil
}

func TestAJobThatIsEndedWaitsForNoReader(t *testing.T) {
	signals := make(chan os.Signal, 1)
	out := &unread{then: func() { signals <- syscall.SIGTERM }, release: make(chan struct{})}
	release := sync.OnceFunc(func() { close(out.release) })
	defer release()
	defer time.AfterFunc(30*time.Second, release).Stop()
	r := sh(t, 2, `echo ready; exec sleep 600`, func(c *Config) { c.Signals, c.Stdout = signals, out })
	if r.code != 143 || !errors.Is(r.err, errUnread) {
		t.Errorf("%+v", r)
	}
}

// trigger acts once it has seen the word ready often enough.
type trigger struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	want int
	then func()
}

func (w *trigger) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	if w.then != nil && strings.Count(w.buf.String(), "ready\n") >= w.want {
		w.then()
		w.then = nil
	}
	return len(p), nil
}

func (w *trigger) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// PR_SET_PDEATHSIG fires when the thread that forked ends. Ending every
// thread that the runtime has to spare must not end the ranks.
func TestRanksSurviveTheEndOfOtherThreads(t *testing.T) {
	signals := make(chan os.Signal, 1)
	ready := &trigger{want: 4, then: func() {
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
				time.Sleep(2 * time.Millisecond)
			})
		}
		wg.Wait()
		time.AfterFunc(100*time.Millisecond, func() { signals <- syscall.SIGUSR1 })
	}}
	r := sh(t, 4, `trap "exit 0" USR1; echo ready; while :; do sleep 0.02; done`, func(c *Config) {
		c.Signals, c.Stdout = signals, ready
	})
	if r.code != 0 {
		t.Errorf("%+v", r)
	}
}

func Test64RanksWriteWithoutMixing(t *testing.T) {
	r := sh(t, 64, `i=0; while [ $i -lt 50 ]; do echo "$IBCONDUIT_RANK $i aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"; i=$((i+1)); done; printf "end $IBCONDUIT_RANK"`,
		func(c *Config) { c.Prefix = func(rank int) string { return fmt.Sprintf("[%2d] ", rank) } })
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	var want []string
	for rank := range 64 {
		for i := range 50 {
			want = append(want, fmt.Sprintf("[%2d] %d %d aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", rank, rank, i))
		}
		want = append(want, fmt.Sprintf("[%2d] end %d", rank, rank))
	}
	slices.Sort(want)
	if got := lines(r.out); !slices.Equal(got, want) {
		t.Errorf("%d lines, want %d", len(got), len(want))
	}
}

func TestNoDescriptorStaysBehind(t *testing.T) {
	count := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	sh(t, 2, `exit 0`, nil) // what the runtime opens once
	before := count()
	for range 3 {
		sh(t, 4, `exit 1`, nil)
		sh(t, 2, "", func(c *Config) { c.Path = "no-such-program-at-all" })
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestRanksFindInTheirListWhichHaveEnded(t *testing.T) {
	r := meet(t, 4, `list=/proc/self/fd/${IBCONDUIT_ENDED_FD%%:*}
		ended() { while test $(wc -l <$list) -lt $1; do sleep 0.01; done; }
		case $IBCONDUIT_RANK in
		0) exit 3;;
		1) ended 1; exit 0;;
		2) ended 2; kill -9 $$;;
		3) ended 3; cat $list;;
		esac`, func(c *Config) { c.Grace = 40 * time.Second })
	if want := "0 exit status 3\n1 exit status 0\n2 signal: killed\n"; r.code != 3 || r.out != want {
		t.Errorf("%+v, want the list\n%s", r, want)
	}
}

// What package bootstrap does with the life pipe is tested with ibrun, where ranks have
// connections.
const (
	sayEnding = `echo >&${IBCONDUIT_LIFE_FD%%:*};`
	closeLife = `eval "exec ${IBCONDUIT_LIFE_FD%%:*}>&-";`
)

func TestTheRankThatReportedItsEndIsTheFirst(t *testing.T) {
	script := `if test $IBCONDUIT_RANK = 0; then ` + sayEnding + ` come; sleep %d; exit 3; fi; await 0; exit 1`
	if r := meet(t, 2, fmt.Sprintf(script, 1), func(c *Config) { c.Grace = 40 * time.Second }); r.code != 3 {
		t.Errorf("%+v, want the code of rank 0", r)
	}
	// It is not waited for beyond the time to end.
	if r := meet(t, 2, fmt.Sprintf(script, 60), func(c *Config) { c.Grace = time.Second }); r.code != 1 {
		t.Errorf("%+v, want the code of rank 1", r)
	}
}

// Some programs close every descriptor that they do not know.
func TestClosingTheLifePipeIsNotTheFirstEnd(t *testing.T) {
	r := meet(t, 2, `if test $IBCONDUIT_RANK = 0; then `+closeLife+` come; gone 1; sleep 0.2; exit 3; fi
		await 0; sleep 0.1; come; exit 1`, func(c *Config) { c.Grace = 40 * time.Second })
	if r.code != 1 {
		t.Errorf("%+v, want the code of rank 1", r)
	}
}

// A rank may leave a setuid program behind, which ignores what an ordinary user's launcher sends
// it.
func TestWhatCannotBeKilledIsNotWaitedFor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("starts a process as another user, which takes root")
	}
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and its lack of CAP_KILL with it
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&header, &caps[0])
		caps[0].Effective &^= 1 << unix.CAP_KILL
		if err = errors.Join(err, unix.Capset(&header, &caps[0])); err == nil {
			newChildren().endOrphans(anyProcess)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the launcher waits for a process that it may not kill")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
