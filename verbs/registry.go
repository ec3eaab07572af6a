//go:build linux && cgo

package verbs

import (
	"sync"
	"weak"
)

// registry finds the Go object of an event from the number that its C object carries. It holds its
// objects weakly, so that a forgotten one is noticed.
type registry struct {
	mu   sync.Mutex
	next uint64
	cqs  map[uint64]weak.Pointer[CQ]
	qps  map[uint64]weak.Pointer[QP]
	srqs map[uint64]weak.Pointer[SRQ]
}

func newRegistry() *registry {
	return &registry{cqs: map[uint64]weak.Pointer[CQ]{}, qps: map[uint64]weak.Pointer[QP]{}, srqs: map[uint64]weak.Pointer[SRQ]{}}
}

// put stores an object in one of the maps under a new number, before the C object exists, so that
// no event comes too early.
func put[T any](r *registry, m map[uint64]weak.Pointer[T], x *T) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	m[r.next] = weak.Make(x)
	return r.next
}

func get[T any](r *registry, m map[uint64]weak.Pointer[T], id uint64) *T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return m[id].Value()
}

func drop[T any](r *registry, m map[uint64]weak.Pointer[T], id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(m, id)
}
