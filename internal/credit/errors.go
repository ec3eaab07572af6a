package credit

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNoCredit is returned by Take when the peer has granted no more; Explain
	// gives the details.
	ErrNoCredit = errors.New("credit: no credit: poll, ask, then try again")
	// ErrNoReply is returned by ReserveReply when every reply buffer waits for a reply.
	ErrNoReply = errors.New("credit: every reply buffer is reserved: poll until a reply arrives")
	// ErrNotOpen is the error without a connection.
	ErrNotOpen = errors.New("credit: peer not open")
	// ErrStale is the error of a message of an ended connection. Its buffer must
	// be posted again like any other; the message must not be handled.
	ErrStale = errors.New("credit: message of an earlier connection")
)

// NoCreditError explains why a peer cannot be sent to.
type NoCreditError struct {
	Peer    int           // of which a grant is missing
	Epoch   uint32        // connection
	Granted uint32        // credits that the peer granted on this connection
	Used    uint32        // those that messages took
	Back    uint32        // those given back on a recall
	For     time.Duration // since the first refusal
	Asked   time.Duration // since the last question; -1: none yet
	Asks    int           // questions without an answer
}

func (e *NoCreditError) Error() string {
	asked := "it was not asked yet"
	if e.Asked >= 0 {
		asked = fmt.Sprintf("asked %d times, the last %v ago", e.Asks, e.Asked)
	}
	return fmt.Sprintf("credit: no credit from peer %d for %v (connection %d: %d granted, %d used, %d given back; %s): "+
		"it polls too rarely, or others hold its buffers: see its pool's holders",
		e.Peer, e.For, e.Epoch, e.Granted, e.Used, e.Back, asked)
}

// Is matches ErrNoCredit.
func (e *NoCreditError) Is(target error) bool { return target == ErrNoCredit }

// ViolationError is a peer's breach of the protocol. It changed nothing; what to
// do about the peer is the caller's decision.
type ViolationError struct {
	Peer  int
	Rule  string // what it did
	Got   uint32 // how much of it
	Limit uint32 // what it could have done
}

func (e *ViolationError) Error() string {
	return fmt.Sprintf("credit: peer %d %s: %d, at most %d would be right", e.Peer, e.Rule, e.Got, e.Limit)
}

// NotPostedError is a broken rule of the Pool's user: spare buffers are posted before handlers
// run.
type NotPostedError struct{ Buffers int }

func (e *NotPostedError) Error() string {
	return fmt.Sprintf("credit: handlers may not run before %d buffers that messages took are posted again: post spares, "+
		"or copy the message and post its own; then call Reposted", e.Buffers)
}
