package ibv

import (
	"encoding/binary"
	"fmt"
)

// table is published by a rank in Connect: the numbers of its queue pairs. Lanes' numbers are for
// the peers that are connected at start only.
type table struct {
	qkey      uint32     // of its datagrams
	listener  uint32     // of the connector; 0: there is none
	endpoints []uint32   // of the endpoints' datagrams; 0: that endpoint cannot be opened
	lanes     [][]uint32 // by lane, and by place of the peer among the near ones
}

const (
	tableVersion = 3
	tableFixed   = 9 // bytes, in front of the numbers of endpoints
)

func (t *table) encode() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32([]byte{tableVersion}, t.qkey)
	b = le.AppendUint32(b, t.listener)
	for _, list := range append([][]uint32{t.endpoints}, t.lanes...) {
		for _, q := range list {
			b = le.AppendUint32(b, q)
		}
	}
	return b
}

// decodeTable reads one with so many endpoints, lanes, and near peers.
func decodeTable(b []byte, endpoints, lanes, near int) (t table, err error) {
	if want := tableFixed + 4*(endpoints+lanes*near); len(b) != want || b[0] != tableVersion {
		return t, fmt.Errorf("queue pair table of %d bytes, want %d of version %d: "+
			"the numbers of lanes and of endpoints must be equal", len(b), want, tableVersion)
	}
	le := binary.LittleEndian
	t.qkey = le.Uint32(b[1:])
	t.listener = le.Uint32(b[5:])
	numbers := make([]uint32, endpoints+lanes*near)
	for i := range numbers {
		if numbers[i] = le.Uint32(b[tableFixed+4*i:]); numbers[i] > psnMask {
			return t, fmt.Errorf("queue pair number %#x", numbers[i])
		}
	}
	if t.listener > psnMask {
		return t, fmt.Errorf("queue pair number %#x", t.listener)
	}
	t.endpoints, numbers = numbers[:endpoints:endpoints], numbers[endpoints:]
	for range lanes {
		t.lanes = append(t.lanes, numbers[:near:near])
		numbers = numbers[near:]
	}
	return t, nil
}

// neighbors says which ranks are near: lanes connect to these at start. Distance is counted
// around the ring of ranks, so that of two ranks each is near to the other, or neither is.
type neighbors struct {
	size, half int
	count      int // the rank itself included
}

// newNeighbors has at most eager ranks near to each.
func newNeighbors(size, eager int) neighbors {
	if eager >= size-1 {
		return neighbors{size: size, count: size}
	}
	return neighbors{size: size, half: eager / 2, count: 1 + eager/2*2}
}

// all reports whether every rank is near to every other.
func (g neighbors) all() bool { return g.count == g.size }

// place is the place of a peer among those near to a rank, from 0, or negative.
func (g neighbors) place(rank, peer int) int {
	if p := (peer - rank + g.half + g.size) % g.size; p < g.count {
		return p
	}
	return -1
}

// at is the rank at a place.
func (g neighbors) at(rank, place int) int { return (rank - g.half + place + g.size) % g.size }
