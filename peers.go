package conduit

import (
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
)

// peer is how a worker reaches one rank.
type peer struct {
	base       unsafe.Pointer // the user's region, where loads and stores reach it
	size       uint64         // bytes at base; 0 when not mapped
	cpuAtomics bool           // atomics on base are allowed
	user       uint64         // the region's size, mapped or not
	down       bool           // as of deathsSeen
	data, amo  fabric.Lane
}

// refresh makes the table of mapped segments reflect which ranks are down.
func (w *Worker) refresh() {
	seen := w.deaths.Load()
	for r := range w.peers {
		p := &w.peers[r]
		p.base, p.size, p.cpuAtomics = nil, 0, false
		if p.down = w.job.members.cause(r) != nil; p.down {
			continue
		}
		if mem := p.data.Mapped(r); uint64(len(mem)) >= w.begin+p.user { // the size comes from the peer
			p.base, p.size = unsafe.Pointer(unsafe.SliceData(mem[w.begin:])), p.user
			p.cpuAtomics = w.job.networks.routes[r].cpuAtomics
		}
	}
	w.deathsSeen = seen
}

// check is valid after a death, and says what is wrong.
func (w *Worker) check(op string, node uint32, off, n uint64) (*peer, error) {
	rank := int(node) - 1
	switch {
	case w.peers == nil:
		return nil, errClosed(op, "worker")
	case node == 0:
		return nil, fmt.Errorf("%s: %w", op, ErrNullPtr)
	case node >= badRank:
		return nil, &RankError{Op: op, Rank: -1, Size: len(w.peers)}
	case rank >= len(w.peers):
		return nil, &RankError{Op: op, Rank: rank, Size: len(w.peers)}
	}
	if w.deathsSeen != w.deaths.Load() {
		w.refresh()
	}
	p := &w.peers[rank]
	if err := fabric.CheckRange(op, rank, off, n, p.user); err != nil {
		return nil, err
	}
	if cause := w.job.members.cause(rank); cause != nil {
		return nil, &PeerDownError{Rank: rank, Op: op, Cause: cause}
	}
	return p, nil
}
