//go:build amfault

package am_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/am/amtest"
	"github.com/ibconduit/conduit/fabric/sim"
)

const plantEnv = "AM_TEST_PLANT"

// The suite finds every planted fault, and nothing without one.
func TestTheSuiteFindsPlantedFaults(t *testing.T) {
	if name := os.Getenv(plantEnv); name != "" {
		defer am.Plant(name)()
		r := &simulation{cfg: sim.Config{Seed: 11, MaxTime: time.Minute, MaxEvents: 3e6}}
		amtest.Run(t, amtest.Options{New: r.ranks, Kill: r.kill, Host: r, Rounds: 60, Patience: 8 * time.Second})
		return
	}
	for _, name := range []string{"none", "reply takes credit", "no look", "no hand-over", "no poll", "spare late", "double return"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheSuiteFindsPlantedFaults$", "-test.v", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s", plantEnv, name))
			out, err := cmd.CombinedOutput()
			if found := err != nil; found != (name != "none") {
				t.Fatalf("found: %v\n%s", found, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "--- FAIL: TestTheSuiteFindsPlantedFaults/") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}
