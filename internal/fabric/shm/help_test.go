package shm

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/handle/handletest"
	"github.com/ibconduit/conduit/segment"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("IBCONDUIT_TEST_ROLE"); role != "" {
		os.Exit(childMain(role))
	}
	handletest.VerifyTestMain(m)
}

// testTimeout bounds what must happen soon but is not timed.
const testTimeout = 30 * time.Second

// must ends the test with an error.
func must(t fabrictest.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// closeAtEnd closes what must close without an error when the test ends.
func closeAtEnd(t fabrictest.T, c io.Closer) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// mapSegment maps n bytes that end with the test.
func mapSegment(t fabrictest.T, n int64) *segment.Mapping {
	t.Helper()
	m, err := segment.Map(segment.Config{Size: n, Shared: true})
	must(t, err)
	closeAtEnd(t, m)
	return m
}

// newNetworks makes the ranks of a job without connecting them.
func newNetworks(t fabrictest.T, n int, size int64, job string, onDown func(at, rank int, cause error)) ([]*Network, [][]byte) {
	t.Helper()
	nets, addrs := make([]*Network, n), make([][]byte, n)
	for r := range n {
		cfg := Config{Rank: r, Size: n, Segment: mapSegment(t, size), Job: job}
		if onDown != nil {
			cfg.OnDown = func(rank int, cause error) { onDown(r, rank, cause) }
		}
		net, err := New(cfg)
		must(t, err)
		closeAtEnd(t, net)
		nets[r], addrs[r] = net, net.Addr()
	}
	return nets, addrs
}

// connect joins all ranks.
func connect(ctx context.Context, nets []*Network, addrs [][]byte) error {
	errs := make(chan error)
	for _, n := range nets {
		go func() { errs <- n.Connect(ctx, addrs, nil) }()
	}
	var all []error
	for range nets {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

func joinAll(t fabrictest.T, n int, size int64) []*Network {
	t.Helper()
	nets, addrs := newNetworks(t, n, size, t.Name(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	must(t, connect(ctx, nets, addrs))
	return nets
}

func newLane(t fabrictest.T, n *Network) *lane {
	t.Helper()
	l, err := n.NewLane()
	must(t, err)
	closeAtEnd(t, l)
	return l.(*lane)
}

// loadWord reads an aligned word that a peer writes.
func loadWord(b []byte) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(b))))
}
