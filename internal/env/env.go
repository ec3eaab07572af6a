// Package env is what a job gives its parts: collectives, shared heaps, the cache for remote data,
// memory-aware flow. A part is written against it, package fabric and package am, and knows nothing
// of the job otherwise; so it runs in a job, and in a simulated world of ranks.
//
// A part requests its memory before Join, by a [Spec]; for lanes, messages and reports of deaths
// afterwards, by its [Env]. What its handlers may not do themselves a [Service] does for them.
package env

import (
	"context"
	"log/slog"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
)

// Env is a part's view of one rank of a job. It is valid until the job closes. All methods may be
// called from any goroutine and do not block, but for WaitWord, and NewLanes, which may wait some
// seconds for a device that still works off the operations that the last user of a lane left.
type Env interface {
	Rank() int // of this process, from 0
	Size() int // ranks of the job

	// Region is the memory that the job laid out under a name. It panics for a name that no Spec of
	// the job has: that is a mistake in the part.
	Region(name string) Region

	// NewLanes opens lanes to all ranks; the part closes them before the job closes.
	NewLanes() (Lanes, error)

	// Messages is where requests to handlers of the library go through; nil in a job that has none.
	Messages() am.Via
	// Endpoints are the endpoints of Messages, one of each network, the slowest last.
	Endpoints() []*am.Endpoint
	// Learned is called after a message that lets the program learn of another rank's writes before
	// it: each worker acquires before its next access.
	Learned()

	// CopyMax is the largest put in bytes with a source that is free for reuse when Put returns, on
	// every network of the job (fabric.Limits).
	CopyMax() int
	// WaitWord is fabric.Lane.WaitWord without a lane: it blocks, until an aligned word of the own
	// segment fulfils the condition, and makes no progress for any lane. stop is called now and then.
	WaitWord(ctx context.Context, word *uint64, c fabric.Cond, value uint64, stop func() error) error
	// Crowded reports whether more ranks share this one's processors than there are: a waiter lets
	// others run at once.
	Crowded() bool

	// Down is why a rank is dead, nil while it is not known to be.
	Down(rank int) error
	// SetDown takes a rank for dead, as another rank found out: nothing of it may arrive here any
	// more. Later calls for the same rank, and one for this rank, change nothing.
	SetDown(rank int, cause error)
	// OnDown has f called for each death, also for those so far, once each, and until the returned
	// function is called. f must not block, and may run on any goroutine.
	OnDown(f func(rank int, cause error)) (stop func())
	// Context ends when the job closes under calls that still wait. Its cause is the error for them.
	Context() context.Context

	Host() Host
	Logger() *slog.Logger
	Budget() Budget // of transient memory; nil: unlimited
}

// Region is a part's memory in this rank's segment. It lies at the same offset in the segments of
// all ranks, and has the same size there.
type Region struct {
	Bytes []byte // this rank's
	Off   uint64 // in bytes from the begin of a segment: what a lane's Put and Get count from
}

// Spec requests a region. All ranks of a job must request the same, which Join checks.
type Spec struct {
	Name  string // "conduit.coll"
	Size  uint64 // in bytes
	Align uint64 // in bytes, a power of two; 0: a cache line of 64 bytes
}

// Lanes reach every rank: a lane for each network that the job uses. As with a lane, one goroutine
// uses them at a time. A worker's are Lanes too.
type Lanes interface {
	To(rank int) fabric.Lane     // the lane for puts and gets
	Atomic(rank int) fabric.Lane // the lane for atomics
	All() []fabric.Lane
	// Waiter is the lane that polls best while its user waits for a word (fabric.Lane.WaitWord).
	Waiter() fabric.Lane
	Close() error
}

// Host is what a part runs in: goroutines and real time, or a simulation.
type Host interface {
	am.Host
	// Now is the time since an arbitrary origin.
	Now() time.Duration
	// WithTimeout is context.WithTimeout.
	WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Budget bounds the transient memory of a rank's communication.
type Budget interface {
	// Acquire waits until n bytes may be used.
	Acquire(ctx context.Context, n int64) error
	// Release gives n bytes back.
	Release(n int64)
	// Room is about how many bytes could be acquired now without a wait.
	Room() int64
}
