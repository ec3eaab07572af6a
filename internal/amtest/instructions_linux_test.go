//go:build cgo && amd64

package amtest_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/racetest"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/internal/steptest"
)

// envStepped has this binary play calls until it is killed.
const envStepped = "IBCONDUIT_TEST_STEPPED"

// steppedFor bounds the stepping, which takes seconds unless the machine is very busy. The stepped
// process ends by itself after twice that.
const steppedFor = 4 * time.Minute

// operation marks where a call begins.
//
//go:noinline
func operation() { runtime.KeepAlive(envStepped) }

// stepped plays calls, after the number of the thread that is to be stepped.
func stepped(t *testing.T, device string) {
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	call, _ := players(t, verbsGroupOn(device))
	fmt.Printf("\nthread %d\n", unix.Gettid())
	for end := time.Now().Add(2 * steppedFor); time.Now().Before(end); { // it is killed before
		operation()
		call()
	}
}

// What a call of a Short and its reply cost above the device, at both ends together, does not creep
// up. Times say nothing on a busy machine, instructions repeat.
func TestInstructionsOfAShortAreBounded(t *testing.T) {
	device := rdmatest.Device(t)
	if os.Getenv(envStepped) != "" {
		stepped(t, device)
		return
	}
	if racetest.Enabled || owner.Checked || testing.CoverMode() != "" || rdmatest.Machine() {
		t.Skip("counts the release build's instructions, natively")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout="+(3*steppedFor).String())
	cmd.Env = append(cmd.Environ(), envStepped+"=1", rdmatest.EnvDevice+"="+device, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=4")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }() // it is in the middle of a call
	tid := 0
	for lines := bufio.NewScanner(out); tid == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "thread %d", &tid) // other lines are the test's
	}
	if tid == 0 {
		t.Fatal("no thread to be stepped")
	}
	const most = 5400 // a tenth above what it takes
	c, err := steptest.Operations(tid, "github.com/ibconduit/conduit/internal/amtest_test.operation", 6, most, steppedFor)
	if err != nil {
		steptest.Skip(t, err)
		t.Fatal(err)
	}
	if c.Operations == 0 {
		t.Fatalf("no call ended in %v", steppedFor)
	}
	t.Logf("%d instructions of a call at both ends, over %d calls", c.Own, c.Operations)
	if c.Own > most || c.Own < most/2 {
		t.Errorf("%d instructions of a call at both ends, want %d to %d:\n%s", c.Own, most/2, most, c)
	}
}
