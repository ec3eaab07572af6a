//go:build linux && cgo

package ibv

import "github.com/ibconduit/conduit/internal/fabric"

// PinnedBytes is how much memory a network with so many lanes, each of so many work requests to a
// peer, and with these endpoints registers beside the segment.
func PinnedBytes(lanes, depth int, endpoints []fabric.EndpointConfig) uint64 {
	n := pages(datagramBytes) + min(max(lanes, 0), maxLanes)*pages(slabBytes(smallBlocks(depth)))
	for _, e := range endpoints {
		n += pages(newLayout(e).bytes)
	}
	return uint64(n)
}

// pages rounds up to whole pages, which is what a device pins.
func pages(n int) int { return (n + pageSize - 1) &^ (pageSize - 1) }

const pageSize = 4096

// datagramBytes is the connector's memory for datagrams.
const datagramBytes = dgramRecvs*inStride + dgramSends*datagramMax
