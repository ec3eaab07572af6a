package conduit

import (
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// peer is how a worker reaches one rank, beside the job's route to it. It takes 16 bytes, as each
// worker has as many as there are ranks.
type peer struct {
	base unsafe.Pointer // the user's region, where loads and stores reach it, unless the rank is down as of deathsSeen
	size uint64         // bytes at base; 0 when not mapped
}

// refresh makes the table of mapped segments reflect which ranks are down.
func (w *Worker) refresh() {
	seen := w.deaths.Load()
	for r := range w.peers {
		p := &w.peers[r]
		p.base, p.size = nil, 0
		if w.job.members.cause(r) != nil {
			continue
		}
		if w.job.latencies != nil && r != w.job.rank {
			continue
		}
		if w.job.needs.fenceMapped && (r != w.job.rank || w.job.needs.fenceOwn) {
			continue
		}
		user := w.routes[r].user
		if mem := w.lanes[w.routes[r].net].Mapped(r); uint64(len(mem)) >= w.begin+user { // the size comes from the peer
			p.base, p.size = unsafe.Pointer(unsafe.SliceData(mem[w.begin:])), user
		}
	}
	w.deathsSeen = seen
}

// check is valid after a death, and says what is wrong.
func (w *Worker) check(op string, node uint32, off, n uint64) (*route, error) {
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
	rt := &w.routes[rank]
	if err := fabric.CheckRange(op, rank, off, n, rt.user); err != nil {
		return nil, err
	}
	if cause := w.job.members.cause(rank); cause != nil {
		return nil, &PeerDownError{Rank: rank, Op: op, Cause: cause}
	}
	return rt, nil
}
