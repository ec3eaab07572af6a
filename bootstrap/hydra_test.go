package bootstrap

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/hydratest"
)

// hydra runs the test binary's exchange helper under mpiexec.hydra.
func hydra(t *testing.T, args ...string) string {
	t.Helper()
	out, err := underHydra(t, args...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

func underHydra(t *testing.T, args ...string) (string, error) {
	t.Helper()
	mpiexec := hydratest.Mpiexec(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mpiexec, append(args, self)...)
	cmd.Env = append(os.Environ(), helperVar+"=exchange")
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// A program of a rank that comes too late, or without the launcher's descriptor, is told why.
func TestHydraProgramsThatCannotJoinAreTold(t *testing.T) {
	for script, want := range map[string]string{
		`"$0" && "$0"`:                 "another program of this rank has joined the job already",
		`eval "exec $PMI_FD>&-"; "$0"`: "a wrapper that starts the rank must hand on its descriptors",
	} {
		out, err := underHydra(t, "-n", "2", "bash", "-c", script)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
}

// As of ibrun -n 1: the only rank of a job meets nobody.
func TestHydrasOnlyRankMayBeManyPrograms(t *testing.T) {
	if out := hydra(t, "-n", "1", "bash", "-c", `"$0" && "$0" & "$0" && wait $!`); strings.Count(out, "self (PMI_SIZE)") != 3 {
		t.Error(out)
	}
}

func TestHydraExchangesBlobsByDescriptor(t *testing.T) {
	out := hydra(t, "-n", "4")
	for _, want := range []string{"ok 0/4 pmi1 (PMI_FD) local 4 true", "ok 1/4", "ok 2/4", "ok 3/4"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestHydraExchangesBlobsByPort(t *testing.T) {
	out := hydra(t, "-pmi-port", "-n", "2")
	for _, want := range []string{"ok 0/2 pmi1 (PMI_PORT)", "ok 1/2 pmi1 (PMI_PORT)"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
