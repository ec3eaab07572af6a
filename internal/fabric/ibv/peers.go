//go:build linux && cgo

package ibv

import "github.com/ibconduit/conduit/internal/fabric"

// Size is the number of ranks of the job.
func (n *Network) Size() int { return n.cfg.Size }

// SegmentSize is the size of the segment of a rank that is served, from Connect on.
func (n *Network) SegmentSize(rank int) (size uint64, served bool) {
	if uint(rank) >= uint(len(n.peers)) || !n.peers[rank].served() {
		return 0, false
	}
	return n.peers[rank].size, true
}

// PeerDown makes operations to a rank fail, on every lane.
func (n *Network) PeerDown(rank int, cause error) {
	if rank < 0 || rank >= n.cfg.Size || !n.deaths.Add(rank, cause) {
		return
	}
	n.wakeEndpoints()
	n.connector.Wake()
}

// found is PeerDown for a death that a lane or an endpoint noticed.
func (n *Network) found(rank int, cause error) {
	report := n.cfg.OnDown
	if rank == n.cfg.Rank {
		report = nil
	}
	n.deaths.Report(n, rank, cause, report)
}

// reachable returns why nothing can be sent to a rank. The endpoint's mu is held, so that nothing
// is queued behind the end of a peer.
func (n *Network) reachable(op string, rank int) error {
	if err := fabric.CheckServed(n, op, rank); err != nil {
		return err
	}
	return n.deaths.Err(op, rank)
}

// wakeEndpoints ends their waits, so that they see which ranks are down.
func (n *Network) wakeEndpoints() {
	n.endpointsMu.Lock()
	defer n.endpointsMu.Unlock()
	for _, p := range n.endpoints {
		p.Wake()
	}
}
