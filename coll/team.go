package coll

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"github.com/ibconduit/conduit/fabric"
)

// Team is a list of ranks of the job, as one of them sees it, with an order of operations of its
// own. Methods may be called from any goroutine; operations run one after the other, in the order
// in which they were called. The members must call the same ones in the same order.
type Team struct {
	health

	// The rest belongs to who has the turn.
	turns  turns
	op     op     // that runs
	number uint64 // of operations begun

	// The rest belongs to who has Teams.mu.
	parent *Team // that was split, of a team which this rank declined; nil else
	over   bool  // no other member is in an operation of this team any more
}

// roster is who is in a team, and where its memory is.
type roster struct {
	teams      *Teams
	slot       int
	generation uint32
	members    []int32 // ranks of the job; nil: all
	me, n      int
	rails      int
	off        uint64 // of the slot in a segment
	mem        []byte // the slot in this rank's

	// The rest belongs to who has the turn.
	rail  []rail
	pairs *pairs // nil before the first operation that needs them
}

// health is whether a team is broken, who has been told so, and what is agreed on the dead.
type health struct {
	roster
	broken    atomic.Pointer[BrokenError]
	paired    atomic.Bool            // messages went to others than neighbours
	told      atomic.Bool            // the others know, or need not be told from here
	ended     atomic.Pointer[string] // how: "freed", "shrunk"
	agreement *agreement             // of who has the turn
	absent    map[int]bool           // under Teams.mu: ranks of the job that never had a team which this rank declined
}

// Rank is this rank's in the team, from 0.
func (t *roster) Rank() int { return t.me }

// Size is the number of members.
func (t *roster) Size() int { return t.n }

// Slot is the number of the team's slot, which errors name. Teams that exist at the same time and
// have a member in common have different slots.
func (t *roster) Slot() int { return t.slot }

// Member is a member's rank in the job, for its rank in the team.
func (t *roster) Member(rank int) int {
	if t.members == nil {
		return rank
	}
	return int(t.members[rank])
}

// Index is the rank in the team of a rank of the job; -1: it is no member.
func (t *roster) Index(rank int) int {
	if t.members == nil {
		return rank
	}
	return slices.Index(t.members, int32(rank))
}

// Broken is what broke the team, as far as this rank knows: nil or a *BrokenError. Once the job is
// closed it learns of nothing more.
func (t *health) Broken() error {
	if t.teams.enter() != nil { // the slot's memory is gone
		if e := t.broken.Load(); e != nil {
			return e
		}
		return nil
	}
	defer t.teams.leave()
	if e := t.known(); e != nil {
		return e
	}
	return nil
}

func (t *roster) String() string {
	return fmt.Sprintf("team of %d in slot %d", t.n, t.slot)
}

// usable is why no operation can begin.
func (t *health) usable() error {
	if how := t.ended.Load(); how != nil {
		return fmt.Errorf("the team in slot %d was %s: %w", t.slot, *how, os.ErrClosed)
	}
	if e := t.known(); e != nil {
		return t.heed(e)
	}
	return nil
}

// heed takes a rank for dead that another member found down: an operation is about to say so, and
// whatever else goes to that rank must agree. It may live, and cannot be told afterwards.
func (t *health) heed(e *BrokenError) *BrokenError {
	env := t.teams.env
	if e.Reason == Died && e.Rank != env.Rank() && env.Down(e.Rank) == nil {
		t.dismiss(context.Background(), e.Rank, e.place())
		if t.blame(e.Rank, e.Cause) != nil { // it does not say why
			env.SetDown(e.Rank, e.Cause)
		}
	}
	return e
}

// known is what broke the team. It looks whether another member has written it into the slot.
func (t *health) known() *BrokenError {
	if e := t.broken.Load(); e != nil {
		return e
	}
	w := t.wordOf(brokenWord)
	if w == 0 {
		w = t.wordOf(strayWord)
	}
	if w == 0 {
		return nil
	}
	if t.broken.CompareAndSwap(nil, t.decodeBroken(w)) {
		t.told.Store(true) // who wrote it told all
	}
	return t.broken.Load()
}

// wordOf is a word that breaks the team; 0: nobody has written one for it.
func (t *roster) wordOf(off uint64) uint64 {
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

func (t *roster) decodeBroken(w uint64) *BrokenError {
	e := &BrokenError{Slot: t.slot, Reason: Reason(w >> 38 & 3), Op: Kind(w >> 34 & 15), Rank: int(w >> 14 & (maxRanks - 1)),
		Number: w & numberMask}
	if e.Reason == Died {
		e.Cause = &fabric.PeerDownError{Rank: e.Rank, Op: "collective operation", Cause: errElsewhere}
	}
	return e
}

var errElsewhere = errors.New("another member found that")

// lose breaks the team because a member is dead.
func (t *health) lose(rank int, cause error) {
	t.broken.CompareAndSwap(nil, &BrokenError{Slot: t.slot, Reason: Died, Rank: rank,
		Cause: &fabric.PeerDownError{Rank: rank, Op: "collective operation", Cause: cause}})
}

// fail breaks the team because an operation failed here, unless it is broken already, and has the
// others know. It returns what broke the team.
func (t *health) fail(kind Kind, number uint64, cause error) *BrokenError {
	e := &BrokenError{Slot: t.slot, Reason: Abandoned, Rank: t.Member(t.me), Op: kind, Number: number, Cause: cause}
	down, mismatch := (*fabric.PeerDownError)(nil), (*MismatchError)(nil)
	switch {
	case errors.As(cause, &down) && t.Index(down.Rank) >= 0:
		e = &BrokenError{Slot: t.slot, Reason: Died, Rank: down.Rank, Op: kind, Number: number, Cause: down}
	case errors.As(cause, &mismatch):
		e.Reason = Mismatched
	}
	if t.known() == nil {
		t.broken.CompareAndSwap(nil, e)
	}
	t.tell()
	return t.heed(t.broken.Load())
}

// tell writes why the team is broken into the slot of every other member, once, unless one of them
// did. Of a death the job tells every rank; here only those write it that the dead rank has a rail
// from or to, or that have sent to others than neighbours, who may be the only ones to find out.
func (t *health) tell() {
	e := t.broken.Load()
	if e.Reason == Died && !t.paired.Load() && !t.neighbour(t.Index(e.Rank)) || t.told.Swap(true) {
		return
	}
	off := e.place()
	t.write(off, encodeBroken(t.generation, e))
}

// place is that of the word for the others.
func (e *BrokenError) place() uint64 {
	if e.Op == KindFree || e.Op == KindSplit && e.Number == 0 {
		return strayWord // others may be done with the team, or have never had it
	}
	return brokenWord
}

// write writes the word that breaks a team into the slot of every other member.
func (t *roster) write(off, broken uint64) {
	var w [8]byte
	binary.NativeEndian.PutUint64(w[:], broken)
	for i := 1; i < t.n; i++ {
		to := t.Member((t.me + i) % t.n)
		// What fails is a rank that is down, and needs no word.
		_ = t.teams.post(context.Background(), to, t.off+off, w[:])
	}
}

// neighbour reports whether there is a rail between this rank and another.
func (t *roster) neighbour(other int) bool {
	for r := range t.rails {
		if (t.me+1<<r)%t.n == other || (other+1<<r)%t.n == t.me {
			return true
		}
	}
	return false
}
