package coll

import (
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Counters are those of the lanes that all teams of the rank share.
func (t *Team) Counters() fabric.Counters {
	var c fabric.Counters
	for _, l := range t.shared.lanes.All() {
		c = c.Add(l.Counters().Load())
	}
	return c
}

// NumberMask are the bits of an operation's number that a rank tells the others that breaks a team.
const NumberMask = numberMask

// Places are where messages of pairs arrive in a team's slot.
func Places(t *Team) (all [places][]byte) {
	s := &t.shared.shape
	for i := range all {
		at := s.places + uint64(i)*s.place
		all[i] = t.mem[at : at+s.place]
	}
	return all
}

// Notices are the numbers of the operations that other members of a team have said that they are
// in; 0: none. They are less than 1<<20.
func Notices(t *Team) (all []uint64) {
	for r := range t.rails {
		all = append(all, atomic.LoadUint64(word(t.mem, t.shared.shape.notices+8*uint64(r)))>>16&(1<<20-1))
	}
	return all
}
