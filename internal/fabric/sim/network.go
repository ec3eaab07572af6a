package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Network is one rank's attachment. It implements fabric.Messenger.
type Network struct {
	r         *Rank
	state     state
	absent    map[int32]struct{} // ranks that it does not serve; nil: none
	deaths    fabric.Deaths
	lanes     []*lane     // open
	endpoints []*endpoint // by number; nil: never opened
	open      int         // of endpoints
}

type state uint8

const (
	fresh state = iota
	joined
	closed
)

var (
	_ fabric.Messenger = (*Network)(nil)
	_ fabric.Peers     = (*Network)(nil)
)

const (
	copyMax = 192 // as verbs with inline data
	maxNote = 256

	maxMessage   = 1 << 20
	maxSlots     = 1 << 20
	maxEndpoints = 1 << 10

	addrLen     = 28
	addrVersion = 1
)

var addrMagic = []byte("ibcV")

// Name is "sim".
func (n *Network) Name() string { return "sim" }

// Addr is the rank's address; see the package's documentation.
func (n *Network) Addr() []byte {
	b := append(make([]byte, 0, addrLen), addrMagic...)
	b = append(b, addrVersion, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(n.r.id))
	b = binary.LittleEndian.AppendUint64(b, n.r.w.id)
	return binary.LittleEndian.AppendUint64(b, checksum(b))
}

func checksum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

// Reach accepts the addresses of this world's ranks.
func (n *Network) Reach(rank int, addr []byte) error {
	if rank < 0 || rank >= len(n.r.w.ranks) {
		return fmt.Errorf("sim: %w: %w", fabric.ErrUnreachable,
			&fabric.RankError{Op: "reach", Rank: rank, Size: len(n.r.w.ranks)})
	}
	if want := n.r.w.ranks[rank].net.Addr(); !bytes.Equal(addr, want) {
		return fmt.Errorf("sim: %w: these %d bytes are not the address of rank %d in this world",
			fabric.ErrUnreachable, len(addr), rank)
	}
	return nil
}

// Connect checks the addresses. Nothing needs to be exchanged.
func (n *Network) Connect(_ context.Context, addrs [][]byte, _ fabric.Exchange) error {
	if n.state != fresh {
		return errors.New("sim: Connect was called before, or after Close")
	}
	if len(addrs) != len(n.r.w.ranks) {
		return fmt.Errorf("sim: %d addresses for %d ranks", len(addrs), len(n.r.w.ranks))
	}
	for rank, a := range addrs {
		if a == nil {
			if n.absent == nil {
				n.absent = make(map[int32]struct{})
			}
			n.absent[int32(rank)] = struct{}{}
		} else if err := n.Reach(rank, a); err != nil {
			return err
		}
	}
	n.state = joined
	return nil
}

// Limits are those of the configuration.
func (n *Network) Limits() fabric.Limits {
	return fabric.Limits{CopyMax: copyMax, Depth: n.r.w.cfg.Depth, Lanes: n.r.w.cfg.Lanes}
}

// MessageLimits are what an endpoint's memory may be.
func (n *Network) MessageLimits() fabric.MessageLimits {
	return fabric.MessageLimits{MaxMessage: maxMessage, MaxNote: maxNote, MaxSlots: maxSlots, Endpoints: maxEndpoints}
}

// refuse is why nothing can be sent to a rank, if so.
func (n *Network) refuse(op string, peer int) error {
	if n.r.dead {
		return errKilled
	}
	if err := fabric.CheckServed(n, op, peer); err != nil {
		return err
	}
	return n.deaths.Err(op, peer)
}

// Size is the number of ranks.
func (n *Network) Size() int { return len(n.r.w.ranks) }

// SegmentSize is the size of the segment of a rank that the network serves.
func (n *Network) SegmentSize(peer int) (size uint64, served bool) {
	if peer < 0 || peer >= len(n.r.w.ranks) {
		return 0, false
	}
	if len(n.absent) > 0 {
		if _, ok := n.absent[int32(peer)]; ok {
			return 0, false
		}
	}
	return uint64(len(n.r.w.ranks[peer].segment)), true
}

// NewLane opens a lane.
func (n *Network) NewLane() (fabric.Lane, error) {
	limit := n.r.w.cfg.Lanes
	switch {
	case n.state != joined:
		return nil, fmt.Errorf("sim: NewLane needs a connected network: %w", os.ErrClosed)
	case n.r.dead:
		return nil, errKilled
	case limit > 0 && len(n.lanes) >= limit:
		return nil, fmt.Errorf("sim: all %d lanes of rank %d are open: %w", limit, n.r.id, fabric.ErrNoLane)
	}
	l := newLane(n)
	n.lanes = append(n.lanes, l)
	return l, nil
}

// Close ends the rank's share of the network. Its segment is gone for its peers.
func (n *Network) Close() error {
	if n.state == closed {
		return nil
	}
	if len(n.lanes) > 0 || n.open > 0 {
		return fmt.Errorf("sim: Close of rank %d with %d open lanes and %d open endpoints: %w",
			n.r.id, len(n.lanes), n.open, fabric.ErrBusy)
	}
	n.state = closed
	return nil
}
