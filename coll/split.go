package coll

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Undefined is the color of a member that Split puts in no team.
const Undefined = math.MinInt

// Split makes a team of the members that give the same color, ordered by key, and by rank in this
// team where keys are equal, as MPI_Comm_split does. It returns nil where the color is
// Undefined. Every member calls it. Without a slot that is free on all members of a color no team
// is made, every member gets the same *NoSlotError, and this team goes on.
func (t *Team) Split(ctx context.Context, color, key int) (made *Team, err error) {
	err = t.run(ctx, &call{kind: KindSplit, do: func(o *op) (err error) {
		made, err = t.split(o, color, key)
		if errors.Is(err, ErrNoSlot) { // which all members know
			o.verdict, err = fmt.Errorf("coll: %v: %w", KindSplit, err), nil
		}
		return err
	}})
	return made, err
}

// splitTries is how often members choose slots, when another Split of one of them is faster.
const splitTries = 8

// member is what one of the team gives to a Split.
type member struct {
	color, key int
	rank       int // in the team
	slots      []slot
}

func (t *Team) split(o *op, color, key int) (*Team, error) {
	m := t.teams
	if err := m.slots.sift(o.ctx); err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		blobs, err := o.rails.gatherEqual(encodeMember(color, key, m.slots.offer()))
		if err != nil {
			return nil, err
		}
		groups := decodeMembers(blobs, t.n, m.shared.shape.slots)
		if try == splitTries {
			return nil, &NoSlotError{Slots: m.shared.shape.slots, Color: groups[0][0].color}
		}
		// Splits of other teams at the same time begin to look for a slot elsewhere.
		salt := t.generation ^ t.generation>>12 ^ uint32(o.sign) ^ uint32(try)<<9
		p, err := choose(groups, t.me, t.slot*5+try*3, m.shared.shape.slots, salt)
		if err != nil {
			return nil, err
		}
		ok := byte(1)
		if p != nil && !m.slots.reserve(p.slot, p.generation) {
			ok = 0
		}
		oks, err := o.rails.gatherEqual([]byte{ok})
		if err == nil && !slices.Contains(oks, 0) {
			if p == nil {
				return nil, nil
			}
			return t.join(p), nil
		}
		if err != nil {
			if p != nil && ok == 1 {
				t.decline(o.ctx, p, err)
			}
			return nil, err
		}
		if p != nil && ok == 1 {
			m.slots.unreserve(p.slot)
		}
		m.shared.env.Host().Sleep(time.Duration(try+1) * time.Duration(t.slot+1) * time.Millisecond)
	}
}

// join makes the new team.
func (t *Team) join(p *part) *Team {
	members := make([]int32, len(p.group))
	for i, g := range p.group {
		members[i] = int32(t.Member(g.rank))
	}
	return t.teams.newTeam(p.slot, p.generation, members, p.me)
}

// decline leaves a team that others may already have, and this rank has not: the Split has failed
// here.
func (t *Team) decline(ctx context.Context, p *part, cause error) {
	made := t.join(p)
	made.parent, made.health.absent = t, make(map[int]bool)
	made.health.fail(KindSplit, 0, cause)
	// What fails is the network, or this rank was killed: no member can be reached.
	_ = made.giveUp(context.WithoutCancel(ctx))
}

// sift finds the members that never had a team that this rank declined, and so do not say that they
// are done with it: a Split may fail at members before they know the new team. Those that are done
// with the team that was split have the new one, or will never have it.
func (m *slots) sift(ctx context.Context) error {
	var declined []*Team
	var unheard [][]int
	m.mu.Lock()
	for i := range m.all {
		if t := m.all[i].left; t != nil && t.parent != nil && t.parent.over {
			declined, unheard = append(declined, t), append(unheard, slices.Collect(t.health.unheard()))
		}
	}
	m.mu.Unlock()
	for i, t := range declined {
		for _, rank := range unheard[i] {
			var b [8]byte
			err := t.shared.get(ctx, rank, t.off+reservedWord, b[:])
			if err := t.health.reportDeath(rank, err); err != nil {
				return err
			}
			if err == nil && binary.NativeEndian.Uint64(b[:]) != uint64(t.generation) {
				m.mu.Lock()
				t.health.absent[rank] = true
				m.mu.Unlock()
			}
		}
	}
	return nil
}

// part is this member's new team.
type part struct {
	group      []member
	me         int // in it
	slot       int
	generation uint32
}

// choose finds a slot for each group, as all members do from the same data. It returns this
// member's, nil without one.
func choose(groups [][]member, me, from, slots int, salt uint32) (mine *part, err error) {
	for _, g := range groups {
		p := part{group: g, me: slices.IndexFunc(g, func(x member) bool { return x.rank == me }), slot: -1}
		for i := 0; i < slots && p.slot < 0; i++ {
			at := (from + i) % slots
			if !slices.ContainsFunc(g, func(x member) bool { return x.slots[at].taken }) {
				p.slot = at
			}
		}
		if p.slot < 0 {
			return nil, &NoSlotError{Slots: slots, Color: g[0].color}
		}
		for _, x := range g {
			p.generation = max(p.generation, x.slots[p.slot].generation&counts)
		}
		p.generation = successor(p.generation) | salt<<12&generations
		if p.me >= 0 {
			mine = &p
		}
	}
	return mine, nil
}

func encodeMember(color, key int, slots []slot) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(int64(color)))
	b = binary.LittleEndian.AppendUint64(b, uint64(int64(key)))
	for _, s := range slots {
		x := s.generation
		if s.taken {
			x |= 1 << 31
		}
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

// decodeMembers returns the groups in the order of their colors, without members that are in none.
func decodeMembers(b []byte, n, slots int) [][]member {
	var all []member
	for i := range n {
		x := member{color: int(int64(binary.LittleEndian.Uint64(b))), key: int(int64(binary.LittleEndian.Uint64(b[8:]))),
			rank: i}
		b = b[16:]
		if x.color != Undefined {
			for s := range slots {
				v := binary.LittleEndian.Uint32(b[4*s:])
				x.slots = append(x.slots, slot{generation: v & generations, taken: v>>31 == 1})
			}
			all = append(all, x)
		}
		b = b[4*slots:]
	}
	slices.SortStableFunc(all, func(a, b member) int {
		return cmp.Or(cmp.Compare(a.color, b.color), cmp.Compare(a.key, b.key), cmp.Compare(a.rank, b.rank))
	})
	var groups [][]member
	for from, i := 0, 1; i <= len(all); i++ {
		if i == len(all) || all[i].color != all[from].color {
			groups = append(groups, all[from:i])
			from = i
		}
	}
	return groups
}

// Free gives the team's slot back. Every member calls it, and it waits for all, as a barrier does.
// The team cannot be used afterwards. A broken team is not freed: Shrink it, or Leave it. Where a
// member breaks the team within Free it may have ended on others; members that get an error call
// Leave then, and this slot is lost to them.
func (t *Team) Free(ctx context.Context) error {
	if t == t.teams.all {
		return errors.New("coll: the team of all ranks is the job's, and cannot be freed")
	}
	return t.run(ctx, &call{kind: KindFree, do: func(o *op) error {
		// What a member has not waited for, acknowledgements, has arrived before it enters the
		// barrier; and behind the barrier every member has its messages of it.
		if err := t.shared.flush(o.ctx); err != nil {
			return err
		}
		if err := o.rails.meet(); err != nil {
			return err
		}
		t.end("freed", func(s *slot) { s.taken = false })
		return nil
	}})
}

// Leave gives a broken team up for this rank, which waits for no member: the others' Shrink does
// without it. The slot is free again when each of the others has called Shrink or Leave.
func (t *Team) Leave(ctx context.Context) error {
	if err := t.teams.gate.admit("leave"); err != nil {
		return err
	}
	defer t.teams.gate.leave()
	if t.health.known() == nil && t.health.ended.Load() == nil {
		return fmt.Errorf("coll: %v is not broken: all members call Free", t)
	}
	turn := t.turns.join()
	err := turn.wait(ctx)
	if err == nil {
		defer t.turns.unlock()
		if t.health.ended.Load() != nil {
			err = t.health.usable()
		} else {
			err = t.giveUp(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("coll: leave: %w", err)
	}
	return nil
}
