package shm

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/queue"
)

// What endpoints can do.
const (
	maxMessage   = 1 << 24
	maxSlots     = 1 << 20
	maxEndpoints = 65 // the 64 that a program may have, and the library's
	maxNote      = 256
	noteRoom     = 256 // notes that wait for Poll
)

// endpoint is the two-sided half of a rank. Messages are sent in endpoint_send_datapath.go and
// received in endpoint_poll_datapath.go, notes are in endpoint_note.go, Wait is in
// endpoint_wait.go, connections are in link.go; endpoint_open.go opens and closes it.
//
// Locks, in order: polling, link.mu, mu; polling, receive.mu. A method named ...Locked
// needs the lock of its receiver; methods of Poll need polling.
type endpoint struct {
	n     *Network
	num   int
	cfg   fabric.EndpointConfig
	rank  uint32
	links []atomic.Pointer[link] // by rank; nil until the first message
	alive atomic.Bool

	// What Poll looks at when the ring is empty.
	attention atomic.Int32 // entries of queue; more when the endpoint is closed
	stuck     atomic.Int32 // links whose first message met no slot

	polling sync.Mutex // held by Poll; Close waits for it
	guard   owner.Guard
	count   *pollCounts // written with polling
	lent    []int32     // notes of the last Poll

	region  *region
	receive receiver // of messages
	noted   receiver // of notes
	sends   sendBufs

	mu     sync.Mutex
	queue  queue.Ring[entry] // events that no message brings
	queued []*link           // the links that stuck counts
	notes  []int32           // free note buffers
	memory [][maxNote]byte
	sleeper

	up       atomic.Int32 // connections
	posts    postCounts
	freeIt   func()
	closeAll sync.Once
	tracked  *handle.Handle
}

// pollCounts have one writer and lie outside the Go heap; others Load them.
type pollCounts struct{ polls, arrivals, bytes uint64 }

// postCounts are written now and then.
type postCounts struct {
	notes, notesArrived, notesDropped     atomic.Uint64
	doorbells, rnr, repairs               atomic.Uint64
	connects, accepts, handshakes, closes atomic.Uint64
}

// entry is an event in the queue and what it gives back to the endpoint.
type entry struct {
	fabric.Event
	buf  int32 // send buffer of Sent, or -1
	note int32 // note buffer of NoteArrived
}

var _ fabric.Messenger = (*Network)(nil)

// MessageLimits are the limits of an endpoint's memory.
func (n *Network) MessageLimits() fabric.MessageLimits {
	return fabric.MessageLimits{MaxMessage: maxMessage, MaxNote: maxNote, MaxSlots: maxSlots, Endpoints: maxEndpoints}
}

// eachEndpoint calls f for every endpoint that was opened.
func (n *Network) eachEndpoint(f func(ep *endpoint)) {
	n.endpointMu.Lock()
	all := n.endpoints
	n.endpointMu.Unlock()
	for _, ep := range all {
		if ep != nil {
			f(ep)
		}
	}
}

// usable is nil while the endpoint is open.
func (ep *endpoint) usable(op string) error {
	if ep.alive.Load() {
		return nil
	}
	return fmt.Errorf("shm: %s: endpoint %d: %w", op, ep.num, os.ErrClosed)
}

// sendable is nil if the endpoint is open and the peer served and not down.
func (ep *endpoint) sendable(op string, peer int) error {
	if err := ep.usable(op); err != nil {
		return err
	}
	return ep.n.checkAlive(op, peer)
}

// link is the one with a peer, made when it is first needed.
func (ep *endpoint) link(peer int) *link {
	if l := ep.links[peer].Load(); l != nil {
		return l
	}
	ep.links[peer].CompareAndSwap(nil, &link{ep: ep, peer: peer, first: -1, last: -1})
	return ep.links[peer].Load()
}

// push queues an event.
func (ep *endpoint) push(e entry) {
	ep.mu.Lock()
	ep.pushLocked(e)
	ep.mu.Unlock()
}

func (ep *endpoint) pushLocked(e entry) {
	ep.queue.Push(e)
	ep.attention.Add(1)
	ep.wakeIfAsleep()
}

// Connected counts the connections that are made.
func (ep *endpoint) Connected() int { return int(ep.up.Load()) }

// Now is the time since the Network was made.
func (ep *endpoint) Now() time.Duration { return time.Since(ep.n.start) }

// Stats are a copy. Doorbells are wake-ups of sleeping peers.
func (ep *endpoint) Stats() fabric.EndpointStats {
	c := &ep.posts
	s := fabric.EndpointStats{
		Notes: c.notes.Load(), NotesArrived: c.notesArrived.Load(), NotesDropped: c.notesDropped.Load(),
		Doorbells: c.doorbells.Load(), RNR: c.rnr.Load(), Connects: c.connects.Load(), Accepts: c.accepts.Load(),
		Handshakes: c.handshakes.Load(), Disconnects: c.closes.Load(),
	}
	for i := range ep.links {
		if l := ep.links[i].Load(); l != nil {
			l.mu.Lock()
			s.Sends, s.SendBytes = s.Sends+l.sends, s.SendBytes+l.sendBytes
			s.Writes, s.WriteBytes = s.Writes+l.writes, s.WriteBytes+l.writeBytes
			l.mu.Unlock()
		}
	}
	ep.receive.mu.Lock()
	s.Posted = int(ep.receive.next - ep.receive.head)
	s.Polls, s.Arrivals, s.ArrivalBytes = atomic.LoadUint64(&ep.count.polls), atomic.LoadUint64(&ep.count.arrivals),
		atomic.LoadUint64(&ep.count.bytes)
	ep.receive.mu.Unlock()
	s.FreeSends = ep.sends.left()
	return s
}

// endpointOf is the endpoint of a number, open or closed.
func (n *Network) endpointOf(i uint32) *endpoint {
	n.endpointMu.Lock()
	defer n.endpointMu.Unlock()
	return n.endpoints[i]
}

// finish ends a message.
func (ep *endpoint) finish(peer int, id int32, m *sendBuf, err error) {
	if m.cookie == 0 {
		ep.sends.free(id)
		return
	}
	ep.push(entry{Event: fabric.Event{Kind: fabric.Sent, Peer: peer, Cookie: m.cookie, Err: err}, buf: id})
}
