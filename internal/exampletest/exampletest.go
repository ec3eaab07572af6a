// Package exampletest runs example programs as the ranks of a job. A test's binary is the program:
// what ibrun does with a program, this does with itself.
package exampletest

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/launch"
)

const rankVar = "EXAMPLETEST_RANK"

// Main is a TestMain: it runs the program where Run started this process, else the tests.
func Main(m *testing.M, program func()) {
	if os.Getenv(rankVar) != "" {
		program()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// OnNetworks runs the program as 1 to 4 ranks over each network, as subtests, and has check look at
// what they print. device is rdmatest.Device: whose tests name that package run in the VM too.
func OnNetworks(t *testing.T, device func(testing.TB) string, check func(t *testing.T, n int, out string)) {
	each := func(t *testing.T, env ...string) {
		for n := 1; n <= 4; n++ {
			check(t, n, Run(t, n, env...))
		}
	}
	t.Run("shm", func(t *testing.T) { each(t, "IBCONDUIT_FABRIC=shm") })
	t.Run("ibv", func(t *testing.T) { each(t, "IBCONDUIT_FABRIC=ibv", "IBCONDUIT_DEVICE="+device(t)) })
}

// Run starts the program as n ranks with further variables of the environment, and returns what
// they print. It fails the test unless all succeed.
func Run(t *testing.T, n int, env ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "IBCONDUIT_") {
			env = append(env, kv)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out := &output{}
	code, err := launch.Run(ctx, launch.Config{N: n, Path: exe, Env: append(env, rankVar+"=1"), Stdout: out, Stderr: out})
	if err != nil || code != 0 {
		t.Fatalf("%d ranks: exit code %d, %v:\n%s", n, code, err, out.text.String())
	}
	return out.text.String()
}

// output collects what the ranks print.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}
