package flow

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ibconduit/conduit/internal/errtext"
)

var (
	// ErrSetTooLarge is matched by a *SetTooLargeError.
	ErrSetTooLarge = errors.New("flow: more bytes than the budget ever has")
	// ErrHoldAndWait is matched by a *HoldAndWaitError.
	ErrHoldAndWait = errors.New("flow: waits for memory and holds some")
	// ErrBudgetClosed is the error of what waits for memory when its Budget is closed. It matches
	// os.ErrClosed.
	ErrBudgetClosed error = errtext.Closed("flow: the budget is closed")
	// ErrWithdrawn is the error of a set that its caller cancelled.
	ErrWithdrawn = errors.New("flow: the set was cancelled")
)

// SetTooLargeError refuses what could wait for ever: more bytes than the budget has at its least.
type SetTooLargeError struct {
	Need, Limit int64 // in bytes
	Fetches     int   // of the set; 1 also for anything else
	Messages    int   // how many fetches it may have; 0: any number
}

func (e *SetTooLargeError) Error() string {
	if e.Messages > 0 && e.Fetches > e.Messages {
		return fmt.Sprintf("flow: a set of %d fetches, and the budget serves at most %d messages at once: "+
			"use FetchSet.Each, smaller sets, or more Messages",
			e.Fetches, e.Messages)
	}
	need, limit := twoTexts(e.Need, e.Limit)
	if e.Fetches > 1 {
		return fmt.Sprintf("flow: a set of %d fetches needs %s at once, and the budget serves at most %s: "+
			"use FetchSet.Each, smaller sets, or a larger limit",
			e.Fetches, need, limit)
	}
	return fmt.Sprintf("flow: %s are needed at once, and the budget serves at most %s: transfer it in parts, "+
		"or raise the limit",
		need, limit)
}

// Is matches ErrSetTooLarge.
func (e *SetTooLargeError) Is(target error) bool { return target == ErrSetTooLarge }

// HoldAndWaitError refuses a wait that could last for ever: what its owner holds may be what it,
// those before it in the queue, or those that make its data wait for.
type HoldAndWaitError struct {
	Owner   string
	Need    int64 // that it waits for, in bytes
	Holds   int64 // that it holds, in bytes
	Reserve int64 // that it holds of the reserve, in bytes
}

func (e *HoldAndWaitError) Error() string {
	more := "release the lease before, fetch both in one set, or give the budget a Reserve"
	if e.Reserve > 0 {
		more = "it has the reserve already: release a lease before"
	}
	return fmt.Sprintf("flow: %s would wait for %s while it holds %s: %s",
		e.Owner, bytesText(e.Need), bytesText(e.Holds), more)
}

// Is matches ErrHoldAndWait.
func (e *HoldAndWaitError) Is(target error) bool { return target == ErrHoldAndWait }

// MemoryStallError says why a claim waits: its own place, and the holders of the bytes.
type MemoryStallError struct {
	Need    int64         // of the claim, in bytes
	Owner   string        // of the claim, "" if it has none
	Age     time.Duration // for how long it has waited
	First   bool          // of those that wait for the same
	Place   bool          // the bytes are granted; it waits for a place in a region, as Holders have
	Limit   int64         // of the budget, in bytes
	Free    int64         // for claims that are not small, in bytes; below 0 after the limit was lowered
	Waiting int           // claims that wait
	Holders []MemoryHolder
	Cause   error // of the end of the wait; nil: it goes on
}

func (e *MemoryStallError) Error() string {
	var b strings.Builder
	who := e.Owner
	if who == "" {
		who = "a claim"
	}
	what := "memory"
	if e.Place {
		what = "a region, which are granted"
	}
	fmt.Fprintf(&b, "flow: %s has waited %v for %s of %s", who, e.Age.Round(time.Millisecond), bytesText(e.Need), what)
	if e.First {
		b.WriteString(", first")
	}
	fmt.Fprintf(&b, " of %d in the queue, with %d B free of a limit of %s", e.Waiting, e.Free, bytesText(e.Limit))
	const most = 8
	for _, h := range e.Holders[:min(most, len(e.Holders))] {
		fmt.Fprintf(&b, "; %s has held %s for %v", h.Name, bytesText(h.Bytes), h.For.Round(time.Millisecond))
	}
	if n := len(e.Holders) - most; n > 0 {
		fmt.Fprintf(&b, "; and %d more", n)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

func (e *MemoryStallError) Unwrap() error { return e.Cause }

// twoTexts writes two numbers of bytes, exactly where their texts would hide that they differ.
func twoTexts(a, b int64) (string, string) {
	if a != b && bytesText(a) == bytesText(b) {
		return fmt.Sprintf("%d B", a), fmt.Sprintf("%d B", b)
	}
	return bytesText(a), bytesText(b)
}

// bytesText writes a number of bytes for a reader: exact up to 8 KiB, else with one decimal.
func bytesText(n int64) string {
	const units = "KMGTPE"
	if n < 0 {
		return "-" + bytesText(-max(n, -math.MaxInt64))
	}
	if n < 8<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}
