//go:build linux && cgo && (amd64 || arm64)

package ibv

import (
	"testing"

	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/owner"
)

func TestContract(t *testing.T) {
	for _, c := range []struct {
		name                  string
		cfg                   Config
		checks, rounds, bytes int
	}{
		{"Default", Config{}, 20, 50, segmentBytes},
		{"TinyQueue", Config{Depth: 2}, 5, 10, segmentBytes / 4},             // every operation waits for the one before it
		{"NoCopies", Config{ZeroCopyMin: 1, Depth: 8}, 10, 30, segmentBytes}, // all that may be registered is, down to CopyMax
		{"OnDemand", Config{Eager: -1}, 5, 20, segmentBytes},
		{"OneConnection", Config{Eager: -1, Connections: 1, Depth: 8}, 5, 20, segmentBytes}, // each operation on another rank closes one and makes one
	} {
		t.Run(c.name, func(t *testing.T) {
			still(t)
			fabrictest.Run(t, fabrictest.Options{
				New:    func(t fabrictest.T, n, size int) []fabrictest.Rank { return makeRanks(t, n, size, c.cfg) },
				Checks: c.checks, Rounds: c.rounds, SegmentSize: c.bytes, LargeAllocates: owner.Checked,
			})
		})
	}
}

func TestMessageContract(t *testing.T) {
	still(t)
	fabrictest.RunMessages(t, fabrictest.MessageOptions{Rounds: 40, New: func(t fabrictest.T, n, size int) (ranks []fabrictest.MessageRank) {
		for _, r := range makeRanks(t, n, size, Config{}) {
			ranks = append(ranks, fabrictest.MessageRank{Net: r.Net.(*Network), Segment: r.Segment})
		}
		return ranks
	}})
}
