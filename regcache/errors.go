package regcache

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Sentinels for errors.Is. A closed cache is reported as os.ErrClosed, a child of fork as memevents.ErrForked.
var (
	// ErrInvalidated means that pages of a range were taken away while operations on it were in flight. What they
	// moved is where the pages went.
	ErrInvalidated = errors.New("the memory was taken away during the operation")
	// ErrStale means that a registration of the cache is not of the pages that the addresses mean: a fault of this
	// package, or a change that nothing can notice (see the package documentation). Only a verifying cache finds it.
	ErrStale = errors.New("the registration is of other pages than the addresses")
	// ErrNotKept means that a registration of the range would be for one operation only, which GetKept does not make.
	ErrNotKept = errors.New("the registration cannot be kept")
	// ErrBusy means that Close was refused because regions or buffers are in use.
	ErrBusy = errors.New("in use")
	// ErrNotSupported means that this build or system cannot do it.
	ErrNotSupported = errors.New("not supported")
)

// Error is a failed call.
type Error struct {
	Op     string        // what was tried
	Errno  syscall.Errno // 0 when no system call failed
	Err    error         // a sentinel or cause; may be nil
	Detail string        // on what
	Remedy string        // what to do; may be empty
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "regcache: %s", e.Op)
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Errno != 0 {
		fmt.Fprintf(&b, ": %v", e.Errno)
	}
	if e.Remedy != "" {
		fmt.Fprintf(&b, " (%s)", e.Remedy)
	}
	return b.String()
}

// Unwrap lets errors.Is find the cause and the errno.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	if e.Errno != 0 {
		errs = append(errs, e.Errno)
	}
	return errs
}
