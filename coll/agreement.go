package coll

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"
)

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

// agreement is the state of a member that agrees with the others on the survivors.
//
// Each member has a set, which only grows. It keeps it in its own slot and writes a report of it
// into the slots of all others. One with another report has its set read, by a get. A member makes
// its set final that all members outside of it have reported, and never changes it again; so does
// one that has had the set which a member outside of its own reports as final. Two live members
// cannot make different sets final: the larger one was reported by all outside of it, also by the
// member that made the smaller one final, which had it before and reported nothing after. Whatever
// the set, a member flushes before its first report. So when the set is final everything that the
// members had sent in the team has arrived, and the slot can be used again.
type agreement struct {
	out      outside
	had      map[uint64]outside // reported before, by digest
	final    bool
	reported uint64
}

// agreeEvery is how often a member looks for reports. After remindAfter looks it sends its own
// again: where no launcher reports deaths the network finds those it sends to, as in no other way a
// member that died after it had taken the first.
const (
	agreeEvery  = time.Millisecond
	remindAfter = 1000
)

func (h *health) agree(ctx context.Context) (outside, error) {
	if h.agreement == nil {
		if err := h.shared.flush(ctx); err != nil {
			return nil, err
		}
		h.agreement = &agreement{out: make(outside, 2*setWords(h.shared.size)), had: map[uint64]outside{}}
	}
	a := h.agreement
	for looks := 1; ; looks++ {
		if err := h.hear(ctx, a); err != nil {
			return nil, err
		}
		if a.out.has(h.team.Member(h.team.me)) {
			return nil, ErrExcluded
		}
		if !a.final && h.unanimous(a) {
			a.final = true
		}
		if err := h.report(ctx, a); err != nil {
			return nil, err
		}
		if a.final {
			// Writes on their way to the others must not arrive in the slot's next team.
			return a.out, h.shared.flush(ctx)
		}
		select {
		case <-h.shared.env.Context().Done():
			return nil, errClosing
		default:
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		h.shared.env.Host().Sleep(agreeEvery)
		if looks%remindAfter == 0 {
			if err := h.remind(ctx, a); err != nil {
				return nil, err
			}
		}
	}
}

// remind sends the report again, and waits until it is where it belongs or its rank is down.
func (h *health) remind(ctx context.Context, a *agreement) error {
	if err := h.spread(ctx, a.reported, a.out.dead().bit); err != nil {
		return err
	}
	return h.shared.flush(ctx)
}

// hear takes over the knowledge of the job and the members.
func (h *health) hear(ctx context.Context, a *agreement) error {
	for rank := range h.team.others(a.out.has) {
		r := h.team.reportOf(rank)
		if set, ok := a.had[r&digests]; ok && r&final != 0 && !a.final {
			a.out, a.final = append(outside(nil), set...), true
		}
		switch {
		case a.final:
			return nil
		case h.shared.env.Down(rank) != nil:
			a.out.dead().set(rank)
		case r&digests == gaveUp:
			a.out.gone().set(rank)
		case r != 0 && r&digests != a.reported&digests:
			if err := h.ask(ctx, a, rank, r&digests); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask gets a member's set, and takes over its ranks, if it is the one that it has reported.
func (h *health) ask(ctx context.Context, a *agreement, rank int, digest uint64) error {
	b := make([]byte, 8*len(a.out))
	if err := h.shared.get(ctx, rank, h.team.off+h.shared.shape.sets, b); err != nil {
		return h.reportDeath(rank, err)
	}
	set := make(outside, len(a.out))
	for i := range set {
		set[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	if set.digest() != digest {
		return nil // it has changed since, and will be reported
	}
	if me := h.team.Member(h.team.me); set.has(me) {
		a.out.dead().set(me)
		return nil
	}
	for other := range h.team.others(func(int) bool { return false }) {
		if set.gone().bit(other) {
			a.out.gone().set(other)
		}
		if set.dead().bit(other) && !a.out.dead().bit(other) {
			a.out.dead().set(other)
			h.dismiss(ctx, other, brokenWord)
			h.shared.env.SetDown(other, fmt.Errorf("rank %d takes it for dead", rank))
		}
	}
	return nil
}

// unanimous reports whether all that the set leaves have reported it.
func (h *health) unanimous(a *agreement) bool {
	mine := a.out.digest()
	if a.reported&digests != mine {
		return false
	}
	for rank := range h.team.others(a.out.has) {
		if h.team.reportOf(rank)&digests != mine {
			return false
		}
	}
	return true
}

// report writes the set to the others, if it is another one than before, or final.
func (h *health) report(ctx context.Context, a *agreement) error {
	r := a.out.digest()
	if a.final {
		r |= final
	}
	if r == a.reported {
		return nil
	}
	for i, w := range a.out {
		atomic.StoreUint64(word(h.team.mem, h.shared.shape.sets+8*uint64(i)), w)
	}
	a.had[r&digests] = append(outside(nil), a.out...)
	if err := h.spread(ctx, r, a.out.dead().bit); err != nil {
		return err
	}
	a.reported = r
	return nil
}

// spread writes a report to the members that a set does not have. Those that have given the team up
// get it too: it says to them that what this rank had sent has arrived.
func (h *health) spread(ctx context.Context, report uint64, has func(rank int) bool) error {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(h.team.generation)<<40|report)
	for rank := range h.team.others(has) {
		err := h.shared.post(ctx, rank, h.team.off+h.team.reportAt(h.team.Member(h.team.me)), b[:])
		if err := h.reportDeath(rank, err); err != nil {
			return err
		}
	}
	return nil
}

// quiet reports whether nothing of a team that was given up can arrive any more.
func (h *health) quiet() bool {
	for range h.unheard() {
		return false
	}
	return true
}

// unheard are the members that may still send in a team that was given up.
func (h *health) unheard() func(yield func(rank int) bool) {
	return h.team.others(func(rank int) bool {
		return h.absent[rank] || h.team.reportOf(rank) != 0 || h.shared.env.Down(rank) != nil
	})
}
