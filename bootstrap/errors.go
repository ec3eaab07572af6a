package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ibconduit/conduit/internal/ranklist"
)

var (
	// ErrLeft is the cause when a rank had called Close before a collective
	// that needed it.
	ErrLeft = errors.New("left the job in good order")
	// ErrGaveUp is the cause when a rank's context ended inside a collective.
	ErrGaveUp = errors.New("gave up waiting")
	// ErrFailed is the cause when a rank had called Fail.
	ErrFailed = errors.New("failed")
	// ErrMisuse is the cause when ranks call different collectives.
	ErrMisuse = errors.New("collectives do not match")
	// ErrCorrupt is the cause when a blob did not survive its transport.
	ErrCorrupt = errors.New("blob damaged on its way")
)

// LostError fails a collective because of one rank.
type LostError struct {
	Rank  int
	Who   string // host and pid, where known
	Cause error  // io.EOF, ErrLeft, ErrGaveUp, ErrFailed, ErrMisuse, *AbortError, ...
}

func (e *LostError) Error() string {
	who := ""
	if e.Who != "" {
		who = " (" + e.Who + ")"
	}
	verb := " went away: "
	if c, ok := e.Cause.(*cause); ok && c.kind != causeDeath || errors.As(e.Cause, new(*AbortError)) {
		verb = " "
	}
	return fmt.Sprintf("bootstrap: rank %d%s%s%v", e.Rank, who, verb, e.Cause)
}

func (e *LostError) Unwrap() error { return e.Cause }

// AbortError is the cause when a rank called Abort.
type AbortError struct {
	Code int
	Msg  string
}

func (e *AbortError) Error() string {
	return fmt.Sprintf("aborted the job with code %d: %s", e.Code, e.Msg)
}

// Reason says why a job could not be joined.
type Reason uint8

// Reasons of a JoinError. They cross the wire: append only.
const (
	ReasonMissing   Reason = iota + 1 // Ranks did not arrive in time
	ReasonDuplicate                   // two processes claim one rank
	ReasonForeign                     // a rank of another job
	ReasonProtocol                    // ranks speak different versions
	ReasonShape                       // ranks disagree on size or rank numbers
	ReasonDied                        // a rank went away while others were awaited
	ReasonGaveUp                      // rank 0's context ended
	ReasonStarted                     // the job had already begun
	ReasonLimit                       // rank 0 has met a limit of its process
)

// JoinError fails New on every rank that can be reached, with the same text.
type JoinError struct {
	Reason Reason
	Ranks  []int // the ranks at fault, ascending
	Text   string

	cause error // what this process saw itself; not sent
}

func (e *JoinError) Error() string { return "bootstrap: " + e.Text }

// Unwrap gives the cause of rank 0's context where that ended, and context.DeadlineExceeded where
// ranks were missing.
func (e *JoinError) Unwrap() []error {
	var errs []error
	if e.cause != nil {
		errs = append(errs, e.cause)
	}
	if e.Reason == ReasonMissing {
		errs = append(errs, context.DeadlineExceeded)
	}
	return errs
}

// MismatchError says that the ranks do not fit together: other builds, page
// sizes or jobs.
type MismatchError struct {
	Differences []Difference
}

// Difference is one field on which ranks differ.
type Difference struct {
	Field  string
	Values []RankValue // the most common value first
	Remedy string
}

// RankValue is a value and the ranks that have it.
type RankValue struct {
	Value string
	Ranks []int // ascending
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	b.WriteString("bootstrap: the ranks do not fit together")
	for i, d := range e.Differences {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(d.Field + " is ")
		for k, v := range d.Values {
			if k > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s on %s", v.Value, ranklist.Text(v.Ranks))
		}
		if d.Remedy != "" {
			b.WriteString(" (" + d.Remedy + ")")
		}
	}
	return b.String()
}

// causeKind crosses the wire: append only.
type causeKind uint8

const (
	causeDeath  causeKind = iota + 1 // the connection ended and the rank had not left
	causeLeft                        // Close
	causeGaveUp                      // a collective's context ended
	causeAbort                       // Abort
	causeMisuse                      // wrong collective, or a bad message
	causeFailed                      // Fail
	causeEnd                         // first invalid value
)

// cause is why a rank can take part no more, in a form that can be sent.
type cause struct {
	kind causeKind
	code int32 // of causeAbort
	text string
	err  error // what this process saw itself; not sent
}

// ends: nothing more comes from the rank.
func (c *cause) ends() bool {
	switch c.kind {
	case causeDeath, causeLeft, causeAbort, causeFailed:
		return true
	}
	return false
}

func (c *cause) Error() string {
	switch {
	case c.kind == causeAbort:
		return (&AbortError{int(c.code), c.text}).Error()
	case c.text != "":
		return c.text
	case c.kind == causeLeft:
		return ErrLeft.Error()
	}
	return fmt.Sprintf("cause %d", c.kind)
}

func (c *cause) Unwrap() error {
	switch c.kind {
	case causeLeft:
		return ErrLeft
	case causeGaveUp:
		if c.err != nil {
			return errors.Join(ErrGaveUp, c.err)
		}
		return ErrGaveUp
	case causeAbort:
		return &AbortError{int(c.code), c.text}
	case causeMisuse:
		return ErrMisuse
	case causeFailed:
		return ErrFailed
	}
	if c.err != nil {
		return c.err
	}
	return io.EOF // what rank 0, or the launcher, saw, as text
}

// death turns a connection's error into a cause.
func death(err error) *cause {
	return &cause{kind: causeDeath, text: err.Error(), err: err}
}

// prefixed makes every error of this package begin with its name, once.
func prefixed(err error) error {
	var (
		je *JoinError
		le *LostError
		me *MismatchError
	)
	if errors.As(err, &je) || errors.As(err, &le) || errors.As(err, &me) {
		return err
	}
	return fmt.Errorf("bootstrap: %w", err)
}
