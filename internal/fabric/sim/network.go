package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Network is one rank's attachment. It implements fabric.Messenger.
type Network struct {
	r         *Rank
	state     state
	absent    map[int32]struct{} // ranks that it does not serve; nil: none
	down      map[int32]error    // dead ranks, and how that was found out
	lanes     []*lane            // open
	endpoints []*endpoint        // by number; nil: never opened
	open      int                // of endpoints
}

type state uint8

const (
	fresh state = iota
	joined
	closed
)

var _ fabric.Messenger = (*Network)(nil)

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

// words is memory aligned to 8 bytes.
func words(n int) []byte {
	w := make([]uint64, n/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), n)
}

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

// PeerDown makes everything that has to do with the rank fail.
func (n *Network) PeerDown(rank int, cause error) {
	if rank < 0 || rank >= len(n.r.w.ranks) || n.r.dead {
		return
	}
	if cause == nil {
		cause = errors.New("reported without a cause")
	}
	n.markDown(int32(rank), cause)
}

// markDown reports whether it was the first to know.
func (n *Network) markDown(rank int32, cause error) bool {
	if rank == n.r.id || n.down[rank] != nil {
		return false
	}
	if n.down == nil {
		n.down = make(map[int32]error)
	}
	n.down[rank] = cause
	n.r.w.emit(markDown, n.r.id, rank, 0, 0)
	for _, l := range n.lanes {
		l.peerDown(rank)
	}
	for _, p := range n.endpoints {
		if p != nil && !p.closed {
			p.peerDown(rank, cause)
		}
	}
	return true
}

// reportDown is markDown for what traffic shows.
func (n *Network) reportDown(rank int32, cause error) {
	if n.r.dead || !n.markDown(rank, cause) {
		return
	}
	if f := n.r.w.cfg.OnDown; f != nil {
		n.r.Go("OnDown", func(context.Context) error { f(n.r, int(rank), cause); return nil })
	}
}

// refuse is why nothing can be sent to a rank, if so.
func (n *Network) refuse(op string, peer int) error {
	if err := n.served(op, peer); err != nil {
		return err
	}
	if len(n.down) > 0 {
		if cause := n.down[int32(peer)]; cause != nil {
			return &fabric.PeerDownError{Rank: peer, Op: op, Cause: cause}
		}
	}
	return nil
}

// served is nil for a rank that the network serves, down or not.
func (n *Network) served(op string, peer int) error {
	size := len(n.r.w.ranks)
	if n.r.dead {
		return errKilled
	}
	if peer < 0 || peer >= size {
		return &fabric.RankError{Op: op, Rank: peer, Size: size}
	}
	if len(n.absent) > 0 {
		if _, ok := n.absent[int32(peer)]; ok {
			return &fabric.RankError{Op: op, Rank: peer, Size: size}
		}
	}
	return nil
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

// die is the death of the rank: a random part of what is on its way arrives.
func (n *Network) die() {
	for _, l := range n.lanes {
		l.die()
	}
	for _, p := range n.endpoints {
		if p != nil {
			p.die()
		}
	}
}
