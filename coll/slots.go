package coll

import (
	"sync"
	"sync/atomic"
)

// slot is one of a rank's shares of the region.
type slot struct {
	generation uint32 // of the last team in it
	taken      bool
	left       *Team // was given up here, and others may still send; nil else
}

// slots are the slots of one rank.
type slots struct {
	shared *shared
	mu     sync.Mutex
	all    []slot
}

// offer is the slots of this rank, as Split sends it to the others.
func (m *slots) offer() []slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.all {
		if s := &m.all[i]; s.left != nil && s.left.health.quiet() {
			s.left.over = true
			s.left, s.taken = nil, false
		}
	}
	return append([]slot(nil), m.all...)
}

// reserve takes a slot for a team, unless another Split of this rank was faster.
func (m *slots) reserve(slot int, generation uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.all[slot]
	if s.taken {
		return false
	}
	s.taken, s.generation = true, generation
	atomic.StoreUint64(m.reserved(slot), uint64(generation))
	return true
}

func (m *slots) unreserve(slot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[slot].taken = false
	atomic.StoreUint64(m.reserved(slot), 0)
}

func (m *slots) reserved(slot int) *uint64 {
	return word(m.shared.region.Bytes, uint64(slot)*m.shared.shape.slot+reservedWord)
}

// change does something to a slot.
func (m *slots) change(i int, f func(*slot)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.all[i])
}
