package am

import (
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/lockrank/errring"
	"github.com/ibconduit/conduit/internal/queue"
	"github.com/ibconduit/conduit/internal/sparse"
)

// core is the lowest part of an endpoint: what it knows of peers, credits and calls, under one
// lock, so that one look at the counts is consistent. The parts above it share it, and name those
// below that they call: emitter < replier < inbox < progress < Endpoint.
type core struct {
	net   fabric.Endpoint
	cfg   Config
	table *Table
	hash  uint32                             // of the table, on every message
	flow  *credit.Config                     // of the senders' accounts
	self  *Endpoint                          // for handlers
	peers sparse.Array[atomic.Pointer[peer]] // by rank; nil: no message went there or came from there

	mu       lockrank.Mutex // Pool
	pool     *credit.Pool
	acquirer acquirer
	calls    calls
	parked   queue.List[waiter]
	asking   []*peer // with questions to repeat, or a full queue
	late     []*lateReply
	owed     []*DeferredReply
	owedDue  time.Duration // the earliest deadline; 0: none
	pingDue  time.Duration // when peers that owe replies are looked at; 0: no reply is awaited
	stallDue time.Duration // when the watchdog looks at parked waiters; 0: none is parked
	idle     []*waiter     // free ones
	end      error         // not nil: the endpoint is closed, or its network failed
	rest     InFlightError // what Close ended, for the Close that succeeds
	mute     bool          // no peer is pinged
	sealed   bool          // requests are refused; it is mute, too
	lent     int           // receive buffers that handlers keep
	stats    counters

	transfers int // large payloads from here and to here that have not ended
	functions int // of a Receiver's functions, and those of Call.Go, those that run or are to
	rounding  bool
	quick     []func() // of quick receivers, for the end of the round
	copying   int      // that copy what this rank sends itself into the segment

	nextIdle  atomic.Pointer[waiter] // a free one that can be had without the lock
	armed     atomic.Int64           // the time given to the network's After last
	closing   atomic.Bool
	deaths    atomic.Pointer[death] // reported by PeerDown
	attendant *waiter               // nil: there is none
	ring      errring.Ring
}

// refusalLocked is why a message of a kind is not sent any more, or nil.
func (c *core) refusalLocked(k kind) error {
	if c.mute {
		return c.mutedLocked(k)
	}
	return c.end
}

// mutedLocked is refusalLocked for an endpoint that is about to end.
func (c *core) mutedLocked(k kind) error {
	if c.end == nil && (k == ping || c.sealed && (k == request || k == announce)) {
		return errSealed
	}
	return c.end
}

// ended is why the endpoint is of no use any more, or nil.
func (c *core) ended() error {
	if !c.closing.Load() { // which shut sets with it
		return nil
	}
	return c.endedBy()
}

// endedBy is ended for one that is closing.
func (c *core) endedBy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}

// copyToSelfLocked copies what this rank sends itself into the segment, which Close leaves to it so
// long. The lock is given up meanwhile.
func (c *core) copyToSelfLocked(off uint64, payload []byte) {
	c.copying++
	c.mu.Unlock()
	copy(c.cfg.Segment[off:], payload)
	c.mu.Lock()
	c.copying--
}

// report keeps an error for diagnostics.
func (c *core) report(rank int, err error) { c.ring.Add(c.net.Now(), rank, err) }

// arm makes a sleep in the network's Wait end in time.
func (c *core) arm(at time.Duration) {
	if at != 0 {
		c.armFrom(c.net.Now(), at)
	}
}

// armFrom is arm for callers that know the time.
func (c *core) armFrom(now, at time.Duration) {
	for {
		old := time.Duration(c.armed.Load())
		if old > now && old <= at {
			return
		}
		if c.armed.CompareAndSwap(int64(old), int64(at)) {
			c.net.After(at)
			return
		}
	}
}

// sooner is the earlier of two times of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// inFlightLocked counts what has not ended.
func (c *core) inFlightLocked() InFlightError {
	return InFlightError{Calls: c.calls.awaits - c.calls.grants, Writes: c.calls.writes,
		Owed: len(c.owed), Unsent: len(c.late), Handlers: c.handlingLocked(), Transfers: c.transfers + c.functions}
}

// handlingLocked counts the requests with handlers that have not ended.
func (c *core) handlingLocked() int {
	return int(c.stats.requests - c.stats.handled.Load() - c.stats.refused.Load())
}
