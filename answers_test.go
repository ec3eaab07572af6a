package conduit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
)

// envComputes has this binary run a job of one processor whose rank 1 computes until a message of
// rank 0 has been handled.
const envComputes = "IBCONDUIT_TEST_COMPUTES"

func init() {
	if os.Getenv(envComputes) != "" {
		program = computesUntilHandled
	}
}

// A rank that computes on its only processor handles messages all the same. The runtime may not
// preempt it here (asyncpreemptoff), so that without a second processor it would never.
func TestAComputingRankAnswersOnOneProcessor(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(cmd.Environ(), envComputes+"=1", "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMAXPROCS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func computesUntilHandled() int {
	runtime.GOMAXPROCS(1)
	var computes, handled atomic.Bool
	table := am.NewTable()
	touch := table.Handle("touch", func(c *am.Call) { handled.Store(true); _ = c.Reply() })
	err := RunLocalConfig(context.Background(), 2, Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Handlers: table}, func(j *Job) error {
		if j.Rank() == 1 {
			computes.Store(true)
			for !handled.Load() {
			}
			return nil
		}
		for !computes.Load() {
			time.Sleep(time.Millisecond)
		}
		_, err := touch.Call(context.Background(), j, 1)
		return err
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}
