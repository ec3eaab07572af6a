package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/memgroup"
)

// The kernel's SIGKILL says nothing to the rank: the memory group knows.
func TestWhoLacksMemoryIsToldOfTheLimit(t *testing.T) {
	g, err := memgroup.Make(fmt.Sprintf("ibconduit-ibrun-%d", os.Getpid()), 96<<20)
	if err != nil && os.Getenv("IBCONDUIT_REQUIRE_MEMGROUP") == "1" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	dir, _, _ := strings.Cut(g.Place(), ":")
	for script, how := range map[string]string{"exec tail /dev/zero": "signal: killed", "tail /dev/zero; exit $?": "exit status 137"} {
		cmd := ibrun(t, nil, "-n", "1", "sh", "-c", script)
		cmd.Args = append([]string{"sh", "-c", "echo $$ > " + dir + `/cgroup.procs && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		out, _ := cmd.CombinedOutput()
		want := how + "; the kernel has killed for want of memory in memory group"
		if cmd.ProcessState.ExitCode() != 137 || !strings.Contains(string(out), want) || !strings.Contains(string(out), "whose limit is 96 MiB") {
			t.Errorf("%s: code %d, want 137 and %q with the limit:\n%s", script, cmd.ProcessState.ExitCode(), want, out)
		}
	}
}

// Where the hard limit is the soft one, as with ulimit -t, the kernel sends SIGKILL at once.
func TestWhoLacksProcessorTimeIsTold(t *testing.T) {
	cmd := ibrun(t, nil, "-n", "1", "sh", "-c", "while :; do :; done")
	cmd.Args = append([]string{"prlimit", "--cpu=1:1", cmd.Path}, cmd.Args[1:]...)
	cmd.Path, _ = exec.LookPath("prlimit")
	out, _ := cmd.CombinedOutput()
	if want := "signal: killed; it has had the 1 s of processor time"; cmd.ProcessState.ExitCode() != 137 || !strings.Contains(string(out), want) {
		t.Errorf("code %d, want 137 and %q:\n%s", cmd.ProcessState.ExitCode(), want, out)
	}
}

func TestSignalsThatHaveACauseNameIt(t *testing.T) {
	for signal, want := range map[string]string{"BUS": "df /dev/shm", "XCPU": "ulimit -t", "KILL": "signal: killed\n"} {
		if _, _, errs := finish(t, nil, "-n", "1", "sh", "-c", "kill -"+signal+" $$"); !strings.Contains(errs, want) {
			t.Errorf("SIG%s: no %q in %s", signal, want, errs)
		}
	}
}
