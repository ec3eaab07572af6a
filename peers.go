package conduit

import (
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// peer is how a worker reaches one rank, beside the job's route to it. It takes 16 bytes, as each
// worker has as many as there are ranks.
type peer struct {
	base unsafe.Pointer // the user's region, where loads and stores reach it, unless the rank is down
	size uint64         // bytes at base; 0 when not mapped
}

// refresh makes the table of mapped segments reflect which ranks are down.
func (w *Worker) refresh() {
	seen, c := w.deaths.Load(), w.job.cfg.Cache
	for r := range w.peers {
		p := &w.peers[r]
		p.base, p.size = nil, 0
		if w.job.members.cause(r) != nil {
			continue
		}
		if w.job.latencies != nil && r != w.job.rank {
			continue
		}
		if c != nil && (c.Check || c.Mapped && r != w.job.rank) {
			continue
		}
		user := w.routes[r].user
		if mem := w.lanes[w.routes[r].net].Mapped(r); uint64(len(mem)) >= w.begin+user { // the size comes from the peer
			p.base, p.size = unsafe.Pointer(unsafe.SliceData(mem[w.begin:])), user
		}
	}
	w.deathsSeen = seen
}

// check is valid where the job has learned something, and says what is wrong.
func (w *Worker) check(op string, node uint32, off, n uint64) (rt *route, rank int, err error) {
	rank = int(node) - 1
	switch {
	case w.peers == nil:
		return nil, 0, errClosed(op, "worker")
	case node == 0:
		return nil, 0, fmt.Errorf("%s: %w", op, ErrNullPtr)
	case node >= badRank:
		return nil, 0, &RankError{Op: op, Rank: -1, Size: len(w.peers)}
	case rank >= len(w.peers):
		return nil, 0, &RankError{Op: op, Rank: rank, Size: len(w.peers)}
	}
	w.catchUp()
	rt = &w.routes[rank]
	if err := fabric.CheckRange(op, rank, off, n, rt.user); err != nil {
		return nil, rank, err
	}
	if cause := w.job.members.cause(rank); cause != nil {
		return nil, rank, &PeerDownError{Rank: rank, Op: op, Cause: cause}
	}
	return rt, rank, nil
}
