//go:build linux && cgo

package softverbs

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/launch"
)

// What this binary is, when a test runs it again with the device.
const (
	envLauncher = "SOFTVERBS_TEST_LAUNCHER" // starts ranks that run the program it names
	envRank     = "SOFTVERBS_TEST_RANK"     // is one of them
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envRank) != "":
		os.Exit(rankMain(os.Getenv(envRank)))
	case os.Getenv(envLauncher) != "":
		os.Exit(launcherMain(os.Getenv(envLauncher)))
	}
	os.Exit(m.Run())
}

const ranks = 2

// launcherMain starts the ranks where the device is, and returns their exit code.
func launcherMain(program string) int {
	code, err := launch.Run(context.Background(), launch.Config{N: ranks, Path: os.Args[0], Grace: 40 * time.Second,
		Env: append(os.Environ(), envRank+"="+program, envLauncher+"=", "IBCONDUIT_FABRIC=ibv")})
	if err != nil {
		fmt.Println(err)
	}
	return code
}

// usable skips where there is no device, unless there must be one.
func usable(t *testing.T) {
	t.Helper()
	if err := Usable(t.Context()); err != nil {
		if os.Getenv(EnvRequire) == "1" {
			t.Fatalf("%s=1, but %v", EnvRequire, err)
		}
		t.Skip(err)
	}
}

// ordinary is the environment without what it says of devices.
func ordinary() (env []string) {
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "IBCONDUIT_") && !strings.HasPrefix(kv, "SOFTVERBS_") {
			env = append(env, kv)
		}
	}
	return env
}

// withDevice runs this binary again with the device and these variables, and returns what it
// prints. That it ends with an error is the caller's affair.
func withDevice(t *testing.T, env ...string) (string, error) {
	t.Helper()
	usable(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := Command(ctx, exe)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(ordinary(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
