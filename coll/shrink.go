package coll

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// Shrink returns a team of the members that live, in the order of this one, which ends. All live
// members call it; whoever calls it breaks the team, so that the others' operations end and they
// do too. It blocks until they have agreed on who is dead, which needs all that are not, and takes
// a bounded time after the last of them has called it and the last death was found. Members that
// die meanwhile may be in the new team: then that is broken. After an error it can be called
// again, or the team left.
//
// A member that one of them takes for dead is dead for all. If it lives it gets ErrExcluded, or,
// where no word of the others reaches it, a team without them.
func (t *Team) Shrink(ctx context.Context) (*Team, error) {
	if err := t.teams.admit(KindShrink); err != nil {
		return nil, err
	}
	defer t.teams.leave()
	if t.ended.Load() != nil { // another team may have the slot
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, t.usable())
	}
	if t.known() == nil {
		t.broken.CompareAndSwap(nil, &BrokenError{Slot: t.slot, Reason: Shrunk, Rank: t.Member(t.me), Op: KindShrink})
	}
	t.tell()
	turn := t.turns.join()
	if err := turn.wait(ctx); err != nil {
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, err)
	}
	defer t.turns.unlock()
	if e := t.known(); e.Reason == Died && e.Rank == t.Member(t.me) {
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, ErrExcluded)
	}
	if t.ended.Load() != nil {
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, t.usable())
	}
	out, err := t.agree(ctx)
	if err != nil {
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, err)
	}
	var members []int32
	me := -1
	for i := range t.n {
		rank := t.Member(i)
		if out.has(rank) {
			continue
		}
		if i == t.me {
			me = len(members)
		}
		members = append(members, int32(rank))
	}
	t.end("shrunk", func(s *slot) { s.generation, t.over = t.next(), true })
	return t.teams.newTeam(t.slot, t.next(), members, me), nil
}

// outside is a set of ranks of the job that do not come along: in its first half a bit for each
// that is dead, in its second for each that has given the team up.
type outside []uint64

func (s outside) dead() outside     { return s[:len(s)/2] }
func (s outside) gone() outside     { return s[len(s)/2:] }
func (s outside) bit(rank int) bool { return s[rank/64]>>(rank%64)&1 == 1 }
func (s outside) set(rank int)      { s[rank/64] |= 1 << (rank % 64) }
func (s outside) has(rank int) bool { return s.dead().bit(rank) || s.gone().bit(rank) }

// digest stands for the set in a report.
func (s outside) digest() uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, w := range s {
		binary.LittleEndian.PutUint64(b[:], w)
		h.Write(b[:])
	}
	return 1 + h.Sum64()%(gaveUp-1)
}

// A report is the word in which a member tells the others its set:
// generation (24 bits), final (1), digest (39; 0: none; all ones: it has given the team up).
const (
	final   = 1 << 39
	digests = final - 1
	gaveUp  = digests
)

// agreement is the state of a member that agrees with the others on who comes along.
//
// Each member has a set, which only grows. It keeps it in its own slot and writes a report of it
// into the slots of all others. One whose report differs is asked for its set, by a get. A member
// whose set all members outside of it have reported makes it final, and never changes it again; so
// does one that has had the set which a member outside of its own reports as final. Two live
// members cannot make different sets final: the larger one was reported by all outside of it, also
// by who made the smaller one final, which had it before and reported nothing after. Whatever the
// set, a member flushes before its first report. So when the set is final everything that the
// members had sent in the team has arrived, and the slot can be used again.
type agreement struct {
	out      outside
	had      map[uint64]outside // reported before, by digest
	final    bool
	reported uint64
}

// agreeEvery is how often a member looks for reports. After remindAfter looks it sends its own
// again: where nobody reports deaths the network finds those it sends to, as in no other way a
// member that died after it had taken the first.
const (
	agreeEvery  = time.Millisecond
	remindAfter = 1000
)

func (t *health) agree(ctx context.Context) (outside, error) {
	if t.agreement == nil {
		if err := t.teams.flush(ctx); err != nil {
			return nil, err
		}
		t.agreement = &agreement{out: make(outside, 2*setWords(t.teams.size)), had: map[uint64]outside{}}
	}
	a := t.agreement
	for looks := 1; ; looks++ {
		if err := t.hear(ctx, a); err != nil {
			return nil, err
		}
		if a.out.has(t.Member(t.me)) {
			return nil, ErrExcluded
		}
		if !a.final && t.unanimous(a) {
			a.final = true
		}
		if err := t.report(ctx, a); err != nil {
			return nil, err
		}
		if a.final {
			// What is on its way to the others must not arrive in the slot's next team.
			return a.out, t.teams.flush(ctx)
		}
		select {
		case <-t.teams.env.Closing():
			return nil, errClosing
		default:
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		t.teams.env.Host().Sleep(agreeEvery)
		if looks%remindAfter == 0 {
			if err := t.remind(ctx, a); err != nil {
				return nil, err
			}
		}
	}
}

// remind sends the report again, and waits until it is where it belongs or its rank is down.
func (t *health) remind(ctx context.Context, a *agreement) error {
	if err := t.spread(ctx, a.reported, a.out.dead().bit); err != nil {
		return err
	}
	return t.teams.flush(ctx)
}

// others are the members that a set does not have, without this one.
func (t *roster) others(has func(rank int) bool) func(yield func(rank int) bool) {
	return func(yield func(rank int) bool) {
		for i := range t.n {
			if rank := t.Member(i); i != t.me && !has(rank) && !yield(rank) {
				return
			}
		}
	}
}

// reportAt is the place in a slot for a rank's report. Who has agreed may be at the next agreement
// while others still read what made this one final, but no further: that needs all. So there are
// two words, for even generations and odd ones. As a word has one writer, one that arrives late is
// overwritten by the writer's next.
func (t *roster) reportAt(rank int) uint64 {
	s := &t.teams.shape
	return s.reports + uint64(t.generation%2)*(s.sets-s.reports)/2 + 8*uint64(rank)
}

// reportOf is what a member has reported in this team; 0: nothing.
func (t *roster) reportOf(rank int) uint64 {
	w := atomic.LoadUint64(word(t.mem, t.reportAt(rank)))
	if uint32(w>>40) != t.generation {
		return 0
	}
	return w & (final | digests)
}

// hear takes over what the job and the members know.
func (t *health) hear(ctx context.Context, a *agreement) error {
	for rank := range t.others(a.out.has) {
		r := t.reportOf(rank)
		if set, ok := a.had[r&digests]; ok && r&final != 0 && !a.final {
			a.out, a.final = append(outside(nil), set...), true
		}
		switch {
		case a.final:
			return nil
		case t.teams.env.Down(rank) != nil:
			a.out.dead().set(rank)
		case r&digests == gaveUp:
			a.out.gone().set(rank)
		case r != 0 && r&digests != a.reported&digests:
			if err := t.ask(ctx, a, rank, r&digests); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask gets a member's set, and takes over what is in it, if it is the one that it has reported.
func (t *health) ask(ctx context.Context, a *agreement, rank int, digest uint64) error {
	b := make([]byte, 8*len(a.out))
	if err := t.teams.get(ctx, rank, t.off+t.teams.shape.sets, b); err != nil {
		return t.blame(rank, err)
	}
	set := make(outside, len(a.out))
	for i := range set {
		set[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	if set.digest() != digest {
		return nil // it has changed since, and will be reported
	}
	if me := t.Member(t.me); set.has(me) {
		a.out.dead().set(me)
		return nil
	}
	for other := range t.others(func(int) bool { return false }) {
		if set.gone().bit(other) {
			a.out.gone().set(other)
		}
		if set.dead().bit(other) && !a.out.dead().bit(other) {
			a.out.dead().set(other)
			t.dismiss(ctx, other, brokenWord)
			t.teams.env.SetDown(other, fmt.Errorf("rank %d takes it for dead", rank))
		}
	}
	return nil
}

// dismissal bounds how long a rank is waited for that may be dead.
const dismissal = 100 * time.Millisecond

// dismiss tells a rank that the others take it for dead, if it is not, in a word at a place of the
// slot, and breaks its other teams: afterwards nothing passes between them any more.
func (t *health) dismiss(ctx context.Context, rank int, place uint64) {
	m := t.teams
	ctx, cancel := m.env.Host().WithTimeout(ctx, dismissal)
	defer cancel()
	tell := func(t *roster, place uint64) error {
		var w [8]byte
		binary.NativeEndian.PutUint64(w[:], encodeBroken(t.generation, &BrokenError{Reason: Died, Rank: rank}))
		return m.post(ctx, rank, t.off+place, w[:])
	}
	err := tell(&t.roster, place)
	for _, other := range m.with(rank) {
		if &other.health != t && err == nil {
			err = tell(&other.roster, strayWord) // it may be done with that team
		}
	}
	if err == nil {
		_ = m.flush(ctx) // what fails goes to a rank that is down
	}
}

// unanimous reports whether all that the set leaves have reported it.
func (t *health) unanimous(a *agreement) bool {
	mine := a.out.digest()
	if a.reported&digests != mine {
		return false
	}
	for rank := range t.others(a.out.has) {
		if t.reportOf(rank)&digests != mine {
			return false
		}
	}
	return true
}

// report tells the others the set, if it is another one than before, or final.
func (t *health) report(ctx context.Context, a *agreement) error {
	r := a.out.digest()
	if a.final {
		r |= final
	}
	if r == a.reported {
		return nil
	}
	for i, w := range a.out {
		atomic.StoreUint64(word(t.mem, t.teams.shape.sets+8*uint64(i)), w)
	}
	a.had[r&digests] = append(outside(nil), a.out...)
	if err := t.spread(ctx, r, a.out.dead().bit); err != nil {
		return err
	}
	a.reported = r
	return nil
}

// spread writes a report to the members that a set does not have. Those that have given the team up
// get it too: it says to them that what this rank had sent has arrived.
func (t *health) spread(ctx context.Context, report uint64, has func(rank int) bool) error {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(t.generation)<<40|report)
	for rank := range t.others(has) {
		err := t.teams.post(ctx, rank, t.off+t.reportAt(t.Member(t.me)), b[:])
		if err := t.blame(rank, err); err != nil {
			return err
		}
	}
	return nil
}

// giveUp leaves a broken team for good. The others' Shrink does without this rank.
func (t *Team) giveUp(ctx context.Context) error {
	t.tell()
	if err := t.teams.flush(ctx); err != nil {
		return err
	}
	down := func(rank int) bool { return t.teams.env.Down(rank) != nil }
	if err := t.spread(ctx, gaveUp, down); err != nil {
		return err
	}
	if t.agreement != nil {
		// A Shrink was abandoned: the others may be on with a team that has this rank.
		e := &BrokenError{Reason: Abandoned, Rank: t.Member(t.me), Op: KindShrink}
		t.write(strayWord, encodeBroken(t.next(), e))
	}
	t.end("given up", func(s *slot) { s.left = t })
	return nil
}

// quiet reports whether nothing of a team that was given up can arrive any more.
func (t *health) quiet() bool {
	for range t.unheard() {
		return false
	}
	return true
}

// unheard are the members that may still send in a team that was given up.
func (t *health) unheard() func(yield func(rank int) bool) {
	return t.others(func(rank int) bool {
		return t.absent[rank] || t.reportOf(rank) != 0 || t.teams.env.Down(rank) != nil
	})
}

// next is the generation of the team that follows.
func (t *roster) next() uint32 { return successor(t.generation) }

// blame has the job know of a death that an operation found. Other errors it returns.
func (t *roster) blame(rank int, err error) error {
	if down := (*fabric.PeerDownError)(nil); errors.As(err, &down) && down.Rank == rank {
		t.teams.env.SetDown(rank, down.Cause)
		return nil
	}
	return err
}

// get reads from another rank's segment through the shared lanes.
func (m *Teams) get(ctx context.Context, rank int, off uint64, dst []byte) error {
	if err := m.shared.lock(ctx); err != nil {
		return err
	}
	defer m.shared.unlock()
	lane := m.lanes.To(rank)
	h, err := lane.Get(rank, off, dst, fabric.Blocking)
	if err == nil {
		_, err = lane.Wait(ctx, h)
	}
	return err
}
