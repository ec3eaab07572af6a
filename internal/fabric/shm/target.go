package shm

import (
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/segment"
)

// target is a rank as the data path sees it.
type target struct {
	base  unsafe.Pointer // first byte of its segment here
	size  uint64         // bytes
	state atomic.Uint32  // absent, up or down
	_     uint32
	_     uint64 // 32 bytes: no target lies across two cache lines
}

// States of a target. Other fields are fixed before it leaves absent.
const (
	absent = iota // this network does not serve the rank
	up
	down
)

// peer is another rank's share of the network.
type peer struct {
	mapping  *segment.Mapping // its segment mapped here; nil for this rank
	conn     *net.UnixConn    // open as long as both live
	reported atomic.Bool      // for a protocol error
	gone     atomic.Bool      // no thread of it touches shared memory any more
	sending  sync.Mutex       // of packets that must get through
	raw      syscall.RawConn
}

// Size is the number of ranks of the job.
func (n *Network) Size() int { return n.cfg.Size }

// SegmentSize is the size of the segment of a rank that is served.
func (n *Network) SegmentSize(rank int) (size uint64, served bool) {
	if uint(rank) >= uint(len(n.targets)) || n.targets[rank].state.Load() == absent {
		return 0, false
	}
	return n.targets[rank].size, true
}

// checkAlive is nil for a rank that is served and not down.
func (n *Network) checkAlive(op string, rank int) error {
	if err := fabric.CheckServed(n, op, rank); err != nil {
		return err
	}
	return n.deaths.Err(op, rank)
}

// Limits: operations complete at once, so nothing is ever in flight.
func (n *Network) Limits() fabric.Limits {
	return fabric.Limits{CopyMax: math.MaxInt, Depth: math.MaxInt32, CPUAtomics: true}
}

// What a cell is to the owner.
const (
	cellEmpty = iota
	cellFull
	cellBroken
)

// inspect is about the word of the cell at the head, in which a slot was posted.
func (n *Network) inspect(w, head uint64) int {
	r := wordRank(w)
	if wordTicket(w) != uint32(head) || r >= uint32(len(n.targets)) || wordState(w) != posted &&
		n.targets[r].state.Load() == absent {
		return cellBroken
	}
	switch wordState(w) {
	case full:
		return cellFull
	case posted:
		if r == 0 {
			return cellEmpty
		}
	case claimed:
		if !n.peers[r].gone.Load() {
			return cellEmpty // it is being written
		}
	}
	return cellBroken
}
