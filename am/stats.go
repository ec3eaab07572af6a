package am

import (
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/counter"
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

// Stats count from Open on. Check has the identities between them.
type Stats struct {
	// Of this rank's requests.
	Calls         uint64 `metric:"requests_sent_total{kind=call} Requests sent: calls, which want a reply, and posts."`
	Posts         uint64 `metric:"requests_sent_total{kind=post}"`
	Replied       uint64 `metric:"calls_ended_total{how=reply} Calls by how they ended."`
	Failed        uint64 `metric:"calls_ended_total{how=failure}"`   // with a *RemoteError
	Dead          uint64 `metric:"calls_ended_total{how=peer_down}"` // the peer died, or was cut off
	Ended         uint64 `metric:"calls_ended_total{how=closed}"`    // by the closing of the endpoint
	CallsInFlight int    `metric:"calls_in_flight Calls without a reply so far."`
	Late          uint64 `metric:"replies_late_total Calls that ended when nobody waited any more."`

	// Of what arrived.
	Arrived  uint64 // messages of other ranks
	Local    uint64 `metric:"local_total Requests and replies of the rank to itself, not among those arrived."`
	Requests uint64
	Handled  uint64 `metric:"requests_arrived_total{result=handled} Requests arrived, by whether a handler ran."`
	Refused  uint64 `metric:"requests_arrived_total{result=refused}"` // they name something that is not there
	Panics   uint64 `metric:"handler_panics_total Handlers that panicked."`
	Replies  uint64 `metric:"replies_arrived_total Replies and failures arrived."`
	Broken   uint64 `metric:"dropped_total{reason=broken} Messages dropped: broken, or of ranks dead or cut off."`
	Ignored  uint64 `metric:"dropped_total{reason=peer_closed}"` // also replies to calls that the endpoint has ended
	Notes    uint64 `metric:"control_arrived_total{kind=credit} Messages of the protocol itself that arrived."`
	BadNotes uint64 `metric:"dropped_total{reason=broken_control}"`
	Copies   uint64 `metric:"copies_total Payloads copied because all spare receive buffers were in use."`

	// Of what this rank replies.
	Wanted   uint64 `metric:"replies_wanted_total Requests arrived that want a reply."`
	Answered uint64 `metric:"replies_total{where=sent} Replies and failures by where they went."`
	Nowhere  uint64 `metric:"replies_total{where=nowhere}"`  // the peer is dead, or the endpoint closed
	Unwanted uint64 `metric:"replies_total{where=unwanted}"` // made for requests that want none
	Owed     int    `metric:"replies_owed Replies not made yet: deferred ones, and those of handlers that run."`
	Unsent   int    `metric:"replies_unsent Replies that wait for a send buffer."`
	Queued   uint64 `metric:"replies_queued_total Replies that had to wait for a send buffer."`
	Expired  uint64 `metric:"replies_total{where=expired}"` // deferred ones that came too late

	// Long messages.
	Writes         uint64 `metric:"writes_total Payloads of Long messages written into segments."`
	Written        uint64 // ended, as the network found
	WritesInFlight int    `metric:"writes_in_flight Payloads of Long messages that the network may still read."`

	// Waits.
	NoCredit  uint64 `metric:"obstacles_total{missing=credit} Attempts to send that failed, by what was missing."`
	NoBuffer  uint64 `metric:"obstacles_total{missing=send_buffer}"`
	NoReply   uint64 `metric:"obstacles_total{missing=reply_buffer}"`
	QueueFull uint64 `metric:"obstacles_total{missing=queue}"` // of the network
	Pings     uint64 `metric:"control_sent_total{kind=ping} Messages of the protocol itself that were sent."`
	Pinged    uint64 `metric:"control_arrived_total{kind=ping}"` // pings find out whether a peer lives
	Waits     uint64 `metric:"waits_total Waits for replies, credits and buffers."`
	Parks     uint64 `metric:"sleeps_total{where=parked} Sleeps of waits: while another goroutine polls, or in the net."`
	Sleeps    uint64 `metric:"sleeps_total{where=network}"`
	Stalls    uint64 `metric:"stalls_total Waits that ended because they took longer than Config.StallAfter."`
	HandOvers uint64 `metric:"hand_overs_total Times that polling was handed to a goroutine that was parked."`
	Polls     uint64 `metric:"polls_total Calls that polled for messages."`
	Controls  uint64 `metric:"control_sent_total{kind=credit}"`
	Posted    uint64 // receive buffers given back; some of them are posted later
	Closed    uint64 `metric:"peers_closed_total Ranks found dead or cut off, counted at each lane."`

	Lent     int `metric:"slots_lent Receive buffers that handlers use."`
	Handling int `metric:"handlers_running Handlers that run."`
	Prepared int `metric:"sends_prepared Send buffers in the program's hands."`
	Large    LargeStats
	Pool     flow.PoolStats
	Network  NetworkStats
}

// NetworkStats are the counters of the network below an endpoint.
type NetworkStats = fabric.EndpointStats

// LargeStats count large payloads.
type LargeStats struct {
	// Payloads of this rank.
	Announced uint64
	Sent      uint64 `metric:"large_ended_total{how=sent} Large payloads of this rank by how they ended."`
	Refused   uint64 `metric:"large_ended_total{how=refused}"`             // by the receiver
	Withdrawn uint64 `metric:"large_ended_total{how=withdrawn}"`           // by this rank: the end of a context, a stall
	Ended     uint64 `metric:"large_ended_total{how=peer_down_or_closed}"` // or the endpoint was closed
	InFlight  int    `metric:"large_in_flight Large payloads of this rank that are announced."`

	// Payloads to this rank, its own included.
	Offered   uint64
	Granted   uint64 `metric:"large_granted_total Large payloads that were granted memory."`
	Delivered uint64 `metric:"large_arrived_total{how=delivered} Large payloads to this rank by how they ended."`
	Declined  uint64 `metric:"large_arrived_total{how=declined}"`  // refused here
	Cancelled uint64 `metric:"large_arrived_total{how=cancelled}"` // also as the sender died, or the endpoint was closed
	Held      int    `metric:"large_held Large payloads announced to this rank that have not ended."`

	StepsSent    uint64 `metric:"large_steps_total{direction=sent} Messages about large payloads, the data included."`
	StepsArrived uint64 `metric:"large_steps_total{direction=arrived}"`
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
func (s Stats) Add(o Stats) Stats { return counter.Add(s, o) }

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
