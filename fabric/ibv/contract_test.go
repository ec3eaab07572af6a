//go:build linux && cgo && (amd64 || arm64)

package ibv

import (
	"testing"

	"github.com/ibconduit/conduit/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/owner"
)

func TestContract(t *testing.T) {
	still(t)
	fabrictest.Run(t, fabrictest.Options{
		New:    func(t fabrictest.T, n, size int) []fabrictest.Rank { return makeRanks(t, n, size, Config{}) },
		Checks: 20, Rounds: 50, SegmentSize: segmentBytes, LargeAllocates: owner.Checked,
	})
}

// The smallest queue makes every operation wait for the one before it.
func TestContractWithATinyQueue(t *testing.T) {
	still(t)
	fabrictest.Run(t, fabrictest.Options{
		New: func(t fabrictest.T, n, size int) []fabrictest.Rank {
			return makeRanks(t, n, size, Config{Depth: 2})
		},
		Checks: 5, Rounds: 10, SegmentSize: segmentBytes / 4, LargeAllocates: owner.Checked,
	})
}

func messengers(cfg Config) func(t fabrictest.T, n, size int) []fabrictest.MessageRank {
	return func(t fabrictest.T, n, size int) (ranks []fabrictest.MessageRank) {
		for _, r := range makeRanks(t, n, size, cfg) {
			ranks = append(ranks, fabrictest.MessageRank{Net: r.Net.(*Network), Segment: r.Segment})
		}
		return ranks
	}
}

func TestMessageContract(t *testing.T) {
	still(t)
	fabrictest.RunMessages(t, fabrictest.MessageOptions{New: messengers(Config{}), Rounds: 40})
}
