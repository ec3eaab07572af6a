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
// do too. It blocks until they have agreed on who is dead, which needs all that are not, and takes a
// bounded time after the last of them has called it and the last death was found. Members that die
// meanwhile may be in the new team: then that is broken. After an error it can be called again.
//
// A member that one of them takes for dead is dead for all. If it lives it gets ErrExcluded, or,
// where no word of the others reaches it, a team without them.
func (t *Team) Shrink(ctx context.Context) (*Team, error) {
	if err := t.teams.enter(); err != nil {
		return nil, err
	}
	defer t.teams.leave()
	if t.known() == nil {
		t.broken.CompareAndSwap(nil, &BrokenError{Slot: t.slot, Reason: Shrunk, Rank: t.Member(t.me), Op: Shrink})
	}
	t.tell()
	turn := t.turns.join()
	if err := turn.wait(ctx); err != nil {
		return nil, fmt.Errorf("coll: %v: %w", Shrink, err)
	}
	defer t.turns.unlock()
	if how := t.ended.Load(); how != nil {
		return nil, t.usable()
	}
	dead, err := t.agree(ctx)
	if err != nil {
		return nil, fmt.Errorf("coll: %v: %w", Shrink, err)
	}
	var members []int32
	me := -1
	for i := range t.n {
		rank := t.Member(i)
		if dead.has(rank) {
			continue
		}
		if i == t.me {
			me = len(members)
		}
		members = append(members, int32(rank))
	}
	t.end("shrunk", false)
	generation := (t.generation + 1) & generations
	t.teams.mu.Lock()
	t.teams.slots[t.slot].generation = generation
	t.teams.mu.Unlock()
	return t.teams.newTeam(t.slot, generation, members, me), nil
}

// suspects is a set of ranks of the job.
type suspects []uint64

func (s suspects) has(rank int) bool { return s[rank/64]>>(rank%64)&1 == 1 }
func (s suspects) add(rank int)      { s[rank/64] |= 1 << (rank % 64) }

// digest stands for the set in a report.
func (s suspects) digest() uint64 {
	h := fnv.New64a()
	var b [8]byte
	for _, w := range s {
		binary.LittleEndian.PutUint64(b[:], w)
		h.Write(b[:])
	}
	return h.Sum64() & digests
}

// A report is the word in which a member tells the others its set:
// generation (24 bits), final (1), digest (39).
const (
	final   = 1 << 39
	digests = final - 1
)

// agreement is the state of a member that agrees with the others on who is dead.
//
// Each member has a set, which only grows. It keeps it in its own slot and writes a report of it into
// the slots of all others. One whose report differs is asked for its set, by a get. A member whose set
// all members outside of it have reported makes it final, and never changes it again; so does one that
// has had the set which a member outside of its own reports as final. Two live members cannot make
// different sets final: the larger one was reported by all outside of it, also by who made the
// smaller one final, which had it before and reported nothing after. Whatever the set, a
// member flushes before its first report. So when the set is final everything that the members had
// sent in the team has arrived, and the slot can be used again.
type agreement struct {
	dead     suspects
	had      map[uint64]suspects // reported before, by digest
	final    bool
	reported uint64
}

// agreeEvery is how often a member looks for reports.
const agreeEvery = time.Millisecond

func (t *Team) agree(ctx context.Context) (suspects, error) {
	if t.agreement == nil {
		if err := t.teams.flush(ctx); err != nil {
			return nil, err
		}
		t.agreement = &agreement{dead: make(suspects, suspectWords(t.teams.size)), had: map[uint64]suspects{}}
	}
	a := t.agreement
	for {
		if err := t.hear(ctx, a); err != nil {
			return nil, err
		}
		if a.dead.has(t.Member(t.me)) {
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
			return a.dead, t.teams.flush(ctx)
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
	}
}

// others are the members that a set leaves, without this one.
func (t *Team) others(dead suspects) func(yield func(rank int) bool) {
	return func(yield func(rank int) bool) {
		for i := range t.n {
			if rank := t.Member(i); i != t.me && !dead.has(rank) && !yield(rank) {
				return
			}
		}
	}
}

// reportAt is the place in a slot for a rank's report. Who has agreed may be at the next agreement
// while others still read what made this one final, but no further: that needs all. So there are two
// words, for even generations and odd ones. As a word has one writer, one that arrives late is
// overwritten by the writer's next.
func (t *Team) reportAt(rank int) uint64 {
	s := &t.teams.shape
	return s.reports + uint64(t.generation%2)*(s.suspects-s.reports)/2 + 8*uint64(rank)
}

// reportOf is what a member has reported in this team; 0: nothing.
func (t *Team) reportOf(rank int) uint64 {
	w := atomic.LoadUint64(word(t.mem, t.reportAt(rank)))
	if uint32(w>>40) != t.generation {
		return 0
	}
	return w & (final | digests)
}

// hear takes over what the job and the members know.
func (t *Team) hear(ctx context.Context, a *agreement) error {
	for rank := range t.others(a.dead) {
		r := t.reportOf(rank)
		if set, ok := a.had[r&digests]; ok && r&final != 0 && !a.final {
			a.dead, a.final = append(suspects(nil), set...), true
		}
		if a.final {
			return nil
		}
		if t.teams.env.Down(rank) != nil {
			a.dead.add(rank)
			continue
		}
		if r&digests != 0 && r&digests != a.reported&digests {
			if err := t.ask(ctx, a, rank, r&digests); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask gets a member's set, and takes over what is in it, if it is the one that it has reported.
func (t *Team) ask(ctx context.Context, a *agreement, rank int, digest uint64) error {
	b := make([]byte, 8*len(a.dead))
	if err := t.teams.get(ctx, rank, t.off+t.teams.shape.suspects, b); err != nil {
		return t.blame(rank, err)
	}
	set := make(suspects, len(a.dead))
	for i := range set {
		set[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	if set.digest() != digest {
		return nil // it has changed since, and will be reported
	}
	for other := range t.others(a.dead) {
		if set.has(other) {
			a.dead.add(other)
			t.teams.env.SetDown(other, fmt.Errorf("rank %d takes it for dead", rank))
		}
	}
	if me := t.Member(t.me); set.has(me) {
		a.dead.add(me)
	}
	return nil
}

// unanimous reports whether all that the set leaves have reported it.
func (t *Team) unanimous(a *agreement) bool {
	mine := a.dead.digest()
	if a.reported&digests != mine {
		return false
	}
	for rank := range t.others(a.dead) {
		if t.reportOf(rank)&digests != mine {
			return false
		}
	}
	return true
}

// report tells the others the set, if it is another one than before, or final.
func (t *Team) report(ctx context.Context, a *agreement) error {
	r := a.dead.digest()
	if a.final {
		r |= final
	}
	if r == a.reported {
		return nil
	}
	for i, w := range a.dead {
		atomic.StoreUint64(word(t.mem, t.teams.shape.suspects+8*uint64(i)), w)
	}
	a.had[r&digests] = append(suspects(nil), a.dead...)
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(t.generation)<<40|r)
	for rank := range t.others(a.dead) {
		err := t.teams.post(ctx, rank, t.off+t.reportAt(t.Member(t.me)), b[:])
		if err := t.blame(rank, err); err != nil {
			return err
		}
	}
	a.reported = r
	return nil
}

// blame has the job know of a death that an operation found. Other errors it returns.
func (t *Team) blame(rank int, err error) error {
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
