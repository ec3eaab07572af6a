package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/proctest"
	"github.com/ibconduit/conduit/segment"
)

// The tests of this file run ranks in processes of their own: the test binary
// is started again with a role, addresses travel through its standard input
// and output, one line each.

const childSegment = 1 << 20

// child is a rank in another process.
type child struct {
	*proctest.Child
	rank int
}

// startJob runs a role on every rank but the first, which is the test's own.
func startJob(t testing.TB, size int, role string, onDown func(int, error)) (*Network, []*child) {
	t.Helper()
	m := mapSegment(t, childSegment)
	n, err := New(Config{Rank: 0, Size: size, Segment: m, Job: "processes", OnDown: onDown})
	must(t, err)
	closeAtEnd(t, n)
	addrs := make([][]byte, size)
	addrs[0] = n.Addr()
	var kids []*child
	for r := 1; r < size; r++ {
		kids = append(kids, startChild(t, r, size, role))
	}
	for _, c := range kids {
		addrs[c.rank], err = hex.DecodeString(c.line(t))
		must(t, err)
	}
	for _, c := range kids {
		for _, a := range addrs {
			fmt.Fprintln(c.In, hex.EncodeToString(a))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	must(t, n.Connect(ctx, addrs, nil))
	return n, kids
}

func startChild(t testing.TB, rank, size int, role string) *child {
	t.Helper()
	return &child{proctest.Start(t, "IBCONDUIT_TEST_ROLE="+role, fmt.Sprint("IBCONDUIT_TEST_RANK=", rank), fmt.Sprint("IBCONDUIT_TEST_SIZE=", size)), rank}
}

// line is the next line that the child writes.
func (c *child) line(t testing.TB) string {
	t.Helper()
	watchdog := time.AfterFunc(testTimeout, func() { c.Cmd.Process.Kill() })
	defer watchdog.Stop()
	if !c.Out.Scan() {
		t.Fatalf("rank %d ended before it wrote a line: %v", c.rank, c.Out.Err())
	}
	return c.Out.Text()
}

// finish lets the child close in order and checks that it found nothing wrong.
func (c *child) finish(t testing.TB) {
	t.Helper()
	c.In.Close()
	if err := c.Cmd.Wait(); err != nil {
		t.Errorf("rank %d: %v", c.rank, err)
	}
}

// childMain is a rank's life in another process: it joins, does its role, prints
// "ready", and closes when its standard input ends.
func childMain(role string) int {
	if err := childRun(role); err != nil {
		fmt.Fprintln(os.Stderr, role, "of rank", os.Getenv("IBCONDUIT_TEST_RANK"), "failed:", err)
		return 1
	}
	return 0
}

func childRun(role string) error {
	rank, _ := strconv.Atoi(os.Getenv("IBCONDUIT_TEST_RANK"))
	size, _ := strconv.Atoi(os.Getenv("IBCONDUIT_TEST_SIZE"))
	m, err := segment.Map(segment.Config{Size: childSegment, Shared: true})
	if err != nil {
		return err
	}
	n, err := New(Config{Rank: rank, Size: size, Segment: m, Job: "processes"})
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(n.Addr()))
	in := bufio.NewScanner(os.Stdin)
	addrs := make([][]byte, size)
	for r := range addrs {
		if !in.Scan() {
			return errors.New("no addresses on standard input")
		}
		if addrs[r], err = hex.DecodeString(strings.TrimSpace(in.Text())); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := n.Connect(ctx, addrs, nil); err != nil {
		return err
	}
	l, err := n.NewLane()
	if err != nil {
		return err
	}
	switch role {
	case "adder":
		err = childAdd(l)
	case "filler":
		fillPattern(m.Bytes(), uint64(rank))
	case "sitter":
	default:
		return errors.Join(childEndpoint(n, role, in), l.Close(), n.Close(), m.Close())
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in.Scan() {
	}
	return errors.Join(l.Close(), n.Close(), m.Close())
}

const additions = 20_000

func childAdd(l fabric.Lane) error {
	for range additions {
		if _, _, err := l.Atomic(0, 64, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0); err != nil {
			return err
		}
	}
	return nil
}

// fillPattern is what a rank's segment holds under the role "filler".
func fillPattern(b []byte, rank uint64) {
	r := rand.New(rand.NewPCG(rank, 99))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func TestAtomicsOfFourProcessesAddUp(t *testing.T) {
	n, kids := startJob(t, 4, "adder", nil)
	l := newLane(t, n)
	must(t, childAdd(l))
	for _, c := range kids {
		if got := c.line(t); got != "ready" {
			t.Fatalf("rank %d says %q", c.rank, got)
		}
	}
	if old, _, err := l.Atomic(0, 64, fabric.Atomic{Op: fabric.FetchAdd}, 0); err != nil || old != 4*additions {
		t.Errorf("sum is %d, %v, want %d", old, err, 4*additions)
	}
	for _, c := range kids {
		c.finish(t)
	}
}

func TestTransfersBetweenProcessesAreExact(t *testing.T) {
	n, kids := startJob(t, 2, "filler", nil)
	kids[0].line(t)
	l := newLane(t, n)
	want := make([]byte, childSegment)
	fillPattern(want, 1)
	rng := rand.New(rand.NewPCG(3, 4))
	buf := make([]byte, childSegment)
	for range 2000 {
		size := rng.IntN(1 << rng.IntN(20))
		off := rng.IntN(childSegment - size)
		if rng.IntN(2) == 0 {
			for i := range buf[:size] {
				buf[i] = byte(rng.Uint32())
			}
			copy(want[off:], buf[:size])
			if _, err := l.Put(1, uint64(off), buf[:size], 0); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if _, err := l.Get(1, uint64(off), buf[:size], 0); err != nil {
			t.Fatal(err)
		}
		if string(buf[:size]) != string(want[off:off+size]) {
			t.Fatalf("%d bytes at offset %d differ", size, off)
		}
	}
	if string(l.Mapped(1)[:childSegment]) != string(want) {
		t.Error("the whole segment differs")
	}
	kids[0].finish(t)
}

type death struct {
	rank  int
	cause error
}

func TestMemoryOfAKilledProcessStaysReadable(t *testing.T) {
	deaths := make(chan death, 10)
	n, kids := startJob(t, 3, "sitter", func(r int, cause error) { deaths <- death{r, cause} })
	l := newLane(t, n)
	for _, c := range kids {
		c.line(t)
	}
	mem := l.Mapped(2)
	mem[0] = 42
	must(t, kids[1].Cmd.Process.Kill())
	select {
	case d := <-deaths:
		if d.rank != 2 || !errors.Is(d.cause, io.EOF) {
			t.Errorf("death of rank %d: %v", d.rank, d.cause)
		}
	case <-time.After(testTimeout):
		t.Fatal("the death was not noticed")
	}
	var pd *fabric.PeerDownError
	_, err := l.Put(2, 0, []byte{42}, 0)
	for end := time.Now().Add(testTimeout); err == nil && time.Now().Before(end); { // OnDown comes before operations fail
		runtime.Gosched()
		_, err = l.Put(2, 0, []byte{42}, 0)
	}
	if !errors.As(err, &pd) || pd.Rank != 2 || pd.Op != "put" {
		t.Errorf("put to the dead: %v", err)
	}
	if mem[0] != 42 || mem[len(mem)-1] != 0 {
		t.Error("memory of the dead has changed")
	}
	if _, err := l.Put(1, 0, []byte{1}, 0); err != nil {
		t.Errorf("put to the living: %v", err)
	}
	kids[0].finish(t)
	must(t, l.Close())
	must(t, n.Close()) // ends the watchers: nothing more can be reported
	if len(deaths) != 0 {
		t.Errorf("a rank that left was reported: %v", <-deaths)
	}
}
