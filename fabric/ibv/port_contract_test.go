//go:build linux && cgo && (amd64 || arm64)

package ibv

import (
	"testing"

	"github.com/ibconduit/conduit/fabric/fabrictest"
)

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
