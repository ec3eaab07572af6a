package amtest_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// The tests of this file have each rank in a process of its own. The test binary is started again
// for each. Ranks speak through standard output: "gather HEX" takes part in an all-gather, whose result comes
// one line a rank, and "kill" asks to be killed. Only the test's own process lets ranks pass a gather.
const (
	envRole   = "IBCONDUIT_TEST_ROLE" // the network
	envRank   = "IBCONDUIT_TEST_RANK"
	envSize   = "IBCONDUIT_TEST_SIZE"
	envVictim = "IBCONDUIT_TEST_VICTIM" // who is killed; -1: nobody
)

// child is a rank in another process.
type child struct {
	rank int
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

func startChild(t *testing.T, role string, rank, size, victim int) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envRole+"="+role, fmt.Sprint(envRank, "=", rank), fmt.Sprint(envSize, "=", size), fmt.Sprint(envVictim, "=", victim))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		watchdog.Stop()
		_ = cmd.Process.Kill() // an error means that it has ended
		_ = cmd.Wait()
	})
	c := &child{rank: rank, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	c.out.Buffer(nil, 1<<20)
	return c
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
		if !c.out.Scan() {
			if err := c.cmd.Wait(); err != nil || c.out.Err() != nil {
				t.Fatalf("rank %d: %v, %v", c.rank, err, c.out.Err())
			}
			continue
		}
		var blob string
		switch n, _ := fmt.Sscanf(c.out.Text(), "gather %s", &blob); {
		case n == 1:
			blobs[c.rank] = blob
			left = append(left, c)
		case c.out.Text() == "kill":
			_ = c.cmd.Process.Kill()
			_ = c.cmd.Wait()
		default:
			t.Fatalf("rank %d says %q", c.rank, c.out.Text())
		}
	}
	for _, c := range left {
		for _, b := range blobs {
			fmt.Fprintln(c.in, b)
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
