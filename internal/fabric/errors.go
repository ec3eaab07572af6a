package fabric

import (
	"errors"
	"fmt"
)

// ErrNoLane is wrapped by NewLane's error when every lane is taken.
var ErrNoLane = errors.New("fabric: no free lane")

// ErrBusy is wrapped when something is closed that has open children.
var ErrBusy = errors.New("fabric: in use")

// ErrUnreachable is wrapped by the reasons that Network.Reach gives.
var ErrUnreachable = errors.New("fabric: peer not reachable")

// ErrMemory is wrapped when a batch names a range that registered memory does not have, or memory
// that is closed or another network's.
var ErrMemory = errors.New("no such registered memory")

// ErrIdle is wrapped by Await's error when nothing is in flight that it could wait for.
var ErrIdle = errors.New("nothing is in flight")

// OpError is the error of operations that have no handle, implicit ones and batched ones, and
// of atomics that are loops.
type OpError struct {
	Op   string // "put", "get" or what an atomic is called
	Rank int    // the peer
	// Off and Len are the range of the peer's segment in bytes. Of pieces of a batch that were posted
	// as one it is the range that all of them lie in.
	Off, Len uint64
	Err      error
}

func (e *OpError) Error() string {
	return fmt.Sprintf("%s of %d bytes at offset %d of rank %d: %v", e.Op, e.Len, e.Off, e.Rank, e.Err)
}

// Unwrap gives the reason.
func (e *OpError) Unwrap() error { return e.Err }

// Failures are for networks: the first error of an implicit operation to each peer.
type Failures []*OpError

// Add notes an error, unless there is one to the peer already.
func (f *Failures) Add(e *OpError) {
	for _, other := range *f {
		if other.Rank == e.Rank {
			return
		}
	}
	*f = append(*f, e)
}

// Take returns the errors, oldest first, and forgets them.
func (f *Failures) Take() error {
	var err error
	switch len(*f) {
	case 0:
		return nil
	case 1:
		err = (*f)[0]
	default:
		errs := make([]error, len(*f))
		for i, e := range *f {
			errs[i] = e
		}
		err = errors.Join(errs...)
	}
	*f = nil
	return err
}

// PeerDownError is the error of operations on a dead rank. Match it with
// errors.As, or any of them with errors.Is(err, ErrPeerDown).
type PeerDownError struct {
	Rank  int    // the rank that is down
	Op    string // the operation
	Cause error  // how it was found out
}

// ErrPeerDown matches every *PeerDownError under errors.Is.
var ErrPeerDown = errors.New("peer down")

func (e *PeerDownError) Error() string {
	return fmt.Sprintf("%s: rank %d is down: %v", e.Op, e.Rank, e.Cause)
}

// Unwrap gives the cause.
func (e *PeerDownError) Unwrap() error { return e.Cause }

// Is matches ErrPeerDown.
func (e *PeerDownError) Is(target error) bool { return target == ErrPeerDown }

// RankError is the error of an operation on a rank that the job does not have, or
// that this network does not serve.
type RankError struct {
	Op   string
	Rank int
	Size int // ranks in the job
}

func (e *RankError) Error() string {
	if e.Rank >= 0 && e.Rank < e.Size {
		return fmt.Sprintf("%s: rank %d is not served by this network", e.Op, e.Rank)
	}
	return fmt.Sprintf("%s: no rank %d in a job of %d (ranks are 0 to %d)", e.Op, e.Rank, e.Size, e.Size-1)
}

// BoundsError is the error of an operation that would leave the target's segment.
type BoundsError struct {
	Op   string
	Rank int
	Off  uint64 // first byte
	Len  uint64 // bytes
	Size uint64 // the segment's size in bytes
}

func (e *BoundsError) Error() string {
	return fmt.Sprintf("%s: %d bytes at offset %d leave the segment of rank %d, which has %d bytes",
		e.Op, e.Len, e.Off, e.Rank, e.Size)
}

// AlignError is the error of an atomic at an offset that is not a multiple of its size.
type AlignError struct {
	Op    string
	Rank  int
	Off   uint64
	Align uint64
}

func (e *AlignError) Error() string {
	return fmt.Sprintf("%s: offset %d of rank %d is not a multiple of %d", e.Op, e.Off, e.Rank, e.Align)
}

// CheckRange returns a *BoundsError unless [off, off+n) lies in a segment of
// the given size. It is written so that nothing overflows.
func CheckRange(op string, rank int, off, n, size uint64) error {
	if off <= size && n <= size-off {
		return nil
	}
	return &BoundsError{Op: op, Rank: rank, Off: off, Len: n, Size: size}
}

// CheckWord is CheckRange for an aligned 64-bit word.
func CheckWord(op string, rank int, off, size uint64) error {
	if err := CheckRange(op, rank, off, 8, size); err != nil {
		return err
	}
	if off%8 != 0 {
		return &AlignError{Op: op, Rank: rank, Off: off, Align: 8}
	}
	return nil
}
