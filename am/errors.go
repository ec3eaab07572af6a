package am

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unicode/utf8"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
)

// The obstacles that requests with [NoWait] return, in the order in which they are met. The others
// wait for them.
var (
	// ErrNotConnected: the rank was never heard of; a question for credits is on its way.
	ErrNotConnected = errors.New("am: not connected yet: poll, then try again")
	// ErrNoCredit: the rank grants no more now, or others wait in front.
	ErrNoCredit = credit.ErrNoCredit
	// ErrNoReply: too many calls are unanswered. Only calls meet it, and they wait: it is counted, in
	// Stats.NoReply.
	ErrNoReply = credit.ErrNoReply
	// ErrNoBuffer: every send buffer is in use.
	ErrNoBuffer = fmt.Errorf("am: no send buffer is free: %w", fabric.ErrAgain)
	// ErrQueueFull: the network's queue to the rank.
	ErrQueueFull = fmt.Errorf("am: the queue to the rank is full: %w", fabric.ErrAgain)
)

var (
	// ErrNoEndpoint says that what a request was to go through has no endpoint to the rank.
	ErrNoEndpoint = errors.New("am: there is no endpoint to go through: register the handlers before the job is " +
		"joined (conduit.Config.Handlers; nil takes am.Default), and use a worker that is open")
	// ErrClosed says that the endpoint is closed, or was while something was under way.
	ErrClosed = fmt.Errorf("am: endpoint: %w", os.ErrClosed)
	// errSealed is for requests behind EndRequests.
	errSealed = fmt.Errorf("%w: this rank sends no requests any more (EndRequests; a job's Close, once all ranks "+
		"have called it)", ErrClosed)
	// ErrInHandler is what a handler gets that communicates. The debug build panics instead.
	ErrInHandler = errors.New("am: communication from a handler: it may reply, look up and lock, nothing else; pass " +
		"the work to a goroutine")
	// ErrAnswered says that a call has had its one reply.
	ErrAnswered = errors.New("am: the call is answered already: a handler replies at most once")
	// ErrOver says that a Call was used after its handler returned, or after Defer; or a Prepared
	// after its end.
	ErrOver = errors.New("am: it has ended: a handler that deferred its reply uses the DeferredReply of Defer; a " +
		"prepared message is committed or cancelled once")
	// ErrExpired says that a deferred reply came too late: the call has ended with an error.
	ErrExpired = fmt.Errorf("am: the deferred reply came too late: %w", os.ErrDeadlineExceeded)
	// ErrWithdrawn says that the sender of a large payload has given it up.
	ErrWithdrawn = errors.New("am: the sender has withdrawn the payload")
	// ErrBusy says that an endpoint cannot be closed while its handlers run, or the program is in it
	// or holds memory of it; the text of Close's error says which.
	ErrBusy = fmt.Errorf("am: close: %w", fabric.ErrBusy)
)

// MessageError says that something arrived which no correct rank sends.
type MessageError struct {
	Peer  int    // who sent it
	Rule  string // what it does
	Got   uint64
	Limit uint64 // what would have been right, or the most that would
}

func broken(rule string, got, limit int) error {
	return &MessageError{Peer: -1, Rule: rule, Got: uint64(got), Limit: uint64(limit)}
}

func (e *MessageError) Error() string {
	return fmt.Sprintf("am: a message of rank %d %s: %d, right is %d", e.Peer, e.Rule, e.Got, e.Limit)
}

// RefusedError says that a rank takes no large payload.
type RefusedError struct {
	Rank    int
	Handler string
	Text    string // of the receiver; its first 512 bytes
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("am: rank %d takes no payload for %q: %s", e.Rank, e.Handler, e.Text)
}

// Reason is why a call has no reply.
type Reason uint8

// The reasons.
const (
	Panicked Reason = iota + 1 // the handler did
	Refused                    // the message names what the rank does not have: a handler, a part of the segment
	NoAnswer                   // the reply was deferred and did not come in time
	TooLarge                   // the reply did not fit
	numReason
)

func (r Reason) String() string {
	switch r {
	case Panicked:
		return "panicked"
	case Refused:
		return "was refused"
	case NoAnswer:
		return "deferred its reply and gave none"
	case TooLarge:
		return "made a reply that cannot be sent"
	}
	return fmt.Sprintf("failed for reason %d", uint8(r))
}

// RemoteError is the answer to a call that its handler did not give.
type RemoteError struct {
	Rank    int
	Handler string
	Reason  Reason
	Text    string // what the handler panicked with, or what was refused; its first 512 bytes
}

// clip shortens text to what a failure carries, between two characters.
func clip(text string) string {
	if len(text) <= maxFailure {
		return text
	}
	n := maxFailure
	for n > maxFailure-utf8.UTFMax && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("am: handler %q on rank %d %v: %s", e.Handler, e.Rank, e.Reason, e.Text)
}

// StallError says that something was waited for longer than Config.StallAfter.
type StallError struct {
	Op       string // what was tried
	Rank     int
	Resource string        // what it waits for
	Holder   string        // who has it, as far as this rank can tell
	Queue    int           // how many wait for the same
	For      time.Duration // for how long
}

func (e *StallError) Error() string {
	return fmt.Sprintf("am: %s to rank %d waits for %s for %v, with %d in the queue: %s (Config.StallAfter bounds this)",
		e.Op, e.Rank, e.Resource, e.For, e.Queue, e.Holder)
}

// TableError says that two ranks do not have the same handlers.
type TableError struct {
	Rank        int    // the other rank
	Index       int    // of the first difference, in the order of names; -1: not a handler
	Here, There string // what each has there; empty: nothing
}

func (e *TableError) Error() string {
	remedy := "start the same program on all ranks"
	if e.Index < 0 {
		return fmt.Sprintf("am: this rank has %s, rank %d has %s: %s", e.Here, e.Rank, e.There, remedy)
	}
	return fmt.Sprintf("am: handler %d is %q here and %q on rank %d: %s", e.Index, e.Here, e.There, e.Rank, remedy)
}

// SizeError says that something does not fit.
type SizeError struct {
	What      string
	Size, Max int
	Remedy    string
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("am: %s of %d, at most %d fit: %s", e.What, e.Size, e.Max, e.Remedy)
}

// InFlightError says what had not ended when an endpoint was closed, or was given up waiting for.
type InFlightError struct {
	Op       string
	Calls    int // without a reply
	Writes   int // Long messages whose payload the network may still read
	Owed     int // deferred replies
	Unsent   int // replies that found no send buffer
	Handlers int // that run
	Messages int // that the network has not brought to their targets; Quiesce and EndRequests tell
	// Transfers are large payloads from this rank and to it that were announced and have not ended.
	Transfers int
	Cause     error
}

func (e *InFlightError) Error() string {
	s := fmt.Sprintf("am: %s was given up before all that had arrived was handled", e.Op)
	counts := *e
	if counts.Op, counts.Cause = "", nil; counts != (InFlightError{}) {
		s = e.counts()
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

func (e *InFlightError) counts() string {
	s := fmt.Sprintf("am: %s with %d calls, %d writes, %d messages, %d deferred and %d unsent replies in flight, %d "+
		"handlers running",
		e.Op, e.Calls, e.Writes, e.Messages, e.Owed, e.Unsent, e.Handlers)
	if e.Transfers > 0 {
		s += fmt.Sprintf(", %d large payloads announced", e.Transfers)
	}
	return s
}

// Unwrap gives the cause.
func (e *InFlightError) Unwrap() error { return e.Cause }

// opError says which operation failed.
type opError struct {
	op, handler string
	rank        int
	err         error
}

func (e *opError) Error() string {
	return fmt.Sprintf("am: %s %q to rank %d: %v", e.op, e.handler, e.rank, e.err)
}
func (e *opError) Unwrap() error { return e.err }

// of names the sender of the message.
func of(rank int, err error) error {
	if e, ok := err.(*MessageError); ok {
		e.Peer = rank
	}
	return err
}
