//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ibconduit/conduit/internal/proctest"
)

// apart runs ibrun in namespaces of its own.
func apart(t *testing.T, flags string, env []string, args ...string) (code int, out string) {
	t.Helper()
	if os.Geteuid() != 0 {
		flags += "r" // a user namespace, in which this user is root
	}
	if err := exec.Command("unshare", "-"+flags, "true").Run(); err != nil {
		t.Skipf("unshare -%s: %v", flags, err)
	}
	cmd := ibrun(t, env, append([]string{"-" + flags, self}, args...)...)
	cmd.Path, _ = exec.LookPath("unshare")
	b, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(b)
}

func TestAJobOfOneHostNeedsNoNetwork(t *testing.T) {
	code, out := apart(t, "n", nil, "-n", "3", "--env", asRank+"=exchange", self)
	if code != 0 || strings.Count(out, " of 3 by launch") != 3 {
		t.Errorf("code %d: %s", code, out)
	}
}

// A rank that sees other files, as in a container, meets the others over loopback.
func TestARankWithOtherFilesMeetsOverLoopback(t *testing.T) {
	code, out := apart(t, "m", asRankToo("exchange"), "-n", "2", "unshare", "-m", "sh", "-c",
		`case $IBCONDUIT_SOCKET in /tmp/*|/dev/shm/*) ;; *) echo "socket at $IBCONDUIT_SOCKET"; exit 9;; esac
		mount -t tmpfs none /dev/shm; mount --bind "$(dirname "$R")" /mnt; mount -t tmpfs none /tmp; `+asRank+`=exchange exec /mnt/$(basename "$R")`)
	if code != 0 || strings.Count(out, " of 2 by launch") != 2 {
		t.Errorf("code %d: %s", code, out)
	}
}

// Without a network and without the socket's file there is no way: the rank that finds that says
// so at once.
func TestNoWayToRankZeroIsSaidAtOnce(t *testing.T) {
	code, out := apart(t, "n", asRankToo("exchange"), "-n", "2", "--grace", "40s", "sh", "-c",
		`test $IBCONDUIT_RANK = 0 || IBCONDUIT_SOCKET=/no/such; export IBCONDUIT_SOCKET; `+joins)
	if code != 1 || !strings.Contains(out, "[1] bootstrap: rank 1: cannot reach rank 0 at /no/such: ") || !strings.Contains(out, "rank 1 ended before all") {
		t.Errorf("code %d: %s", code, out)
	}
}

// Rank 0 holds a connection to each. That it may open no more is no fault of those that still
// wait.
func TestALimitOfFilesIsNamedByRankZero(t *testing.T) {
	code, out, errs := finish(t, nil, "-n", "16", "--env", joinTimeout+"=40s", "--env", "R="+self, "sh", "-c",
		`test $IBCONDUIT_RANK != 0 || ulimit -n 20; `+asRank+`=exchange exec "$R"`)
	if code != 1 || !strings.Contains(out, "[ 0] bootstrap: rank 0 (") || strings.Count(out, " lets no more ranks in than ") < 3 ||
		!strings.Contains(out, " of 16: too many open files; it takes a descriptor for each rank: raise ulimit -n there\n") || strings.Contains(out, "missing") {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
}

func TestTheSocketIsRemoved(t *testing.T) {
	code, out, _ := finish(t, nil, "-n", "2", "--no-prefix", "sh", "-c", `stat -c %a "$(dirname $IBCONDUIT_SOCKET)"; dirname $IBCONDUIT_SOCKET`)
	all := strings.Fields(out)
	if code != 0 || len(all) != 4 || !strings.Contains(out, "700\n") {
		t.Fatalf("code %d: %s", code, out)
	}
	for _, dir := range all {
		if _, err := os.Stat(dir); strings.HasPrefix(dir, "/") && err == nil {
			t.Errorf("%s is still there", dir)
		}
	}
	// Also when ibrun is killed.
	dir := t.TempDir()
	cmd := ibrun(t, []string{"TMPDIR=."}, "-n", "1", "sh", "-c", "echo $$; exec sleep 600")
	cmd.Dir = dir
	w := newWatch(1)
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.numbers(t)
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	x := &terminal{t: t}
	x.until("end of the socket", func() bool { left, _ := filepath.Glob(dir + "/ibrun-*"); return len(left) == 0 })
}

// What a job left that was killed with its guard, the next ibrun removes; what a job uses stays.
func TestDirectoriesOfKilledJobsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	begin := func() (cmd *exec.Cmd, guard int) {
		cmd = ibrun(t, []string{"TMPDIR=" + dir}, "-n", "1", "--no-prefix", "sh", "-c", `for p in $(cat /proc/$PPID/task/*/children); do
			tr '\0' ' ' </proc/$p/cmdline | grep -q "^ibrun-guard " && echo $p; done; exec sleep 600`)
		w := newWatch(1)
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, w.numbers(t)[0]
	}
	jobs := func() int {
		all, err := filepath.Glob(dir + "/ibrun-*")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	killed, guard := begin()
	_ = syscall.Kill(guard, syscall.SIGKILL)
	proctest.Gone(t, guard)
	_ = killed.Process.Signal(syscall.SIGKILL)
	_ = killed.Wait()
	if n := jobs(); n != 1 {
		t.Fatalf("%d directories after one job was killed, want its own", n)
	}
	running, _ := begin()
	if n := jobs(); n != 1 {
		t.Errorf("%d directories while a job runs, want its own", n)
	}
	if code, _, errs := finish(t, []string{"TMPDIR=" + dir}, "true"); code != 0 || jobs() != 1 {
		t.Errorf("%d directories after another job, want that of the one that runs; code %d, %s", jobs(), code, errs)
	}
	_ = running.Process.Signal(syscall.SIGTERM)
	_ = running.Wait()
	if n := jobs(); n != 0 {
		t.Errorf("%d directories are left", n)
	}
}
