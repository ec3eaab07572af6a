package fabric

import "fmt"

// Peers is a network as the checks of operations see it.
type Peers interface {
	Network
	// Size is the number of ranks of the job.
	Size() int
	// SegmentSize is the size of a rank's segment in bytes; false: the network does not serve the
	// rank.
	SegmentSize(rank int) (n uint64, served bool)
}

// CheckServed returns a *RankError unless the network serves the rank, down or not.
func CheckServed(n Peers, op string, rank int) error {
	if _, served := n.SegmentSize(rank); !served {
		return &RankError{Op: op, Rank: rank, Size: n.Size()}
	}
	return nil
}

// CheckTarget returns why an operation on n bytes at an offset of a rank's segment is wrong, be the
// rank down or not.
func CheckTarget(net Peers, op string, rank int, off, n uint64) error {
	size, served := net.SegmentSize(rank)
	if !served {
		return &RankError{Op: op, Rank: rank, Size: net.Size()}
	}
	return CheckRange(op, rank, off, n, size)
}

// CheckBatch returns why a batch is wrong whatever happens to the peers: a mistake in building it
// or in posting it with q.
func CheckBatch(net Peers, b *Batch, q *Completions) error {
	if err := b.Check(q); err != nil {
		return fmt.Errorf("%s: %w", net.Name(), err)
	}
	for i := range b.pieces {
		p := &b.pieces[i]
		if err := CheckTarget(net, p.Op(), p.Peer, p.Off, p.Len()); err != nil {
			return err
		}
		if p.Memory != nil {
			if err := p.Memory.Check(net); err != nil {
				return fmt.Errorf("%s: %s: %w", net.Name(), p.Op(), err)
			}
		}
		if p.Kind == KindAtomic {
			size, _ := net.SegmentSize(p.Peer)
			if err := p.Atomic.Check(p.Peer, p.Off, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// Check returns why an endpoint of a number cannot have a configuration.
func (l MessageLimits) Check(i int, cfg EndpointConfig) error {
	switch {
	case i < 0 || i >= l.Endpoints:
		return fmt.Errorf("no endpoint %d (endpoints are 0 to %d)", i, l.Endpoints-1)
	case cfg.Slots < 1 || cfg.Slots > l.MaxSlots || cfg.SlotSize < 1 || cfg.SlotSize > l.MaxMessage:
		return fmt.Errorf("an endpoint has 1 to %d slots of 1 to %d bytes, not %d of %d",
			l.MaxSlots, l.MaxMessage, cfg.Slots, cfg.SlotSize)
	case cfg.Sends < 1 || cfg.Sends > l.MaxSlots || cfg.Reserved < 0 || cfg.Reserved >= cfg.Sends:
		return fmt.Errorf("an endpoint has 1 to %d send buffers and reserves fewer than all, not %d and %d",
			l.MaxSlots, cfg.Sends, cfg.Reserved)
	}
	return nil
}
