package fabric

import (
	"context"
)

// Network is one rank's attachment to a transport.
type Network interface {
	// Name is the short name that users give in Config.Fabric: "ibv", "shm", "sim".
	Name() string

	// Addr is the address at which peers reach this rank. Its format belongs to
	// the network and is documented in its package.
	Addr() []byte

	// Reach reports whether this rank can use the network to the rank that
	// published addr: nil, or the reason why not. addr is as hostile as
	// anything that arrives from outside.
	Reach(rank int, addr []byte) error

	// Connect makes the peers usable. It is collective over the ranks of the
	// job and called once. addrs is indexed by rank; an entry is nil for a rank
	// that this one reaches over another network (the choice is symmetric).
	// exchange is the bootstrap's all-gather, for what only this step knows.
	Connect(ctx context.Context, addrs [][]byte, exchange Exchange) error

	// NewLane returns a lane to every connected peer, or an error that wraps
	// ErrNoLane when all are taken.
	NewLane() (Lane, error)

	// PeerDown declares a rank dead, as found out elsewhere.
	// Operations to that rank, in flight and later, fail with *PeerDownError.
	PeerDown(rank int, cause error)

	// Limits are fixed from construction on.
	Limits() Limits

	// Close releases everything, also registered memory. It fails with ErrBusy while lanes are open.
	// It waits for no peer: the caller has made sure that no rank still uses
	// this segment.
	Close() error
}

// Exchange is a collective all-gather of one blob a rank; the result is indexed
// by rank.
type Exchange func(ctx context.Context, blob []byte) ([][]byte, error)

// Limits are what a network can do, queried once.
type Limits struct {
	// CopyMax is the largest put in bytes with a source that is free for reuse when
	// Put returns, wherever the source lies.
	CopyMax int
	// Depth is how many operations a lane keeps in flight to one peer before
	// a post waits for completions.
	Depth int
	// Lanes is how many lanes can be open at a time; 0 means no limit.
	Lanes int
	// CPUAtomics reports that the network's atomics are the processor's own,
	// hence atomic with respect to loads, stores and atomics of local code. A
	// device's are atomic only with respect to the same device's
	// (IBTA vol 1 §9.4.5: atomicity across the HCA only, unless the device reports
	// IBV_ATOMIC_GLOB).
	CPUAtomics bool
}

// Flag modifies one operation, or the posting of a batch.
type Flag uint8

const (
	// Implicit gives the operation no handle: Put, Get and Atomic return Done, and
	// Flush completes it. The old value of an atomic is not returned then.
	Implicit Flag = 1 << iota
	// Blocking announces that the caller will wait at once: the lane may spend one
	// polling budget before it returns and often answers Done.
	Blocking
)

// Handle names an operation in flight on one lane. Handles are not reused
// while the operation's result has not been collected by Test or Wait.
type Handle uint64

// Done is the handle of an operation that is complete.
const Done Handle = 0

// Marks of handles. Those that a network gives have none of these bits: a lane that stands above
// another tells by them which handles are its own.
const (
	MarkChain  Handle = 1 << (28 + iota) // of an operation that a chain has collected
	MarkCache                            // of a get of a cache
	MarkAtomic                           // of an atomic that a cache acquires after
)

// Lane is a single-owner queue of one-sided operations. See the package
// comment for completion, buffers and order.
type Lane interface {
	// Put writes src at offset off of peer's segment.
	Put(peer int, off uint64, src []byte, f Flag) (Handle, error)

	// Get reads len(dst) bytes at offset off of peer's segment.
	Get(peer int, off uint64, dst []byte, f Flag) (Handle, error)

	// Atomic applies a to the word at offset off of peer's segment, a multiple of its size. The
	// 8-byte aligned word that it lies in must be in the segment too. When the handle is Done, and
	// the operation not Implicit, old is the word's value before, in the lower half for a type of
	// 32 bits; otherwise Wait or Test returns it.
	//
	// An operation that the network does not have is a loop of compare-swaps, and the next attempt
	// is made when the lane makes progress. The first fails if the lane does not know the word,
	// others only because an operation changed it meanwhile, so that some rank always gets on.
	// Before each further one the loop pauses for a random time, which grows, so that all do.
	// The number of attempts has no bound: bound the wait. An error of a loop is an *OpError.
	Atomic(peer int, off uint64, a Atomic, f Flag) (old uint64, h Handle, err error)

	// Post posts the operations of a batch in order: one doorbell, one crossing into C; in parts where
	// the batch is larger than a queue or a chain of work requests, and then it waits for room as any
	// operation does. q gets the completions of the batch's groups; it may be nil if
	// there are none. The batch itself is free for another use when Post returns.
	//
	// An error is that the batch is wrong (a range, a rank, an atomic, registered memory): then
	// nothing of it is posted. That a peer is down, or any later failure, is reported as the
	// completion of the group, or by Flush if there is no group, and concerns no other.
	//
	// With Blocking in f it may spend one polling budget before it returns, and the completions are
	// often reported by then. Other flags are ignored.
	Post(b *Batch, q *Completions, f Flag) error

	// Await blocks until q has a completion to take, or ctx is done. It makes progress meanwhile. An
	// error that wraps ErrIdle is that nothing of this lane is in flight that could end the wait.
	// That ctx was cancelled may be noticed up to 10 ms late.
	Await(ctx context.Context, q *Completions) error

	// Register makes memory known to the lane's network. Operations of batches on any lane of the
	// same network may use it, until it is closed. Over verbs this costs as much as a registration
	// does, some 100 us and more, and the memory counts as locked (RLIMIT_MEMLOCK).
	Register(mem []byte) (*Memory, error)

	// Test makes progress and reports whether the operation is complete. When
	// done, the handle is spent.
	Test(h Handle) (old uint64, done bool, err error)

	// Wait blocks until the operation is complete, ctx is done, or the peer is
	// found dead; that ctx was cancelled may be noticed up to 10 ms late. When
	// ctx ends the wait the operation goes on: the handle
	// stays valid and its buffers stay the network's.
	Wait(ctx context.Context, h Handle) (old uint64, err error)

	// Abandon spends a handle of an unwanted result. The operation
	// goes on and its buffers stay the network's until Flush returns; its error is
	// counted and reported nowhere. A handle that is spent already is left alone.
	Abandon(h Handle)

	// Flush blocks until every operation of the lane is complete, and returns the first error of an
	// implicit operation to each peer since the last flush, an *OpError or several of them joined.
	// Handles and completions stay collectable. That ctx was cancelled may be noticed up to 10 ms
	// late.
	Flush(ctx context.Context) error

	// Quiet reports whether every operation of the lane to a peer, or with -1 to any, was complete
	// when it last made progress. It makes none, and never waits. To a peer that the lane does not
	// serve there are none. Of implicit operations the lane may learn only when a later one is
	// complete.
	Quiet(peer int) bool

	// Poll makes progress without waiting.
	Poll() error

	// WaitWord blocks until *word, an aligned word of the local segment that a
	// peer writes, fulfils the condition, or ctx is done, or stop returns an
	// error (called now and then; may be nil). It makes progress meanwhile. As with Wait
	// and Flush, the error of a context is its cause.
	WaitWord(ctx context.Context, word *uint64, c Cond, value uint64, stop func() error) error

	// Mapped returns the peer's segment if loads and stores reach it, else nil.
	// Plain accesses through it are complete at once.
	Mapped(peer int) []byte

	// Counters are the lane's own; the owner writes, any goroutine may Load. After Close
	// they may be another lane's: read them before.
	Counters() *Counters

	// Close waits for nothing: operations in flight are abandoned, their buffers stay the network's
	// until the Network closes, and completions of groups are not reported any more; a loop of
	// compare-swaps may not take effect. It returns the errors of implicit operations that no Flush
	// has reported, as Flush would, also of loops that had not taken effect then and never will.
	Close() error
}

// Bounded is a Lane with operations that may wait before they are posted: over verbs the first one
// to a peer does, for the connection.
type Bounded interface {
	// SetContext bounds these waits from now on: when ctx ends, the operation returns its cause, and
	// counts as never posted.
	SetContext(ctx context.Context)
}

// Cond is a comparison of unsigned 64-bit words, as in OpenSHMEM's wait_until.
type Cond uint8

// The comparisons: word <cond> value.
const (
	Equal Cond = iota
	NotEqual
	GreaterEqual
	Greater
	LessEqual
	Less
)

// Valid reports whether c is one of the constants.
func (c Cond) Valid() bool { return c <= Less }

// Holds reports whether word c value.
func (c Cond) Holds(word, value uint64) bool {
	switch c {
	case Equal:
		return word == value
	case NotEqual:
		return word != value
	case GreaterEqual:
		return word >= value
	case Greater:
		return word > value
	case LessEqual:
		return word <= value
	case Less:
		return word < value
	}
	return false
}
