package sim

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
)

// rig makes worlds for the suites.
type rig struct {
	Host
	cfg Config
}

func (h *rig) world(t fabrictest.T, n, size int) {
	cfg := h.cfg
	cfg.Ranks, cfg.SegmentSize = n, size
	w, err := New(cfg)
	must(t, err)
	h.W = w
	nets := make([]fabric.Network, n)
	for r := range n {
		nets[r] = w.Rank(r).Net()
		t.Cleanup(func() {
			if err := nets[r].Close(); err != nil {
				t.Error(err)
			}
		})
	}
	must(t, fabrictest.Connect(t.Context(), nets))
}

func (h *rig) ranks(t fabrictest.T, n, size int) (ranks []fabrictest.Rank) {
	h.world(t, n, size)
	for r := range n {
		ranks = append(ranks, fabrictest.Rank{Net: h.W.Rank(r).Net(), Segment: h.W.Rank(r).Segment()})
	}
	return ranks
}

func (h *rig) messengers(t fabrictest.T, n, size int) (ranks []fabrictest.MessageRank) {
	for r, x := range h.ranks(t, n, size) {
		ranks = append(ranks, fabrictest.MessageRank{Net: h.W.Rank(r).Net(), Segment: x.Segment})
	}
	return ranks
}

func TestContract(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
	}{
		{"Default", Config{Seed: 1}},
		{"ShallowQueues", Config{Seed: 2, Depth: 2, Lanes: 3}},
		{"WildJitter", Config{Seed: 3, Jitter: time.Millisecond, Depth: 200}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &rig{cfg: c.cfg}
			fabrictest.Run(t, fabrictest.Options{New: h.ranks, Host: h, SegmentSize: 1 << 20, Rounds: rounds, Checks: checks})
		})
	}
}

func TestMessageContract(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
	}{
		{"Default", Config{Seed: 1}},
		{"ShallowQueues", Config{Seed: 2, Queue: 3}},
		{"LossyNotes", Config{Seed: 3, Notes: Notes{Loss: 0.3, Dup: 0.3}, HandshakeTries: 60}},
		{"OneConnection", Config{Seed: 4, Connections: 1}},
		{"WildJitter", Config{Seed: 5, Jitter: time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &rig{cfg: c.cfg}
			fabrictest.RunMessages(t, fabrictest.MessageOptions{New: h.messengers, Host: h, Rounds: messageRounds})
		})
	}
}
