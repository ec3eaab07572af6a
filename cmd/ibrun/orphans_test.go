//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// orphans is a script that leaves processes which end at once, in the rank's group and in others,
// writes their numbers, and waits until $GO is there.
const orphans = `for i in 1 2 3 4 5; do
		(sh -c 'echo $$' & setsid sh -c 'echo $$' &)
	done >$D/$IBCONDUIT_RANK; while test $(wc -l <$D/$IBCONDUIT_RANK) -lt 10; do sleep 0.01; done
	echo ready; `

func TestOrphansAreReapedAsTheyEnd(t *testing.T) {
	t.Run("here", func(t *testing.T) { reapsOrphans(t, nil, "-n", "3") })
	t.Run("on hosts", func(t *testing.T) { reapsOrphans(t, newCluster(t, "", direct).env, "-H", "a:2,b") })
}

func reapsOrphans(t *testing.T, env []string, args ...string) {
	t.Helper()
	dir := t.TempDir()
	proceed := filepath.Join(dir, "go")
	cmd := ibrun(t, append(env, "D="+dir, "GO="+proceed), append(args, "--no-prefix", "sh", "-c", orphans+goOn+`exit $((IBCONDUIT_RANK * 7))`)...)
	w := newWatch(3)
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-w.full
	var left []int
	for rank := range 3 {
		b, err := os.ReadFile(fmt.Sprintf("%s/%d", dir, rank))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, numbers(t, string(b))...)
	}
	for _, pid := range left {
		end := time.Now().Add(20 * time.Second)
		for syscall.Kill(pid, 0) == nil && time.Now().Before(end) {
			time.Sleep(5 * time.Millisecond)
		}
		if syscall.Kill(pid, 0) == nil {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			t.Errorf("the job runs, and of %d there is still %s", pid, stat)
		}
	}
	_ = os.WriteFile(proceed, nil, 0o600)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 && code != 14 {
		t.Errorf("code %d, want that of rank 1 or 2", code)
	}
}

// Orphans that end all the time take no rank's status.
func TestRanksKeepTheirStatusAmongOrphans(t *testing.T) {
	storm := `(for i in 1 2 3 4 5 6 7 8 9; do sh -c 'exit 9' & setsid sh -c 'exit 9' & done); exit $((IBCONDUIT_RANK == 5 ? 3 : 0))`
	for range 3 {
		if code, _, errs := finish(t, nil, "-n", "8", "sh", "-c", storm); code != 3 || !strings.Contains(errs, "rank 5 (pid ") {
			t.Errorf("code %d, want 3; %s", code, errs)
		}
	}
}

// The guard is a child as well: one that is killed stays no zombie, and hides none.
func TestAGuardThatIsKilledIsReaped(t *testing.T) {
	dir := t.TempDir()
	code, out, errs := finish(t, []string{"D=" + dir}, "--no-prefix", "sh", "-c", `
		guard=$(for p in $(cat /proc/$PPID/task/*/children); do tr '\0' ' ' </proc/$p/cmdline | grep -q "^ibrun-guard " && echo $p; done)
		kill -9 $guard; (sh -c 'echo $$ >$D/orphan' &); while ! test -s $D/orphan; do sleep 0.01; done
		for pid in $guard $(cat $D/orphan); do
			i=0; while test -e /proc/$pid && test $i -lt 1000; do sleep 0.01; i=$((i+1)); done; test -e /proc/$pid && echo "zombie $pid"
		done; true`)
	if code != 0 || out != "" {
		t.Errorf("code %d, %q, %s", code, out, errs)
	}
}

// What bash starts for > >(...) is a child of the program whose output that is, and goes on after
// it.
func TestAChildFromBeforeTheJobIsLeftAlone(t *testing.T) {
	x := &terminal{t: t, dir: t.TempDir()}
	cmd := ibrun(t, nil, "-c", `exec "$0" -n 2 --no-prefix sh -c 'echo li""ne; (setsid sleep 600 &)' > >(sleep 0.3; cat >all; echo yes >end)`, self)
	cmd.Path, _ = exec.LookPath("bash")
	cmd.Dir = x.dir
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	x.made("end")
	if b, _ := os.ReadFile(filepath.Join(x.dir, "all")); string(b) != "line\nline\n" {
		t.Errorf("%q", b)
	}
}
