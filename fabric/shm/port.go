package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/internal/owner"
)

// What ports can do.
const (
	maxMessage = 1 << 24
	maxSlots   = 1 << 20
	maxPorts   = 64
	maxNote    = 256
	noteRoom   = 256 // notes that wait for Poll
)

// port is the two-sided half of a rank. Its connections are in port_connect.go, Wait in
// port_wait.go, the way of a message in port_send_datapath.go and port_datapath.go.
//
// Locks, in order: polling, link.mu, mu; polling, receive.mu. A function whose name ends in Locked wants
// the lock of the link.
type port struct {
	n     *Network
	num   int
	cfg   fabric.EndpointConfig
	rank  uint32
	links []atomic.Pointer[link] // by rank; nil until the first message
	alive atomic.Bool

	// What Poll looks at when the ring is empty.
	attention atomic.Int32 // entries of queue; more when the port is closed
	stuck     atomic.Int32 // links whose first message met no slot

	polling sync.Mutex // held by Poll; Close waits for it
	guard   owner.Guard
	count   *pollCounts   // written by who holds polling
	lent    []int32       // notes of the last Poll
	idle    time.Duration // that Poll has spent since there was something

	box     *mailbox
	receive receiver // of messages
	noted   receiver // of notes
	sends   sender

	mu     sync.Mutex
	queue  fifo[entry] // events that no message brings
	queued []*link     // the links that stuck counts
	notes  []int32     // free note buffers
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

// sender is the send buffers.
type sender struct {
	bufs   []sendBuf
	mu     sync.Mutex
	free   []int32
	common int // in use without Urgent
}

// sendBuf is one of them, and the message in it while it waits.
type sendBuf struct {
	data   []byte
	state  atomic.Uint32
	next   int32 // of the link's queue, or -1
	n      int32
	flags  fabric.SendFlag
	urgent bool // reserved so; with sender.mu
	missed bool // counted as RNR
	behind bool // w has yet to be written
	cookie uint64
	w      fabric.Write
}

// States of a send buffer.
const (
	bufFree  = iota
	bufOurs  // the program's
	bufWired // with a message
)

// entry is an event in the queue and what it returns to the port.
type entry struct {
	fabric.Event
	buf  int32 // send buffer of Sent, or -1
	note int32 // note buffer of NoteArrived
}

var _ fabric.Messenger = (*Network)(nil)

// MessageLimits are those of a port's memory.
func (n *Network) MessageLimits() fabric.MessageLimits {
	return fabric.MessageLimits{MaxMessage: maxMessage, MaxNote: maxNote, MaxSlots: maxSlots, Endpoints: maxPorts}
}

// NewEndpoint opens a port. Each number can be opened once.
func (n *Network) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	switch {
	case i < 0 || i >= maxPorts:
		return nil, fmt.Errorf("shm: no port %d (ports are 0 to %d)", i, maxPorts-1)
	case cfg.Slots < 1 || cfg.Slots > maxSlots || cfg.SlotSize < 1 || cfg.SlotSize > maxMessage:
		return nil, fmt.Errorf("shm: a port has 1 to %d slots of 1 to %d bytes, not %d of %d", maxSlots, maxMessage, cfg.Slots, cfg.SlotSize)
	case cfg.Sends < 1 || cfg.Sends > maxSlots || cfg.Reserved < 0 || cfg.Reserved >= cfg.Sends:
		return nil, fmt.Errorf("shm: a port has 1 to %d send buffers and reserves fewer than all, not %d and %d", maxSlots, cfg.Sends, cfg.Reserved)
	case n.cfg.Size > maxRank:
		return nil, fmt.Errorf("shm: ports serve at most %d ranks", maxRank)
	}
	p, err := newPort(n, i, cfg)
	if err != nil {
		return nil, err
	}
	if err := n.register(p); err != nil {
		return nil, errors.Join(err, p.free())
	}
	return p, nil
}

func newPort(n *Network, num int, cfg fabric.EndpointConfig) (*port, error) {
	box, err := makeMailbox(cfg.Slots, cfg.SlotSize)
	if err != nil {
		return nil, err
	}
	count, free, err := offheap.Alloc[pollCounts]()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shm: counters of a port: %w", err), box.close())
	}
	p := &port{n: n, num: num, cfg: cfg, rank: uint32(n.cfg.Rank), box: box,
		links: make([]atomic.Pointer[link], n.cfg.Size), count: count, freeIt: free}
	p.receive.open(&box.ring)
	p.noted.open(&box.note)
	p.sends.open(cfg)
	p.sleeper.open()
	p.sendWakeTo = wakePacket(num)
	p.alive.Store(true)
	p.tracked = handle.New(p, "shm port", fmt.Sprintf("%d of rank %d", num, n.cfg.Rank))
	return p, nil
}

// register makes a port known to the peers that have asked for it.
func (n *Network) register(p *port) error {
	asks, err := n.enter(p)
	for _, a := range asks {
		p.asked(a)
	}
	return err
}

func (n *Network) enter(p *port) (asks []ask, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.portMu.Lock()
	defer n.portMu.Unlock()
	switch {
	case n.state != joined:
		return nil, fmt.Errorf("shm: NewEndpoint needs a connected network: %w", os.ErrClosed)
	case n.ports[p.num] != nil:
		return nil, fmt.Errorf("shm: port %d of rank %d was opened before", p.num, n.cfg.Rank)
	}
	n.ports[p.num] = p
	n.open++
	asks = n.asks[p.num]
	n.asks[p.num] = nil
	return asks, nil
}

func (s *sender) open(cfg fabric.EndpointConfig) {
	pitch := (cfg.SlotSize + lineSize - 1) &^ (lineSize - 1)
	mem := make([]byte, cfg.Sends*pitch)
	s.bufs, s.free = make([]sendBuf, cfg.Sends), make([]int32, cfg.Sends)
	for i := range s.bufs {
		s.bufs[i].data = mem[i*pitch:][:cfg.SlotSize:cfg.SlotSize]
		s.free[i] = int32(cfg.Sends - 1 - i)
	}
}

// give makes a buffer free.
func (s *sender) give(id int32) {
	b := &s.bufs[id]
	b.w.Src = nil
	b.state.Store(bufFree)
	s.mu.Lock()
	if !b.urgent {
		s.common--
	}
	s.free = append(s.free, id)
	s.mu.Unlock()
}

// usable is nil while the port is open.
func (p *port) usable(op string) error {
	if p.alive.Load() {
		return nil
	}
	return fmt.Errorf("shm: %s: port %d: %w", op, p.num, os.ErrClosed)
}

// refuse says why a rank cannot be sent to; nil if it can.
func (p *port) refuse(op string, peer int) error {
	if uint(peer) >= uint(len(p.links)) || p.n.targets[peer].state.Load() == absent {
		return &fabric.RankError{Op: op, Rank: peer, Size: len(p.links)}
	}
	if p.n.targets[peer].state.Load() == down {
		return &fabric.PeerDownError{Rank: peer, Op: op, Cause: *p.n.peers[peer].cause.Load()}
	}
	return nil
}

// Note sends a datagram. It is lost when there is no room.
func (p *port) Note(peer int, data []byte) error {
	if err := p.usable("note"); err != nil {
		return err
	}
	if err := p.refuse("note", peer); err != nil {
		return err
	}
	if len(data) > maxNote {
		return fmt.Errorf("shm: note: %w", &fabric.BoundsError{Op: "note", Rank: peer, Len: uint64(len(data)), Size: maxNote})
	}
	sent, err := p.bringNote(peer, data)
	if err != nil {
		return err
	}
	p.posts.notes.Add(1)
	if !sent {
		p.posts.notesDropped.Add(1)
	}
	return nil
}

// bringNote leaves a note in the peer's mailbox, or sends it over the socket to a peer
// that has not handed over one.
func (p *port) bringNote(peer int, data []byte) (sent bool, err error) {
	if peer == p.n.cfg.Rank {
		p.noteArrives(peer, data)
		return true, nil
	}
	l := p.links[peer].Load()
	if l == nil {
		return p.n.peers[peer].sendNote(p.num, data), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == linkDown:
		return false, &fabric.PeerDownError{Rank: peer, Op: "note", Cause: *l.cause.Load()}
	case !p.alive.Load():
		return false, p.usable("note")
	case l.far == nil:
		return p.n.peers[peer].sendNote(p.num, data), nil
	case !l.far.note.put(p.rank, 0, 0, data):
		return false, nil
	}
	if atomic.LoadUint32(&l.far.head.armed) != 0 {
		l.wakePeer()
	}
	return true, nil
}

// noteArrives keeps a note for the next Poll, if there is room.
func (p *port) noteArrives(from int, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.memory == nil {
		p.memory = make([][maxNote]byte, noteRoom)
		for i := range p.memory {
			p.notes = append(p.notes, int32(i))
		}
	}
	k := len(p.notes) - 1
	if k < 0 || !p.alive.Load() {
		p.posts.notesDropped.Add(1)
		return
	}
	id := p.notes[k]
	p.notes = p.notes[:k]
	m := copy(p.memory[id][:], data)
	p.posts.notesArrived.Add(1)
	p.pushLocked(entry{Event: fabric.Event{Kind: fabric.NoteArrived, Peer: from, Data: p.memory[id][:m:m]}, buf: -1, note: id})
}

// returnNotes takes back what the last Poll lent.
func (p *port) returnNotes() {
	p.mu.Lock()
	p.notes = append(p.notes, p.lent...)
	p.mu.Unlock()
	p.lent = p.lent[:0]
}

// push queues an event.
func (p *port) push(e entry) {
	p.mu.Lock()
	p.pushLocked(e)
	p.mu.Unlock()
}

func (p *port) pushLocked(e entry) {
	p.queue.push(e)
	p.attention.Add(1)
	p.nudge()
}

// Connected counts the connections that are made.
func (p *port) Connected() int { return int(p.up.Load()) }

// Now is the time since the Network was made.
func (p *port) Now() time.Duration { return time.Since(p.n.start) }

// Stats are a copy. Doorbells are wake-ups of sleeping peers.
func (p *port) Stats() fabric.EndpointStats {
	c := &p.posts
	s := fabric.EndpointStats{
		Notes: c.notes.Load(), NotesArrived: c.notesArrived.Load(), NotesDropped: c.notesDropped.Load(),
		Doorbells: c.doorbells.Load(), RNR: c.rnr.Load(), Connects: c.connects.Load(), Accepts: c.accepts.Load(),
		Handshakes: c.handshakes.Load(), Disconnects: c.closes.Load(),
	}
	for i := range p.links {
		if l := p.links[i].Load(); l != nil {
			l.mu.Lock()
			s.Sends, s.SendBytes = s.Sends+l.sends, s.SendBytes+l.sendBytes
			s.Writes, s.WriteBytes = s.Writes+l.writes, s.WriteBytes+l.writeBytes
			l.mu.Unlock()
		}
	}
	p.receive.mu.Lock()
	s.Posted = int(p.receive.next - p.receive.head)
	s.Polls, s.Arrivals, s.ArrivalBytes = atomic.LoadUint64(&p.count.polls), atomic.LoadUint64(&p.count.arrivals), atomic.LoadUint64(&p.count.bytes)
	p.receive.mu.Unlock()
	p.sends.mu.Lock()
	s.FreeSends = len(p.sends.free)
	p.sends.mu.Unlock()
	return s
}

// Close ends the port. A peer that sends to it finds it closed.
func (p *port) Close() error {
	var err error
	p.closeAll.Do(func() {
		p.alive.Store(false)
		p.attention.Add(1) // ends a Poll
		p.Wake()
		p.polling.Lock()
		defer p.polling.Unlock()
		p.n.forget(p)
		err = p.free()
	})
	return err
}

// free gives the memory back. Nobody polls, and what others do finds the port closed.
func (p *port) free() error {
	var errs []error
	p.alive.Store(false)
	atomic.StoreUint32(&p.box.head.closed, 1)
	for i := range p.links {
		if l := p.links[i].Load(); l != nil {
			errs = append(errs, l.close())
		}
	}
	p.receive.mu.Lock()
	errs = append(errs, p.box.close())
	last := *p.count
	p.count = &last
	p.freeIt()
	p.receive.mu.Unlock()
	p.mu.Lock()
	p.queue = fifo[entry]{}
	p.alarms = nil
	p.mu.Unlock()
	p.tracked.Close()
	return errors.Join(errs...)
}

// forget makes the port unknown, and its number used.
func (n *Network) forget(p *port) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open--
}

// each calls f for every port that was opened.
func (n *Network) eachPort(f func(p *port)) {
	n.portMu.Lock()
	ports := slices.DeleteFunc(slices.Clone(n.ports[:]), func(p *port) bool { return p == nil })
	n.portMu.Unlock()
	for _, p := range ports {
		f(p)
	}
}

// fifo is a queue that reuses its memory.
type fifo[T any] struct {
	buf  []T // a power of two
	head int
	n    int
}

func (q *fifo[T]) push(v T) {
	if q.n == len(q.buf) {
		bigger := make([]T, max(16, 2*len(q.buf)))
		for i := range q.n {
			bigger[i] = q.buf[(q.head+i)&(len(q.buf)-1)]
		}
		q.buf, q.head = bigger, 0
	}
	q.buf[(q.head+q.n)&(len(q.buf)-1)] = v
	q.n++
}

func (q *fifo[T]) pop() T {
	var zero T
	v := q.buf[q.head]
	q.buf[q.head] = zero
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return v
}
