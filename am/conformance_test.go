package am_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// memory is the rig of the smallest network.
type memory struct {
	m    *amtest.Memory
	loss float64
}

func (r *memory) ranks(_ fabrictest.T, n, size int) []amtest.Rank {
	r.m = amtest.NewMemory(n, size)
	r.m.NoteLoss = r.loss
	ranks := make([]amtest.Rank, n)
	for i := range ranks {
		ranks[i] = amtest.Rank{Net: r.m.Rank(i), Segment: r.m.Rank(i).Segment}
	}
	return ranks
}

func (r *memory) kill(i int) { r.m.Kill(i, errors.New("killed by the test")) }

func TestConformanceInMemory(t *testing.T) {
	r := &memory{loss: 0.2}
	amtest.Run(t, amtest.Options{New: r.ranks, Kill: r.kill, Limit: 12 * time.Second})
}

// simulation is the rig of simulated networks.
type simulation struct {
	sim.Host
	cfg sim.Config
}

func (r *simulation) ranks(t fabrictest.T, n, size int) []amtest.Rank {
	cfg := r.cfg
	cfg.Ranks, cfg.SegmentSize = n, size
	w, err := sim.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	r.W = w
	ranks := make([]amtest.Rank, n)
	for i := range ranks {
		ranks[i] = amtest.Rank{Net: w.Rank(i).Net(), Segment: w.Rank(i).Segment(), Host: amtest.SimHost(w.Rank(i))}
	}
	return ranks
}

func (r *simulation) kill(i int) { r.W.Kill(i) }

func TestConformanceInSimulation(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    sim.Config
		rounds int
	}{
		{"Default", sim.Config{Seed: 1}, 60},
		{"FewConnections", sim.Config{Seed: 2, Connections: 1}, 60},
		{"LossyNotesShallowQueues", sim.Config{Seed: 3, Queue: 2, Notes: sim.Notes{Loss: 0.3, Dup: 0.3}, HandshakeTries: 60}, 60},
		{"WildJitter", sim.Config{Seed: 4, Jitter: time.Millisecond}, 15}, // a millisecond has many polls
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &simulation{cfg: c.cfg}
			amtest.Run(t, amtest.Options{New: r.ranks, Kill: r.kill, Host: r, Rounds: c.rounds})
		})
	}
}

var _ fabric.Messenger = (*amtest.MemoryRank)(nil)
