package shm

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/fabrictest"
	"github.com/ibconduit/conduit/segment"
)

func TestContract(t *testing.T) {
	fabrictest.Run(t, fabrictest.Options{New: newRanks})
}

func TestMessageContract(t *testing.T) {
	setSleepLimit(t, time.Hour) // a lost wake-up must show
	fabrictest.RunMessages(t, fabrictest.MessageOptions{New: newMessageRanks})
}

func setSleepLimit(t testing.TB, d time.Duration) {
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
	for r := range n {
		m, err := segment.Map(segment.Config{Size: int64(size), Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		nets[r], err = New(Config{Rank: r, Size: n, Segment: m, Job: t.Name()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nets[r].Close(); err != nil {
				t.Error(err)
			}
		})
		ranks[r] = fabrictest.Rank{Net: nets[r], Segment: m.Bytes()}
	}
	if err := fabrictest.Connect(t.Context(), nets); err != nil {
		t.Fatal(err)
	}
	return ranks
}
