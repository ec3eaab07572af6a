package am

import (
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank/errring"
)

// counters are the numbers of Stats. What each message changes is counted under a lock that is held
// anyway.
type counters struct {
	// Under the endpoint's lock.
	calls, posts, pings, writes, answered       uint64
	replied, failed, dead, ended, late, written uint64
	requests, replies, pinged, ignored, broken  uint64
	wanted, copies, posted, polls, local        uint64
	empty                                       uint64 // polls that brought nothing
	waits                                       uint64
	large                                       LargeStats

	handled, refused, panics, nowhere, unwanted        atomic.Uint64
	notes, badNotes, controls, queued, expired, closed atomic.Uint64
	noCredit, noBuffer, noReply, queueFull             atomic.Uint64
	parks, sleeps, stalls, handOvers                   atomic.Uint64
}

// Stats count from Open on. Check says which identities hold between them.
type Stats struct {
	// Of this rank's requests.
	Calls, Posts  uint64 // sent
	Replied       uint64 // calls that have a reply
	Failed        uint64 // that have a *RemoteError
	Dead          uint64 // whose peer died, or was cut off
	Ended         uint64 // that the closing of the endpoint ended
	CallsInFlight int    // the others
	Late          uint64 // of those with a reply: nobody waited any more

	// Of what arrived.
	Arrived  uint64 // messages of other ranks
	Local    uint64 // requests and replies to itself, not counted in Arrived
	Requests uint64
	Handled  uint64 // requests whose handler ran
	Refused  uint64 // that named what is not there
	Panics   uint64 // of handlers
	Replies  uint64 // replies and failures
	Broken   uint64 // messages against the protocol
	// messages of peers that are dead or cut off, and replies to calls that have ended
	Ignored  uint64
	Notes    uint64 // control messages
	BadNotes uint64 // of them, against the protocol
	Copies   uint64 // payloads copied because all spares were in use

	// Of what this rank replies.
	Wanted   uint64 // requests to be answered
	Answered uint64 // replies and failures sent
	Nowhere  uint64 // that could not be sent: the peer is dead, or the endpoint closed
	Unwanted uint64 // made for requests that want none
	Owed     int    // not made yet: deferred, or their handlers run
	Unsent   int    // made, waiting for a send buffer
	Queued   uint64 // replies that ever did
	Expired  uint64 // deferred ones that came too late

	// Long messages.
	Writes         uint64 // whose end the network tells
	Written        uint64 // told
	WritesInFlight int

	// Waits: attempts that met an obstacle, and what became of them.
	NoCredit, NoBuffer, NoReply, QueueFull uint64
	Pings, Pinged                          uint64 // messages to find out whether a peer lives, sent and arrived
	Waits                                  uint64 // that did more than one look
	Parks, Sleeps                          uint64 // of goroutines that did not lead, that did
	Stalls                                 uint64 // waits longer than Config.StallAfter
	HandOvers                              uint64 // wake-ups of one who polls next, by who stops
	Polls                                  uint64
	Controls                               uint64 // control messages sent; Notes are those that arrived
	Posted                                 uint64 // receive buffers given back; some of them are posted later
	Closed                                 uint64 // peers dead or cut off

	// receive buffers with handlers, requests with handlers that have not ended, send buffers with the
	// program
	Lent, Handling, Prepared int
	Large                    LargeStats
	Pool                     flow.PoolStats
	Network                  fabric.EndpointStats
}

// LargeStats count large payloads.
type LargeStats struct {
	// Payloads of this rank.
	Announced uint64
	Sent      uint64 // that the network has
	Refused   uint64 // by the receiver
	Withdrawn uint64 // given up by this rank: the end of a context, a stall
	Ended     uint64 // by the receiver's death or the closing of the endpoint
	InFlight  int    // the others

	// Payloads to this rank, its own included.
	Offered   uint64
	Granted   uint64 // were given memory
	Delivered uint64
	Declined  uint64 // refused here
	Cancelled uint64 // withdrawn, or ended by the sender's death or the closing of the endpoint
	Held      int    // the others

	StepsSent, StepsArrived uint64 // messages about large payloads, those with the data included
}

// countStep counts pings and the steps of large payloads that are sent.
func (c *counters) countStep(k kind, by uint64) {
	if k == ping {
		c.pings += by
	} else {
		c.large.StepsSent += by
	}
}

// countArrivedStep counts those that arrive.
func (c *counters) countArrivedStep(k kind) {
	if k == ping {
		c.pinged++
	} else {
		c.large.StepsArrived++
	}
}

// Stats reads the counters.
func (l *Endpoint) Stats() Stats {
	c := &l.core.stats
	port := l.core.net.Stats()
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	s := Stats{
		Calls: c.calls, Posts: c.posts, Pings: c.pings, Writes: c.writes, Answered: c.answered,
		Replied: c.replied, Failed: c.failed, Dead: c.dead, Ended: c.ended, Late: c.late, Written: c.written,
		Requests: c.requests, Replies: c.replies, Pinged: c.pinged, Ignored: c.ignored, Broken: c.broken,
		Wanted: c.wanted, Copies: c.copies, Posted: c.posted, Polls: c.polls, Local: c.local,
		Handled: c.handled.Load(), Refused: c.refused.Load(), Panics: c.panics.Load(), Nowhere: c.nowhere.Load(),
		Unwanted: c.unwanted.Load(),
		Notes:    c.notes.Load(), BadNotes: c.badNotes.Load(), Controls: c.controls.Load(), Queued: c.queued.Load(),
		Expired:  c.expired.Load(),
		NoCredit: c.noCredit.Load(), NoBuffer: c.noBuffer.Load(), NoReply: c.noReply.Load(), QueueFull: c.queueFull.Load(),
		Waits: c.waits, Parks: c.parks.Load(), Sleeps: c.sleeps.Load(), Stalls: c.stalls.Load(),
		HandOvers: c.handOvers.Load(),
		Closed:    c.closed.Load(), Lent: l.core.lent, Prepared: l.core.acquirer.prepared, Large: c.large,
		Pool: l.core.pool.Stats(), Network: port,
	}
	s.Handling = int(s.Requests - s.Handled - s.Refused)
	s.Arrived = s.Requests + s.Replies + s.Pinged + s.Broken + s.Ignored + s.Large.StepsArrived - s.Local
	g := &s.Large
	g.InFlight, g.Held = int(g.Announced-g.Sent-g.Refused-g.Withdrawn-g.Ended),
		int(g.Offered-g.Delivered-g.Declined-g.Cancelled)
	s.CallsInFlight, s.WritesInFlight, s.Unsent = l.core.calls.awaits-l.core.calls.grants, l.core.calls.writes,
		len(l.core.late)
	s.Owed = int(s.Wanted - s.Answered - s.Nowhere - uint64(len(l.core.late)))
	return s
}

// Add returns the sums, field by field: what several endpoints have done together.
func (s Stats) Add(o Stats) Stats {
	addFields(reflect.ValueOf(&s).Elem(), reflect.ValueOf(o))
	return s
}

// addFields adds up structures of numbers.
func addFields(to, from reflect.Value) {
	for i := range to.NumField() {
		switch f := to.Field(i); f.Kind() {
		case reflect.Struct:
			addFields(f, from.Field(i))
		case reflect.Int:
			f.SetInt(f.Int() + from.Field(i).Int())
		default:
			f.SetUint(f.Uint() + from.Field(i).Uint())
		}
	}
}

// Check returns an error unless the identities between the counters hold that hold
// whenever no goroutine is using the endpoint.
func (s *Stats) Check() error {
	for _, c := range [...]struct {
		rule      string
		got, want uint64
	}{
		{"calls = replied + failed + dead + ended + in flight",
			s.Replied + s.Failed + s.Dead + s.Ended + uint64(s.CallsInFlight), s.Calls},
		{"requests = handled + refused", s.Handled + s.Refused, s.Requests},
		{"replies = calls replied + failed", s.Replied + s.Failed, s.Replies},
		{"messages arrived = receive buffers given back + lent", s.Posted + uint64(s.Lent), s.Arrived},
		{"writes = written + in flight", s.Written + uint64(s.WritesInFlight), s.Writes},
		{"messages that met no buffer", s.Network.RNR, 0},
	} {
		if c.got != c.want {
			return fmt.Errorf("am: %s: %d, want %d", c.rule, c.got, c.want)
		}
	}
	if g := &s.Large; g.InFlight < 0 || g.Held < 0 || g.Granted > g.Offered {
		return fmt.Errorf("am: more large payloads ended than were announced: %+v", *g)
	}
	if s.Owed < 0 || s.CallsInFlight < 0 || s.Lent < 0 || s.Prepared < 0 || s.WritesInFlight < 0 {
		return fmt.Errorf("am: a count is negative: %d owed, %d calls and %d writes in flight, %d lent, %d prepared",
			s.Owed, s.CallsInFlight, s.WritesInFlight, s.Lent, s.Prepared)
	}
	return nil
}

// ErrorEntry is an error with its number, from 0, the rank that it is about (-1: none), and the
// time since the network was opened.
type ErrorEntry = errring.Entry

// Errors are the last errors of the endpoint that no caller of this rank got, at most 1024,
// the oldest first: what arrived broken, handlers that panicked here, peers that died.
func (l *Endpoint) Errors() []ErrorEntry { return l.core.ring.Snapshot() }
