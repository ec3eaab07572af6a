package amtest_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/handle/handletest"
	"github.com/ibconduit/conduit/segment"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(childMain(role))
	}
	handletest.VerifyTestMain(m)
}

// watchdogLimit bounds what only a broken network would not end. A rank in a process of its own
// lives for a minute in a VM on a busy machine.
const watchdogLimit = 3 * time.Minute

// group makes ranks of a real network in this process.
type group struct {
	make func(t fabrictest.T, rank, size int, m *segment.Mapping) (fabric.Messenger, error)
	nets []fabric.Messenger
}

func (g *group) ranks(t fabrictest.T, n, size int) []amtest.Rank {
	g.nets = nil
	ranks, nets := make([]amtest.Rank, n), make([]fabric.Network, n)
	for r := range n {
		m, err := segment.Map(segment.Config{Size: int64(size), Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closed(t, m.Close()) })
		net, err := g.make(t, r, n, m)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closed(t, net.Close()) })
		ranks[r] = amtest.Rank{Net: net, Segment: m.Bytes()[:size]}
		g.nets, nets[r] = append(g.nets, net), net
	}
	ctx, cancel := context.WithTimeout(t.Context(), watchdogLimit)
	defer cancel()
	if err := fabrictest.Connect(ctx, nets); err != nil {
		t.Fatal(err)
	}
	return ranks
}

func closed(t fabrictest.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

// kill tells all ranks of a death, as a launcher does. Processes that die in truth are in
// process_test.go.
func (g *group) kill(i int) {
	cause := errors.New("killed by the test")
	for r, n := range g.nets {
		if r != i {
			n.PeerDown(i, cause)
			g.nets[i].PeerDown(r, cause)
		}
	}
}
