package coll

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// membership is the members of a team, and the place of its memory.
type membership struct {
	shared     *shared
	slot       int
	generation uint32
	members    []int32 // ranks of the job; nil: all
	me, n      int
	rails      int
	off        uint64 // of the slot in a segment
	mem        []byte // the slot in this rank's
}

// Rank is this rank's in the team, from 0.
func (t *membership) Rank() int { return t.me }

// Size is the number of members.
func (t *membership) Size() int { return t.n }

// Slot is the number of the team's slot, which errors name. Teams that exist at the same time and
// have a member in common have different slots.
func (t *membership) Slot() int { return t.slot }

// Member is a member's rank in the job, for its rank in the team.
func (t *membership) Member(rank int) int {
	if t.members == nil {
		return rank
	}
	return int(t.members[rank])
}

// Index is the rank in the team of a rank of the job; -1: it is no member.
func (t *membership) Index(rank int) int {
	if t.members == nil {
		return rank
	}
	return slices.Index(t.members, int32(rank))
}

func (t *membership) String() string {
	return fmt.Sprintf("team of %d in slot %d", t.n, t.slot)
}

// wordOf is a word that breaks the team; 0: there is none.
func (t *membership) wordOf(off uint64) uint64 {
	if w := atomic.LoadUint64(word(t.mem, off)); uint32(w>>40) == t.generation {
		return w
	}
	return 0
}

// Places in a slot of the word that breaks a team. The second is for what may still be on its way
// when another team has the slot: it must not overwrite the first. In the third others read which
// team the slot was reserved for last. The fourth is this member's own. In the fifth others
// read where it is.
const (
	brokenWord   = 0
	strayWord    = 8
	reservedWord = 16
	memoryWord   = 24
	whereWord    = 32
)

// encodeBroken is the word that says in a member's slot what broke the team:
// generation (24 bits), reason (2), kind (4), rank of the job (20), low bits of the number (14).
func encodeBroken(generation uint32, e *BrokenError) uint64 {
	return uint64(generation)<<40 | uint64(e.Reason)<<38 | uint64(e.Op)<<34 | uint64(e.Rank)<<14 | e.Number&numberMask
}

const numberMask = 1<<14 - 1

func (t *membership) decodeBroken(w uint64) *BrokenError {
	e := &BrokenError{Slot: t.slot, Reason: Reason(w >> 38 & 3), Op: Kind(w >> 34 & 15),
		Rank:   int(w >> 14 & (maxRanks - 1)),
		Number: w & numberMask}
	if e.Reason == Died {
		e.Cause = &fabric.PeerDownError{Rank: e.Rank, Op: "collective operation", Cause: errElsewhere}
	}
	return e
}

var errElsewhere = errors.New("another member found that")

// write writes the word that breaks a team into the slot of every other member.
func (t *membership) write(off, broken uint64) {
	var w [8]byte
	binary.NativeEndian.PutUint64(w[:], broken)
	for i := 1; i < t.n; i++ {
		to := t.Member((t.me + i) % t.n)
		// What fails is a rank that is down, and needs no word.
		_ = t.shared.post(context.Background(), to, t.off+off, w[:])
	}
}

// neighbour reports whether there is a rail between this rank and another.
func (t *membership) neighbour(other int) bool {
	for r := range t.rails {
		if (t.me+1<<r)%t.n == other || (other+1<<r)%t.n == t.me {
			return true
		}
	}
	return false
}

// before is the member that a rail of this rank comes from, after the one that it goes to.
func (t *membership) before(rail int) int { return (t.me + t.n - 1<<rail) % t.n }
func (t *membership) after(rail int) int  { return (t.me + 1<<rail) % t.n }

// ticket is the high 32 bits of a message's word: generation (24) and number in its rail (8).
func (t *membership) ticket(message uint64) uint64 { return uint64(t.generation)<<8 | message&0xff }

// lowest is the lowest set bit of a number of members in a binomial tree: the rail to its parent,
// or from it. Those below are to children. The root's are all.
func (t *membership) lowest(v int) int {
	if v == 0 {
		return t.rails
	}
	return bits.TrailingZeros(uint(v))
}

// mirrored is this member's number when they are counted down from root, and the rail to its parent
// in a binomial tree, with its number but the lowest bit. The members below it are the ones before
// it.
func (t *membership) mirrored(root int) (v, low int) {
	v = (root - t.me + t.n) % t.n
	return v, t.lowest(v)
}

// aheadOf is how many messages a word of a pair counts beyond n; 0 if it is of another team.
func (t *membership) aheadOf(w uint64, n uint32) int {
	if uint32(w>>40) != t.generation {
		return 0
	}
	return max(0, int(int8(uint8(w>>32)-uint8(n))))
}

// scratch is memory of this member's alone.
func (t *membership) scratch() []byte {
	s := &t.shared.shape
	return t.mem[s.scratch : s.scratch+s.scratchSize]
}

// others are the members that a set does not have, without this one.
func (t *membership) others(has func(rank int) bool) func(yield func(rank int) bool) {
	return func(yield func(rank int) bool) {
		for i := range t.n {
			if rank := t.Member(i); i != t.me && !has(rank) && !yield(rank) {
				return
			}
		}
	}
}

// A report is the word in which a member reports its set:
// generation (24 bits), final (1), digest (39; 0: none; all ones: it has given the team up).
const (
	final   = 1 << 39
	digests = final - 1
	gaveUp  = digests
)

// reportAt is the place in a slot for a rank's report. A member that has agreed may be at the next
// agreement while others still read the reports of this one, but no further: that needs all. So
// there are two words, for even generations and odd ones. As a word has one writer, one that
// arrives late is overwritten by the writer's next.
func (t *membership) reportAt(rank int) uint64 {
	s := &t.shared.shape
	return s.reports + uint64(t.generation%2)*(s.sets-s.reports)/2 + 8*uint64(rank)
}

// reportOf is what a member has reported in this team; 0: nothing.
func (t *membership) reportOf(rank int) uint64 {
	w := atomic.LoadUint64(word(t.mem, t.reportAt(rank)))
	if uint32(w>>40) != t.generation {
		return 0
	}
	return w & (final | digests)
}

// next is the generation of the team that follows.
func (t *membership) next() uint32 { return successor(t.generation) }

// A generation names a team among those that its slot has had on any of its members, in 24 bits.
// The lower half counts. The upper half is a hash of the Split that the team is from: where a
// Split fails on some members the others do not know that it took the next number.
const (
	generations = 1<<24 - 1
	counts      = 1<<12 - 1
)

// successor is the generation behind one. The counter comes round to 2: unwritten memory
// has words of generation 0, and odd and even follow each other (reportAt).
func successor(g uint32) uint32 {
	if g&counts == counts {
		return g&^counts | 2
	}
	return g + 1
}

func word(mem []byte, off uint64) *uint64 { return (*uint64)(unsafe.Pointer(&mem[off])) }
