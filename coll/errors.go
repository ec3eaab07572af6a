package coll

import (
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/plain"
)

// ErrBroken is matched by every error of an operation that broke its team, and of all later ones of
// that team: a *BrokenError has the details.
var ErrBroken = errors.New("coll: the team is broken")

// ErrNoSlot is matched by *NoSlotError.
var ErrNoSlot = errors.New("coll: no slot is left for a team")

// ErrExcluded is returned by Shrink on a rank that the others take for dead.
var ErrExcluded = errors.New("coll: the other members take this rank for dead; it cannot stay in the job, end it")

// Reason is why a team is broken.
type Reason uint8

// The reasons.
const (
	Abandoned  Reason = iota // an operation ended before the others had done their part: its context ended, or it failed
	Mismatched               // members were in different operations
	Died                     // a member is dead
	Shrunk                   // a member has called Shrink
)

func (r Reason) String() string {
	switch r {
	case Abandoned:
		return "abandoned"
	case Mismatched:
		return "mismatched"
	case Died:
		return "died"
	case Shrunk:
		return "shrunk"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// BrokenError says what broke a team. It matches ErrBroken, and what Cause matches.
type BrokenError struct {
	Slot   int    // of the team
	Reason Reason // and
	Rank   int    // of the job: who gave up, found the mismatch, died, or called Shrink
	Op     Kind   // the operation that Rank was in; KindNone where that is not known
	Number uint64 // of that operation in its team, from 1; its low 14 bits where another rank broke the team
	Cause  error  // as far as this rank knows it; else nil
}

func (e *BrokenError) Error() string {
	var s string
	switch e.Reason {
	case Died:
		s = fmt.Sprintf("rank %d is dead", e.Rank)
	case Shrunk:
		s = fmt.Sprintf("rank %d has called Shrink", e.Rank)
	case Mismatched:
		s = fmt.Sprintf("rank %d found another operation where it was in its %v, number %d", e.Rank, e.Op, e.Number)
	default:
		s = fmt.Sprintf("rank %d gave up its %v, number %d", e.Rank, e.Op, e.Number)
	}
	s = fmt.Sprintf("the team in slot %d is broken: %s", e.Slot, s)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s + "; the live members can go on with the team that Shrink returns"
}

// Is reports whether target is ErrBroken.
func (e *BrokenError) Is(target error) bool { return target == ErrBroken }

// Unwrap returns the cause.
func (e *BrokenError) Unwrap() error { return e.Cause }

// MismatchError says that two members were in different operations, or in the same kind with
// another number, root or name. It breaks the team.
type MismatchError struct {
	Rank   int    // this one, of the job
	Op     Kind   // what it was in
	Number uint64 // which was that
	Peer   int    // the rank of the job whose message did not fit
	PeerOp Kind   // what that rank was in
}

func (e *MismatchError) Error() string {
	if e.Op == e.PeerOp {
		return fmt.Sprintf("rank %d and rank %d are both in %s, which is number %d here, but with another number, root "+
			"or name",
			e.Rank, e.Peer, errtext.A(e.Op), e.Number)
	}
	return fmt.Sprintf("rank %d is in %s, number %d, and rank %d in %s", e.Rank, errtext.A(e.Op), e.Number, e.Peer,
		errtext.A(e.PeerOp))
}

// LengthError says that a rank's buffer in a broadcast is not as long as the root's. Ranks are
// ranks of the team.
type LengthError struct {
	Op      string
	Rank    int // with a buffer of another length
	Len     uint64
	Root    int
	RootLen uint64
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("%s: rank %d has a buffer of %d bytes, root %d sends %d: they must be equal",
		e.Op, e.Rank, e.Len, e.Root, e.RootLen)
}

// NoSlotError says that a Split made no team, on every member. It matches ErrNoSlot.
type NoSlotError struct {
	Slots int // of each rank
	Color int // the least color for which the members have no free slot in common
}

func (e *NoSlotError) Error() string {
	return fmt.Sprintf("no slot is free on all members with color %d; a rank has %d: free teams that are not used "+
		"any more, or give the job more slots (Config.Slots)",
		e.Color, e.Slots)
}

// Is reports whether target is ErrNoSlot.
func (e *NoSlotError) Is(target error) bool { return target == ErrNoSlot }

// TypeError says that a type cannot be transferred because it holds pointers.
type TypeError = plain.TypeError

// PanicError says that a function of the program panicked in a reduction. It breaks the team.
type PanicError struct {
	Value any    // of the panic
	Stack []byte // of the goroutine then, as runtime/debug.Stack returns it
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("the function of a reduction panicked: %v", e.Value)
}

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
