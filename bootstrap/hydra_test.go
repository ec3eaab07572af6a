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
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
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
