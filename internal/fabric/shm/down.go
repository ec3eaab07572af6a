package shm

// PeerDown makes operations on the rank fail. It does not call OnDown.
func (n *Network) PeerDown(rank int, cause error) {
	if rank < 0 || rank >= len(n.peers) || rank == n.cfg.Rank || !n.deaths.Add(rank, cause) {
		return
	}
	cause = n.deaths.Cause(rank)
	n.targets[rank].state.Store(down)
	n.eachEndpoint(func(ep *endpoint) { ep.link(rank).end(cause) })
}

// reportDown is PeerDown by what this network has seen itself.
func (n *Network) reportDown(rank int, cause error) { n.deaths.Report(n, rank, cause, n.cfg.OnDown) }

// protocolError ends a peer that breaks the rules. It may be called with any lock but the
// Network's.
func (n *Network) protocolError(from int, err error) {
	if from == n.cfg.Rank || n.closing.Load() {
		return
	}
	if n.peers[from].reported.CompareAndSwap(false, true) {
		n.watchers.Go(func() { n.reportDown(from, err) })
	}
}
