// Package hydratest finds MPICH's launcher for the tests that run under it.
package hydratest

import (
	"os"
	"os/exec"
	"testing"
)

// EnvRequire makes a test that finds no launcher fail when it is "1".
const EnvRequire = "IBCONDUIT_REQUIRE_HYDRA"

// Mpiexec returns the path of mpiexec.hydra. Without it the test is skipped, or fails when
// IBCONDUIT_REQUIRE_HYDRA is 1.
func Mpiexec(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("mpiexec.hydra")
	if err == nil {
		return path
	}
	if os.Getenv(EnvRequire) == "1" {
		t.Fatalf("%s=1, but %v (package mpich)", EnvRequire, err)
	}
	t.Skipf("%v (package mpich); %s=1 makes this an error", err, EnvRequire)
	return ""
}
