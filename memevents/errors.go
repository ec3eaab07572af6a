package memevents

import (
	"errors"
	"syscall"

	"github.com/ibconduit/conduit/internal/errtext"
)

// Sentinels for errors.Is. Claim's all mean: do without the cache this time.
var (
	// ErrChanging means that some part of the range is being unmapped at this moment, by this or
	// another thread. Register it for this operation only.
	ErrChanging = errors.New("the range is being changed: register it for this operation only")
	// ErrFull means that there is no slot left: evict an idle registration, or do without.
	ErrFull = errors.New("the table of watched ranges is full")
	// ErrUnwatched means that no monitor sees every kind of change that the caller cannot rule out.
	ErrUnwatched = errors.New("changes of the range would not be noticed")
	// ErrForked means that this process is a child of the one that made the watcher.
	ErrForked = errors.New("memory events do not survive fork")
	// ErrBusy means that Close was refused because entries are still claimed, or Configure because
	// the monitors run.
	ErrBusy = errtext.ErrBusy
	// ErrNotSupported means that this build or system has no memory events.
	ErrNotSupported = errtext.ErrNotSupported
)

// Error is a failed call.
type Error struct {
	Op     string        // what was tried
	Errno  syscall.Errno // 0 when no system call failed
	Err    error         // a sentinel; may be nil
	Detail string        // on what, and why it failed
	Remedy string        // what to do; may be empty
}

func (e *Error) Error() string {
	return errtext.Join("memevents: "+e.Op, e.Remedy, e.Err, e.Errno, e.Detail)
}

// Unwrap lets errors.Is find the sentinel and the errno.
func (e *Error) Unwrap() []error { return errtext.Causes(e.Err, e.Errno) }
