//go:build linux && cgo

package verbs

import (
	"sync"
	"weak"
)

// registry finds the CQ of an event from the number that its C object carries. It holds its CQs
// weakly, so that a forgotten one is noticed.
type registry struct {
	mu   sync.Mutex
	next uint64
	cqs  map[uint64]weak.Pointer[CQ]
}

func newRegistry() *registry { return &registry{cqs: map[uint64]weak.Pointer[CQ]{}} }

// put stores a CQ under a new number, before the C object exists, so that no event comes too early.
func (r *registry) put(q *CQ) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	r.cqs[r.next] = weak.Make(q)
	return r.next
}

// get returns nil where the CQ was closed meanwhile.
func (r *registry) get(id uint64) *CQ {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cqs[id].Value()
}

// overrun notes that a CQ has lost completions.
func (r *registry) overrun(id uint64) {
	if q := r.get(id); q != nil {
		q.overrun.Store(true)
	}
}

func (r *registry) drop(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cqs, id)
}
