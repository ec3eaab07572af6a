package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/heap"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/segment"
)

// The errors of communication. See the types' own documentation for the fields.
type (
	// PeerDownError names the rank that cannot be reached any more.
	PeerDownError = fabric.PeerDownError
	// BoundsError says that an operation would leave the target's segment.
	BoundsError = fabric.BoundsError
	// AlignError says that an atomic's offset is not a multiple of 8.
	AlignError = fabric.AlignError
	// OpError says which operation failed, of those that only Flush or Close reports, and of atomics
	// that are loops: peer, range in the peer's segment as Ptr counts it, and direction.
	OpError = fabric.OpError
	// RankError names a rank that the job does not have.
	RankError = fabric.RankError
	// LimitError says which limit refused the segment, with figures.
	LimitError = segment.LimitError
	// NoMemoryError says why the shared heaps cannot give a block.
	NoMemoryError = heap.NoMemoryError
	// SizeError says that an allocation can never succeed.
	SizeError = heap.SizeError
	// FreeError says why a pointer cannot be freed.
	FreeError = heap.FreeError
	// FreeReason is why a pointer cannot be freed: FreeNotInUse and the others.
	FreeReason = heap.Reason
	// HeapPtr is a place in the shared heaps, as errors name it: rank and offset.
	HeapPtr = heap.Ptr
	// MismatchError says that the ranks called one operation of all with different arguments.
	MismatchError = heap.MismatchError
	// HeapStats are the figures of the shared heaps at one rank.
	HeapStats = heap.Stats
	// AllocatorStats are the figures of one allocator, as in HeapStats.Local.
	AllocatorStats = alloc.Stats
	// LengthError says that a rank's buffer in a broadcast is not as long as the root's.
	LengthError = coll.LengthError
)

// The values of FreeReason.
const (
	FreeNotInUse  = heap.NotInUse  // no block begins there: freed before, or never allocated
	FreeInterior  = heap.Interior  // inside of a block
	FreeOutside   = heap.Outside   // in no heap of that rank
	FreeDiffering = heap.Differing // the ranks gave different pointers to one AllFree
	FreeWrongHeap = heap.WrongHeap // beyond the local heap of a rank that does not have the global one
)

var (
	// ErrPeerDown matches every *PeerDownError.
	ErrPeerDown = fabric.ErrPeerDown
	// ErrBusy is wrapped when a job is closed that has open workers; the job goes on. An error that
	// matches [am.ErrBusy] matches it too: Job.Close has left the job, but for the memory that
	// handlers or prepared messages may use.
	ErrBusy = fabric.ErrBusy
	// ErrNoWorker is wrapped when all of Config.Workers are open, the device lost some of them, or it
	// still tries what closed ones left; that ends within half a minute.
	ErrNoWorker = fabric.ErrNoLane
	// ErrConcurrent is returned in the debug build to the second goroutine in
	// a Worker.
	ErrConcurrent = owner.ErrConcurrent
	// ErrUnsent is that a worker's cache has writes that were not sent when a collective operation of
	// the job begins. The operation takes place all the same; the error names the worker by its number
	// among those that the rank has opened, from 1. Free does not free then.
	ErrUnsent = errors.New("writes that were not sent: call its Flush before an operation of the job, or a form of " +
		"the worker that fences")
	// ErrNullPtr is returned for a null global pointer.
	ErrNullPtr = errors.New("conduit: null global pointer")
	// ErrNoSharedMemory matches every *NoMemoryError.
	ErrNoSharedMemory = heap.ErrNoSharedMemory
	// ErrBadFree matches every *FreeError.
	ErrBadFree = heap.ErrBadFree
	// ErrCollective matches the error of the collective operation that broke its team, because a rank
	// is dead or gave up, and the errors of all later ones of that team. A *coll.BrokenError has the
	// details.
	ErrCollective = coll.ErrBroken
)

// errCancelled says that the context of RunLocal ended.
func errCancelled(life context.Context) error {
	return fmt.Errorf("conduit: the job was cancelled: %w", context.Cause(life))
}

// errClosed says that something was used after its Close; it matches
// os.ErrClosed.
func errClosed(op, what string) error {
	return fmt.Errorf("conduit: %s on a closed %s: %w", op, what, os.ErrClosed)
}
