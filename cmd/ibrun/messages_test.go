//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/proctest"
)

// messages is a rank that calls all others without end, until one is down.
func messages() int {
	table := am.NewTable()
	echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Args()...) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	j, err := conduit.Join(ctx, conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 1 << 16, Handlers: table})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := 0; err == nil; i++ {
		for r := 0; r < j.Size() && err == nil; r++ {
			_, err = echo.Call(ctx, j, r, uint64(i))
		}
		if i == 0 && err == nil {
			fmt.Println(os.Getpid())
		}
	}
	if !errors.Is(err, conduit.ErrPeerDown) {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	_ = j.Close() // the dead cannot take part
	return 1
}

// The end of ibrun is that of a job whose ranks are in the midst of calls, with ibrun's code where
// it has one.
func TestASignalEndsAJobWithMessagesInFlight(t *testing.T) {
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGKILL: -1} {
		t.Run(sig.String(), func(t *testing.T) {
			endWith(t, sig, code, "", 3, "-n", "3", "--no-prefix", "--env", asRank+"=messages", self)
		})
	}
}

// What ibrun returns is the code of the rank that was killed, not that of the others.
func TestTheExitCodeIsThatOfTheKilledRank(t *testing.T) {
	cmd, errs, pids := started(t, 3, "-n", "3", "--no-prefix", "--env", asRank+"=messages", self)
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 137 {
		t.Errorf("code %d, want 137; %s", code, errs)
	}
	proctest.Gone(t, pids...)
}
