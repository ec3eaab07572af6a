package verbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/owner"
)

// Sentinels for errors.Is. A closed object is reported as os.ErrClosed, an expired wait as the
// context's error.
var (
	// ErrNotSupported means that this build, kernel or device lacks the feature.
	ErrNotSupported = errtext.ErrNotSupported
	// ErrNoLibrary means that there is no libibverbs that this program can use; see [Library].
	ErrNoLibrary = errors.New("no usable libibverbs")
	// ErrNoDevice means that there is no RDMA device of that name, or none at all.
	ErrNoDevice = errors.New("no such RDMA device")
	// ErrBusy means that Close was refused because something still uses the object.
	ErrBusy = errtext.ErrBusy
	// ErrOverrun means that a completion queue lost completions because it was full. It is of no
	// more use.
	ErrOverrun = errors.New("completion queue overrun")
	// ErrConcurrent means that a single-owner object was used by two goroutines at once.
	ErrConcurrent = owner.ErrConcurrent
	// ErrFull means that an object of fixed capacity has no room left.
	ErrFull = errors.New("full")
	// ErrNoGID means that a port has no GID that this program could use.
	ErrNoGID = errors.New("no usable GID")
	// ErrNoPath means that no path joins two ports with the attributes they have.
	ErrNoPath = errors.New("no path")
)

// Error is a failed call. Errors of this package are of this type, or wrap it.
type Error struct {
	Op     string        // the call, such as "ibv_reg_mr"
	Device string        // the device it was made on; may be empty
	Object string        // the object it was made on, such as "QP 0x11"; may be empty
	Errno  syscall.Errno // 0 when no system call failed
	Err    error         // a sentinel or cause beside Errno; may be nil
	Detail string        // what was asked and why it failed, as far as known
	Remedy string        // what to do about it; may be empty
}

func (e *Error) Error() string {
	head := "verbs: " + e.Op
	switch {
	case e.Object != "" && e.Device != "":
		head += " on " + e.Object + " of " + e.Device
	case e.Object != "" || e.Device != "":
		head += " on " + e.Object + e.Device
	}
	return errtext.Join(head, e.Remedy, e.Err, e.Errno, e.Detail)
}

// Unwrap lets errors.Is find the sentinel and the errno.
func (e *Error) Unwrap() []error { return errtext.Causes(e.Err, e.Errno) }

// PostError says which work request of a sub-chain was refused. Those before it were posted, it and
// those after it were not.
type PostError struct {
	Device string
	Queue  string // the queue, such as "QP 0x11"
	Batch  int    // which sub-chain, in the order they were queued
	Slot   int    // which slot of its chain
	WRID   uint64 // the work request's own number
	// ENOMEM: queue full; EINVAL: the request does not fit the queue's capabilities
	Errno  syscall.Errno
	Posted int // work requests posted by the call
}

func (e *PostError) Error() string {
	why := ""
	switch e.Errno {
	case syscall.ENOMEM:
		why = ": the queue is full, or the request has more scatter entries or inline bytes than the queue was created for"
	case syscall.EINVAL:
		why = ": the request does not fit the queue (state, opcode for this QP type, number of scatter entries, inline size)"
	}
	return fmt.Sprintf("verbs: post to %s of %s: work request %#x in slot %d (sub-chain %d) refused after %d were "+
		"posted: %v%s",
		e.Queue, e.Device, e.WRID, e.Slot, e.Batch, e.Posted, e.Errno, why)
}

func (e *PostError) Unwrap() error { return e.Errno }

// errnoOf returns the errno inside err, or EIO when there is none.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return syscall.EIO
}

// with adds a sentinel.
func (e *Error) with(err error) *Error {
	e.Err = err
	return e
}
