package main

import (
	"fmt"
	"os"
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
	cmd := ibrun(t, nil, "-n", "1", "sh", "-c", "exec tail /dev/zero")
	cmd.Args = append([]string{"sh", "-c", "echo $$ > " + dir + `/cgroup.procs && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	out, _ := cmd.CombinedOutput()
	if want := "signal: killed; the kernel has killed for want of memory in memory group"; cmd.ProcessState.ExitCode() != 137 || !strings.Contains(string(out), want) || !strings.Contains(string(out), "whose limit is 96 MiB") {
		t.Errorf("code %d, want 137 and %q with the limit:\n%s", cmd.ProcessState.ExitCode(), want, out)
	}
}

func TestSignalsThatHaveACauseNameIt(t *testing.T) {
	for signal, want := range map[string]string{"BUS": "df /dev/shm", "XCPU": "ulimit -t", "KILL": "signal: killed\n"} {
		if _, _, errs := finish(t, nil, "-n", "1", "sh", "-c", "kill -"+signal+" $$"); !strings.Contains(errs, want) {
			t.Errorf("SIG%s: no %q in %s", signal, want, errs)
		}
	}
}
