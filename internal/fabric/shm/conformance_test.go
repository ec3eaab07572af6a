package shm

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
)

func TestContract(t *testing.T) {
	fabrictest.Run(t, fabrictest.Options{New: newRanks})
}

func TestMessageContract(t *testing.T) {
	setSleepLimit(t, time.Hour) // a lost wake-up must show
	fabrictest.RunMessages(t, fabrictest.MessageOptions{New: newMessageRanks})
}

func setSleepLimit(t fabrictest.T, d time.Duration) {
	was := sleepLimit
	sleepLimit = d
	t.Cleanup(func() { sleepLimit = was })
}

func newMessageRanks(t fabrictest.T, n, size int) []fabrictest.MessageRank {
	ranks := make([]fabrictest.MessageRank, n)
	for i, r := range newRanks(t, n, size) {
		ranks[i] = fabrictest.MessageRank{Net: r.Net.(*Network), Segment: r.Segment}
	}
	return ranks
}

// newRanks is the suite's factory.
func newRanks(t fabrictest.T, n, size int) []fabrictest.Rank {
	ranks, nets := make([]fabrictest.Rank, n), make([]fabric.Network, n)
	shm, _ := newNetworks(t, n, int64(size), t.Name(), nil)
	for r, net := range shm {
		nets[r], ranks[r] = net, fabrictest.Rank{Net: net, Segment: net.cfg.Segment.Bytes()}
	}
	must(t, fabrictest.Connect(t.Context(), nets))
	return ranks
}
