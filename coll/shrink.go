package coll

import (
	"context"
	"fmt"
)

// Shrink returns a team of the members that live, in the order of this one, which ends. All live
// members call it; the first call breaks the team, so that the others' operations end and they
// do too. It blocks until they have agreed on the dead, which needs all the others, and takes
// a bounded time after the last of them has called it and the last death was found. Members that
// die meanwhile may be in the new team: then that is broken. After an error it can be called
// again, or the team left.
//
// A member that one of them takes for dead is dead for all. If it lives it gets ErrExcluded, or,
// where no word of the others reaches it, a team without them.
func (t *Team) Shrink(ctx context.Context) (*Team, error) {
	if err := t.teams.gate.admit(KindShrink); err != nil {
		return nil, err
	}
	defer t.teams.gate.leave()
	if t.health.ended.Load() != nil { // another team may have the slot
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, t.health.usable())
	}
	if t.health.known() == nil {
		t.health.broken.CompareAndSwap(nil, &BrokenError{Slot: t.slot, Reason: Shrunk, Rank: t.Member(t.me), Op: KindShrink})
	}
	t.health.announce()
	turn := t.turns.join()
	if err := turn.wait(ctx); err != nil {
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, err)
	}
	defer t.turns.unlock()
	if e := t.health.known(); e.Reason == Died && e.Rank == t.Member(t.me) {
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, ErrExcluded)
	}
	if t.health.ended.Load() != nil {
		return nil, fmt.Errorf("coll: %v: %w", KindShrink, t.health.usable())
	}
	out, err := t.health.agree(ctx)
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

// giveUp leaves a broken team for good. The others' Shrink does without this rank.
func (t *Team) giveUp(ctx context.Context) error {
	t.health.announce()
	if err := t.shared.flush(ctx); err != nil {
		return err
	}
	down := func(rank int) bool { return t.shared.env.Down(rank) != nil }
	if err := t.health.spread(ctx, gaveUp, down); err != nil {
		return err
	}
	if t.health.agreement != nil {
		// A Shrink was abandoned: the others may be on with a team that has this rank.
		e := &BrokenError{Reason: Abandoned, Rank: t.Member(t.me), Op: KindShrink}
		t.write(strayWord, encodeBroken(t.next(), e))
	}
	t.end("given up", func(s *slot) { s.left = t })
	return nil
}
