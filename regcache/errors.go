package regcache

import (
	"errors"
	"syscall"

	"github.com/ibconduit/conduit/internal/errtext"
)

// Sentinels for errors.Is. A closed cache is reported as os.ErrClosed, a child of fork as
// memevents.ErrForked.
var (
	// ErrInvalidated means that pages of a range, or of memory registered together with it, were
	// taken away while operations were in flight. What they moved of such pages is where those
	// went.
	ErrInvalidated = errors.New("the memory was taken away during the operation")
	// ErrStale means that a registration of the cache is not of the pages that the addresses mean:
	// a fault of this package, or a change that nothing can notice (see the package documentation).
	// Only a verifying cache finds it.
	ErrStale = errors.New("the registration is of other pages than the addresses")
	// ErrNotKept means that a registration of the range would be for one operation only, which
	// GetKept does not make.
	ErrNotKept = errors.New("the registration cannot be kept")
	// ErrBusy means that Close was refused because regions or buffers are in use.
	ErrBusy = errtext.ErrBusy
	// ErrNotSupported means that this build or system cannot do it.
	ErrNotSupported = errtext.ErrNotSupported
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
	return errtext.Join("regcache: "+e.Op, e.Remedy, e.Detail, e.Err, e.Errno)
}

// Unwrap lets errors.Is find the cause and the errno.
func (e *Error) Unwrap() []error { return errtext.Causes(e.Err, e.Errno) }
