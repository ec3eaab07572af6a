package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/internal/offheap"
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
// endpoint_wait.go, connections are in link.go.
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

// NewEndpoint opens an endpoint. Each number can be opened once.
func (n *Network) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	if err := n.MessageLimits().Check(i, cfg); err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	if n.cfg.Size > maxRank {
		return nil, fmt.Errorf("shm: endpoints serve at most %d ranks", maxRank)
	}
	ep, err := newEndpoint(n, i, cfg)
	if err != nil {
		return nil, err
	}
	requests, err := n.register(ep)
	if err != nil {
		return nil, errors.Join(err, ep.free())
	}
	for _, r := range requests {
		ep.link(r.from).connected(r)
	}
	return ep, nil
}

func newEndpoint(n *Network, num int, cfg fabric.EndpointConfig) (*endpoint, error) {
	region, err := newRegion(cfg.Slots, cfg.SlotSize)
	if err != nil {
		return nil, err
	}
	count, free, err := offheap.Alloc[pollCounts]()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shm: counters of an endpoint: %w", err), region.close())
	}
	ep := &endpoint{n: n, num: num, cfg: cfg, rank: uint32(n.cfg.Rank), region: region,
		links: make([]atomic.Pointer[link], n.cfg.Size), count: count, freeIt: free}
	ep.receive.open(&region.ring)
	ep.noted.open(&region.note)
	ep.sends.open(cfg)
	ep.sleeper.open(num)
	ep.alive.Store(true)
	ep.tracked = handle.New(ep, "shm endpoint", fmt.Sprintf("%d of rank %d", num, n.cfg.Rank))
	return ep, nil
}

// register makes an endpoint known to the network, and returns the connection requests that
// came before it.
func (n *Network) register(ep *endpoint) ([]handshake, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.endpointMu.Lock()
	defer n.endpointMu.Unlock()
	switch {
	case n.state != joined:
		return nil, fmt.Errorf("shm: NewEndpoint needs a connected network: %w", os.ErrClosed)
	case n.endpoints[ep.num] != nil:
		return nil, fmt.Errorf("shm: endpoint %d of rank %d was opened before", ep.num, n.cfg.Rank)
	}
	n.endpoints[ep.num] = ep
	n.open++
	requests := n.early[ep.num]
	n.early[ep.num] = nil
	return requests, nil
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

// Close ends the endpoint. A peer that sends to it finds it closed.
func (ep *endpoint) Close() error {
	var err error
	ep.closeAll.Do(func() {
		ep.alive.Store(false)
		ep.attention.Add(1) // ends a Poll
		ep.Wake()
		ep.polling.Lock()
		defer ep.polling.Unlock()
		ep.n.mu.Lock()
		ep.n.open--
		ep.n.mu.Unlock()
		err = ep.free()
	})
	return err
}

// free releases the memory. No poll runs, and every other call finds the endpoint closed.
func (ep *endpoint) free() error {
	var errs []error
	ep.alive.Store(false)
	atomic.StoreUint32(&ep.region.head.closed, 1)
	for i := range ep.links {
		if l := ep.links[i].Load(); l != nil {
			l.mu.Lock()
			errs = append(errs, l.dropLocked())
			l.mu.Unlock()
		}
	}
	ep.receive.mu.Lock()
	errs = append(errs, ep.region.close())
	last := *ep.count
	ep.count = &last
	ep.freeIt()
	ep.receive.mu.Unlock()
	ep.mu.Lock()
	ep.queue = queue.Ring[entry]{}
	ep.mu.Unlock()
	ep.alarms.Clear()
	ep.tracked.Close()
	return errors.Join(errs...)
}
