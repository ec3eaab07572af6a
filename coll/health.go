package coll

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// health is whether a team is broken, which members know it, and the agreement on the dead.
type health struct {
	team      *membership
	shared    *shared
	open      *open // all teams of this rank
	broken    atomic.Pointer[BrokenError]
	paired    atomic.Bool            // messages went to others than neighbours
	announced atomic.Bool            // the others know, or need not be told from here
	ended     atomic.Pointer[string] // how: "freed", "shrunk"
	agreement *agreement             // of who has the turn
	absent    map[int]bool           // under slots.mu: ranks of the job that never had a team which this rank declined
}

// open are the teams of this rank that have not ended.
type open struct {
	mu    sync.Mutex
	teams map[*health]struct{}
}

func (o *open) add(h *health) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.teams[h] = struct{}{}
}

func (o *open) remove(h *health) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.teams, h)
}

// with are the teams that a rank is in, and this one.
func (o *open) with(rank int) (teams []*health) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for h := range o.teams {
		if h.team.Index(rank) >= 0 {
			teams = append(teams, h)
		}
	}
	slices.SortFunc(teams, func(a, b *health) int { return a.team.slot - b.team.slot }) // a simulation repeats itself
	return teams
}

// usable is why no operation can begin.
func (h *health) usable() error {
	if how := h.ended.Load(); how != nil {
		return fmt.Errorf("the team in slot %d was %s: %w", h.team.slot, *how, os.ErrClosed)
	}
	if e := h.known(); e != nil {
		return h.heed(e)
	}
	return nil
}

// heed takes a rank for dead that another member found down: an operation is about to say so, and
// all that goes to that rank must agree. It may live, and cannot be reached afterwards.
func (h *health) heed(e *BrokenError) *BrokenError {
	env := h.shared.env
	if e.Reason == Died && e.Rank != env.Rank() && env.Down(e.Rank) == nil {
		h.dismiss(context.Background(), e.Rank, e.place())
		if h.reportDeath(e.Rank, e.Cause) != nil { // it does not say why
			env.SetDown(e.Rank, e.Cause)
		}
	}
	return e
}

// known is what broke the team. It looks whether another member has written it into the slot.
func (h *health) known() *BrokenError {
	if e := h.broken.Load(); e != nil {
		return e
	}
	w := h.team.wordOf(brokenWord)
	if w == 0 {
		w = h.team.wordOf(strayWord)
	}
	if w == 0 {
		return nil
	}
	if h.broken.CompareAndSwap(nil, h.team.decodeBroken(w)) {
		h.announced.Store(true) // who wrote it told all
	}
	return h.broken.Load()
}

// lose breaks the team because a member is dead.
func (h *health) lose(rank int, cause error) {
	h.broken.CompareAndSwap(nil, &BrokenError{Slot: h.team.slot, Reason: Died, Rank: rank,
		Cause: &fabric.PeerDownError{Rank: rank, Op: "collective operation", Cause: cause}})
}

// fail breaks the team because an operation failed here, unless it is broken already, and has the
// others know. It returns what broke the team.
func (h *health) fail(kind Kind, number uint64, cause error) *BrokenError {
	e := &BrokenError{Slot: h.team.slot, Reason: Abandoned, Rank: h.team.Member(h.team.me), Op: kind, Number: number,
		Cause: cause}
	down, mismatch := (*fabric.PeerDownError)(nil), (*MismatchError)(nil)
	switch {
	case errors.As(cause, &down) && h.team.Index(down.Rank) >= 0:
		e = &BrokenError{Slot: h.team.slot, Reason: Died, Rank: down.Rank, Op: kind, Number: number, Cause: down}
	case errors.As(cause, &mismatch):
		e.Reason = Mismatched
	}
	if h.known() == nil {
		h.broken.CompareAndSwap(nil, e)
	}
	h.announce()
	return h.heed(h.broken.Load())
}

// announce writes why the team is broken into the slot of every other member, once, unless one of
// them did. The job reports a death to every rank; here only members write it that the dead rank
// has a rail from or to, or that have sent to others than neighbours, which may be the only ones to
// find out.
func (h *health) announce() {
	e := h.broken.Load()
	if e.Reason == Died && !h.paired.Load() && !h.team.neighbour(h.team.Index(e.Rank)) || h.announced.Swap(true) {
		return
	}
	off := e.place()
	h.team.write(off, encodeBroken(h.team.generation, e))
}

// place is the place of the word for the others.
func (e *BrokenError) place() uint64 {
	if e.Op == KindFree || e.Op == KindSplit && e.Number == 0 {
		return strayWord // others may be done with the team, or have never had it
	}
	return brokenWord
}

// dismissal bounds how long a rank is waited for that may be dead.
const dismissal = 100 * time.Millisecond

// dismiss lets a rank know that the others take it for dead, if it is not, in a word at a place of
// the slot, and breaks its other teams: afterwards nothing passes between them any more.
func (h *health) dismiss(ctx context.Context, rank int, place uint64) {
	m := h.shared
	ctx, cancel := m.env.Host().WithTimeout(ctx, dismissal)
	defer cancel()
	write := func(t *membership, place uint64) error {
		var w [8]byte
		binary.NativeEndian.PutUint64(w[:], encodeBroken(t.generation, &BrokenError{Reason: Died, Rank: rank}))
		return m.post(ctx, rank, t.off+place, w[:])
	}
	err := write(h.team, place)
	for _, other := range h.open.with(rank) {
		if other != h && err == nil {
			err = write(other.team, strayWord) // it may be done with that team
		}
	}
	if err == nil {
		_ = m.flush(ctx) // what fails goes to a rank that is down
	}
}

// reportDeath has the job know of a death that an operation found. Other errors it returns.
func (h *health) reportDeath(rank int, err error) error {
	if down := (*fabric.PeerDownError)(nil); errors.As(err, &down) && down.Rank == rank {
		h.shared.env.SetDown(rank, down.Cause)
		return nil
	}
	return err
}
