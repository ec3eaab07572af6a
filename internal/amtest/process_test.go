package amtest_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/proctest"
)

// The tests of this file have each rank in a process of its own. The test binary is started again
// for each. Ranks speak through standard output: "gather HEX" takes part in an all-gather, whose
// result comes one line a rank, and "kill" asks to be killed. Only the test's own process lets
// ranks pass a gather.
const (
	envRole   = "IBCONDUIT_TEST_ROLE" // the network
	envRank   = "IBCONDUIT_TEST_RANK"
	envSize   = "IBCONDUIT_TEST_SIZE"
	envVictim = "IBCONDUIT_TEST_VICTIM" // who is killed; -1: nobody
)

// child is a rank in another process.
type child struct {
	*proctest.Child
	rank int
}

func startChild(t *testing.T, role string, rank, size, victim int) *child {
	t.Helper()
	c := proctest.Start(t, envRole+"="+role, fmt.Sprint(envRank, "=", rank), fmt.Sprint(envSize, "=", size), fmt.Sprint(envVictim, "=", victim))
	watchdog := time.AfterFunc(2*watchdogLimit, func() { _ = c.Cmd.Process.Kill() })
	t.Cleanup(func() { watchdog.Stop() })
	c.Out.Buffer(nil, 1<<20)
	return &child{c, rank}
}

// runJob runs ranks in processes until all but the victim have ended well.
func runJob(t *testing.T, role string, size, victim int) {
	var kids []*child
	for i := range size {
		r := (max(victim, 0) + i) % size // the victim is heard first: the others say nothing until it is dead
		kids = append(kids, startChild(t, role, r, size, victim))
	}
	for len(kids) > 0 {
		kids = gatherOnce(t, kids, size)
	}
}

// gatherOnce reads a line of every rank, answers, and returns those that go on.
func gatherOnce(t *testing.T, kids []*child, size int) (left []*child) {
	t.Helper()
	blobs := make([]string, size)
	for _, c := range kids {
		if !c.Out.Scan() {
			if err := c.Cmd.Wait(); err != nil || c.Out.Err() != nil {
				t.Fatalf("rank %d: %v, %v", c.rank, err, c.Out.Err())
			}
			continue
		}
		var blob string
		switch n, _ := fmt.Sscanf(c.Out.Text(), "gather %s", &blob); {
		case n == 1:
			blobs[c.rank] = blob
			left = append(left, c)
		case c.Out.Text() == "kill":
			_ = c.Cmd.Process.Kill()
			_ = c.Cmd.Wait()
		default:
			t.Fatalf("rank %d says %q", c.rank, c.Out.Text())
		}
	}
	for _, c := range left {
		for _, b := range blobs {
			fmt.Fprintln(c.In, b)
		}
	}
	return left
}

// gather is the rank's end of it: a fabric.Exchange, and a barrier of those that live.
func (r *childRank) gather(blob []byte) ([][]byte, error) {
	fmt.Println("gather", "x"+hex.EncodeToString(blob))
	all := make([][]byte, r.size)
	for i := range all {
		if !r.in.Scan() {
			return nil, fmt.Errorf("the test has ended: %w", io.ErrUnexpectedEOF)
		}
		line := r.in.Text()
		if line == "" {
			continue // it is dead
		}
		b, err := hex.DecodeString(line[1:])
		if err != nil {
			return nil, err
		}
		all[i] = b
	}
	return all, nil
}
