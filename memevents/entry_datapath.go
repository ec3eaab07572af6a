package memevents

import (
	"fmt"
	"sync/atomic"
)

// entry is one slot of the C table (struct ibc_mem_entry). Its place never moves and is never
// freed.
type entry struct {
	state    atomic.Uint64 // generation<<2 | free, pending, valid, stale
	refs     atomic.Int32
	tag      uint32
	lo, hi   atomic.Uint64
	deadNext uint32
	watcher  uint8
	_        [3]uint8
	_        [4]uint32
}

const (
	free = iota
	pending
	valid
	stale
)

// gate is odd while events of userfaultfd are being taken in. It is replaced by the C table's,
// once, before there is any Ref.
var gate = new(atomic.Uint64)

// Ref names one claimed range: a slot and its generation. A Ref outlives its entry: it then fits no
// longer. The zero Ref fits nothing.
type Ref struct {
	e     *entry
	valid uint64 // the state word while the entry may be used
}

// Acquire takes a reference if the range has not changed since it was claimed. It is the hit path:
// two atomic loads and an increment of shared memory, a third load that makes sure, no lock and no
// cgo call. After true the registered memory is still at the addresses, or was when
// the call began; the registration may be used until Release. After false it must not be used for
// new operations.
func (r Ref) Acquire() bool {
	// The gate before the state: a caller that knows a range to be unmapped sees the gate odd, or
	// even again after the entry went stale.
	if r.e == nil || gate.Load()&1 != 0 || r.e.state.Load() != r.valid {
		return false
	}
	r.e.refs.Add(1)
	if r.e.state.Load() == r.valid {
		return true
	}
	r.e.refs.Add(-1)
	return false
}

// Release gives a reference back. It reports whether it was the last of an entry that is no longer
// valid: then the caller has to deregister and Retire it. Beyond the references acquired it panics:
// while the entry exists and no other caller holds it, or when its slot is another range's.
func (r Ref) Release() (dead bool) {
	if r.e.state.Load()>>2 != r.valid>>2 { // a reference keeps the generation
		panic(fmt.Sprintf("memevents: %v released after its end", r))
	}
	n := r.e.refs.Add(-1)
	if n < 0 {
		r.e.refs.Add(1) // the next range in the slot must not suffer
		panic(fmt.Sprintf("memevents: %v released more often than acquired", r))
	}
	return n == 0 && r.e.state.Load() != r.valid
}

// Valid reports whether Acquire would succeed, gate apart.
func (r Ref) Valid() bool { return r.e != nil && r.e.state.Load() == r.valid }

// Refs counts the references. It may for an instant count one that a failing Acquire takes back.
func (r Ref) Refs() int { return int(r.e.refs.Load()) }

// Tag is what Claim was given.
func (r Ref) Tag() uint32 { return r.e.tag }

// Range is the range claimed, rounded to pages.
func (r Ref) Range() (lo, hi uintptr) { return uintptr(r.e.lo.Load()), uintptr(r.e.hi.Load()) }

// IsZero reports whether this is the zero Ref.
func (r Ref) IsZero() bool { return r.e == nil }

func (r Ref) String() string {
	if r.e == nil {
		return "no range"
	}
	lo, hi := r.Range()
	return fmt.Sprintf("range [%#x,%#x), generation %d", lo, hi, r.valid>>2)
}
