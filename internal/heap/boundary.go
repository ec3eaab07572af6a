package heap

import "github.com/ibconduit/conduit/internal/lockrank"

// boundary is what rank 0 knows of all ranks: how far local heaps may grow up, and how far the
// global heap has grown down. local + global <= size always.
type boundary struct {
	mu     lockrank.Mutex // Limit[1]
	size   uint64
	local  uint64 // no local heap is larger
	by     int    // the rank that needed so much
	global uint64
	epoch  uint64 // of the last reclaim that began
	reclaims,
	grants uint64
	busy bool // a reclaim is on its way: no local heap may grow
}

// grant is the answer to a rank that needs least bytes in its local heap, and would like want. The
// limit may be more than both, as another rank has as much; and 0, if there is not so much.
func (b *boundary) grant(rank int, want, least uint64) (limit uint64) {
	room := b.size - b.global
	if least > room {
		return 0
	}
	if to := min(max(want, least), room); to > b.local {
		b.local, b.by = to, rank
	}
	b.grants++
	return b.local
}

// extend lets the global heap grow by n, if there is so much.
func (b *boundary) extend(n uint64) bool {
	if n > b.size-b.local-b.global {
		return false
	}
	b.global += n
	return true
}
