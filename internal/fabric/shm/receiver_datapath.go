package shm

import (
	"sync"
	"sync/atomic"
)

// receiver is the owner's view of its ring.
type receiver struct {
	*ring
	mu     sync.Mutex
	head   uint64 // ticket of the next message; written by Poll, with mu
	next   uint64 // ticket of the next slot that is posted
	slotOf []uint32
	lent   []bool // by slot: it is the program's
}

func (r *receiver) open(g *ring) {
	r.ring, r.slotOf, r.lent = g, make([]uint32, g.mask+1), make([]bool, g.count)
	for id := range g.count {
		r.postLocked(id)
	}
}

func (r *receiver) postLocked(id uint32) {
	r.lent[id] = false
	r.slotOf[r.next&r.mask] = id
	r.post(r.next, id)
	r.next++
}

// changed is false while the slot at the head waits for a message.
func (r *receiver) changed() bool {
	return atomic.LoadUint64(&r.cell(r.head).word) != wordOf(r.head, posted, 0)
}

// skipLocked gives up the cell at the head and posts its slot again, behind the others.
// It is false if the cell changed meanwhile.
func (r *receiver) skipLocked(w uint64) bool {
	if !r.giveUp(r.head, w) {
		return false
	}
	id := r.slotOf[r.head&r.mask]
	r.head++
	r.postLocked(id)
	return true
}
