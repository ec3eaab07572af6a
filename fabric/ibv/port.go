//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/verbs"
)

// port is one port of a rank: a shared receive queue with the slots, a queue pair
// per connected peer, and one for datagrams, all on one completion queue.
//
// A message goes through port_send_datapath.go, port_datapath.go (what is posted) and port_poll_datapath.go; connections are made
// in connect_ud.go and closed in connect_close.go; waits are in port_wait.go.
type port struct {
	n      *Network
	num    int
	cfg    fabric.EndpointConfig
	origin time.Time

	listener *listener
	srq      *verbs.SRQ
	mem      []byte // slots, send buffers, datagrams
	mr       *verbs.MR
	layout   layout
	inline   int

	// The poller: who is in Poll, Wait or Close. It alone makes, closes and ends connections and
	// takes completions. It does not hold mu while it polls.
	poller   sync.Mutex
	bell     *verbs.Doorbell // polls
	events   eventRing
	byQPN    map[uint32]*conn // every connection that has a queue pair
	asking   []*conn          // connections with something to repeat
	lent     []int32          // datagram buffers of the notes that the last Poll returned
	downSeen uint32
	polls    uint32
	trimAt   time.Duration // when to look for idle connections again
	keepAt   time.Duration // when to look for connections to try

	// mu protects what follows. It is held while requests are posted, never while anybody waits.
	mu       sync.Mutex
	closed   bool
	deaf     error           // why the port is of no more use
	tx       *verbs.Doorbell // posts
	chain    *verbs.SendChain
	recvs    *verbs.RecvChain
	slots    int   // of chain, in this ring
	recvUsed int   // of recvs, in this ring
	staged   []run // what the ring will post
	taken    []verbs.WC

	peers      []peer // by rank
	bufs       []bufState
	freeBufs   []int32
	common     int // of bufs, in use without Urgent
	msgs       []message
	freeMsg    int32
	freeMsgs   int
	out        int32   // work requests on their way, of all connections
	limit      int32   // of out
	ready      []*conn // with messages to post
	readySpare []*conn
	control    []datagram // to be answered
	wanted     []*conn    // to be made
	parting    []*conn    // to be closed, as Disconnect asks
	broken     []*conn    // whose queue pair refused work
	bare       []int32    // slots to be posted
	bareRecv   []int32    // datagram buffers to be posted
	slotOurs   []bool     // slots that are not in the caller's hands
	freeOut    []int32    // datagram send buffers
	outAH      []*handleOf
	handles    handles
	clock      uint64 // of the use of connections
	sleeping   bool   // the poller is in Wait
	armedAny   bool   // and any completion wakes it

	woken   atomic.Bool
	cancel  atomic.Pointer[context.CancelFunc] // of the Wait in progress
	alarmMu sync.Mutex
	alarms  []time.Duration // sorted

	open  atomic.Int32 // connections that are up
	count portCounters
	rnr   rnrCounter
}

// peer is what is known of a rank that is not connected. There are as many as ranks in the job.
type peer struct {
	conn  *conn
	epoch uint32 // of the last connection
	down  bool
}

type bufState struct {
	state  bufUse
	write  bool // a write's bytes lie behind the message
	urgent bool // it was reserved so
}

type bufUse uint8

const (
	bufFree bufUse = iota
	bufOurs        // the program's
	bufSent        // the device's
)

// layout says where what lies in a port's memory.
type layout struct {
	send, in, out int // offsets; slots come first
	stride        int // from slot to slot
	bytes         int
}

const (
	portLine = 64
	// A datagram that is longer than its buffer ends the queue pair, for those of all ranks (rxe, Linux 6.1): there is room
	// for the largest, which is of one packet.
	inStride = (grhBytes + packetMax + portLine - 1) / portLine * portLine
	// packetMax is the payload of the largest packet: IBV_MTU_4096 of ibv_query_port(3) is the largest MTU.
	packetMax = 4096
)

func newLayout(cfg fabric.EndpointConfig) (l layout) {
	l.stride = (cfg.SlotSize + portLine - 1) / portLine * portLine
	l.send = cfg.Slots * l.stride
	l.in = l.send + cfg.Sends*l.stride
	l.out = l.in + dgramRecvs*inStride
	l.bytes = l.out + dgramSends*datagramMax
	return l
}

// portCounters are those of Stats. What each message changes is counted under mu.
type portCounters struct {
	sends, sendBytes, arrivals, arrivalBytes uint64
	writes, writeBytes, doorbells, polls     uint64
	posted                                   int

	notes, notesArrived, notesDropped          atomic.Uint64
	connects, accepts, handshakes, disconnects atomic.Uint64
}

// NewEndpoint opens a port. Connect must have returned.
func (n *Network) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	limits := n.MessageLimits()
	switch {
	case i < 0 || i >= limits.Endpoints:
		return nil, fmt.Errorf("ibv: no port %d (ports are 0 to %d, see MessageConfig.Endpoints)", i, limits.Endpoints-1)
	case cfg.Slots < 1 || cfg.Slots > limits.MaxSlots || cfg.SlotSize < 1 || cfg.SlotSize > limits.MaxMessage:
		return nil, fmt.Errorf("ibv: a port has 1 to %d slots of 1 to %d bytes, not %d of %d", limits.MaxSlots, limits.MaxMessage, cfg.Slots, cfg.SlotSize)
	case cfg.Sends < 1 || cfg.Sends > limits.MaxSlots || cfg.Reserved < 0 || cfg.Reserved >= cfg.Sends:
		return nil, fmt.Errorf("ibv: a port has 1 to %d send buffers and reserves fewer than all, not %d and %d", limits.MaxSlots, cfg.Sends, cfg.Reserved)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || i >= len(n.listeners) {
		return nil, errClosed("new port (or before Connect)")
	}
	l := &n.listeners[i]
	switch {
	case l.err != nil:
		return nil, l.err
	case l.opened:
		return nil, fmt.Errorf("ibv: port %d of rank %d was opened before", i, n.cfg.Rank)
	}
	l.opened = true
	p := &port{n: n, num: i, cfg: cfg, origin: time.Now(), listener: l, layout: newLayout(cfg), byQPN: make(map[uint32]*conn),
		peers: make([]peer, n.cfg.Size), handles: handles{pd: n.pd, byWay: make(map[verbs.AddressVector]*handleOf)}}
	if err := p.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("ibv: port %d: %w", i, err), p.release())
	}
	n.portsMu.Lock()
	n.ports = append(n.ports, p)
	n.portsMu.Unlock()
	return p, nil
}

// build makes everything but connections, and posts all slots.
func (p *port) build() (err error) {
	n, l, cfg := p.n, &p.layout, p.cfg
	if err := p.makeTables(); err != nil {
		return err
	}
	if p.mem, err = unix.Mmap(-1, 0, l.bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return fmt.Errorf("mapping %d bytes for %d slots and %d send buffers: %w", l.bytes, cfg.Slots, cfg.Sends, err)
	}
	if p.mr, err = n.pd.Register(unsafe.Pointer(unsafe.SliceData(p.mem)), uint64(l.bytes), verbs.AccessLocalWrite); err != nil {
		return err
	}
	if p.srq, err = n.pd.CreateSRQ(verbs.SRQConfig{MaxWR: cfg.Slots}); err != nil {
		return err
	}
	if p.bell, err = p.listener.cq.NewDoorbell(verbs.DoorbellConfig{}); err != nil {
		return err
	}
	if p.tx, err = p.listener.cq.NewDoorbell(verbs.DoorbellConfig{}); err != nil {
		return err
	}
	p.inline = n.inline // what Connect found
	if p.chain, err = verbs.NewSendChain(verbs.ChainConfig{Slots: chainSlots, Inline: max(p.inline, 8)}); err != nil {
		return err
	}
	if p.recvs, err = verbs.NewRecvChain(verbs.ChainConfig{Slots: chainSlots}); err != nil {
		return err
	}
	p.rnr.begin(n.dev.Name(), n.port.Port)
	if n.cfg.Messages.Eager {
		for r := n.cfg.Rank + 1; r < n.cfg.Size; r++ { // of each pair the lower one asks
			if p.served(r) == nil {
				p.newConn(int32(r), connWanted)
			}
		}
	}
	return p.postRings()
}

// makeTables sizes what there is of each, and the completion queue for all that can complete: every slot and
// datagram, and twice the work requests, since those of a closed queue pair may stay in it.
func (p *port) makeTables() error {
	cfg := p.cfg
	// A short message leaves its buffer at the post and its record later, hence more records than buffers.
	p.msgs = make([]message, 2*cfg.Sends+portQueue)
	for i := range p.msgs {
		p.msgs[i].next = int32(i) + 1
	}
	p.msgs[len(p.msgs)-1].next = none
	p.freeMsgs = len(p.msgs)
	p.limit = int32(max(2*len(p.msgs), portDepth))
	need := cfg.Slots + 2*int(p.limit) + dgramRecvs + dgramSends
	if cq := p.listener.cq; need > cq.Cap() {
		if err := cq.Resize(need); err != nil {
			return err
		}
	}
	p.slotOurs = make([]bool, cfg.Slots)
	for i := range p.slotOurs {
		p.bare, p.slotOurs[i] = append(p.bare, int32(i)), true
	}
	for i := range int32(dgramRecvs) {
		p.bareRecv = append(p.bareRecv, i)
	}
	for i := range int32(dgramSends) {
		p.freeOut = append(p.freeOut, i)
	}
	p.outAH = make([]*handleOf, dgramSends)
	p.bufs = make([]bufState, cfg.Sends)
	for i := range p.bufs {
		p.freeBufs = append(p.freeBufs, int32(cfg.Sends-1-i))
	}
	p.count.posted = cfg.Slots
	return nil
}

// postRings posts the slots and the datagram buffers.
func (p *port) postRings() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.flush(); err != nil {
		return err
	}
	if len(p.broken) > 0 {
		return errors.New("the first receives were refused")
	}
	return nil
}

// served says why a rank cannot be talked to, without regard to its death.
func (p *port) served(rank int) error {
	n := p.n
	if uint(rank) >= uint(n.cfg.Size) || n.peers[rank].lanes == 0 {
		return &fabric.RankError{Op: "message", Rank: rank, Size: n.cfg.Size}
	}
	return nil
}

func (p *port) errClosed(op string) error {
	return fmt.Errorf("ibv: %s: port %d: %w", op, p.num, os.ErrClosed)
}

// usable is called with mu held.
func (p *port) usable(op string) error {
	if p.closed {
		return p.errClosed(op)
	}
	return p.deaf
}

// occupied says why the caller cannot be the poller.
func (p *port) occupied(op string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.errClosed(op)
	}
	return fmt.Errorf("ibv: %s: port %d: %w", op, p.num, owner.ErrConcurrent)
}

// enter makes the caller the poller. One goroutine at a time is.
func (p *port) enter(op string) error {
	if !p.poller.TryLock() {
		return p.occupied(op)
	}
	p.mu.Lock()
	err := p.usable(op)
	p.mu.Unlock()
	if err != nil {
		p.poller.Unlock()
	}
	return err
}

// Connected counts the connections that are made.
func (p *port) Connected() int { return int(p.open.Load()) }

// Stats read the counters.
func (p *port) Stats() fabric.EndpointStats {
	rnr := p.rnr.read()
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.count
	unconfirmed := 0
	for i := range p.msgs {
		if p.msgs[i].unconfirmed() {
			unconfirmed++
		}
	}
	return fabric.EndpointStats{
		Sends: c.sends, SendBytes: c.sendBytes, Arrivals: c.arrivals, ArrivalBytes: c.arrivalBytes,
		Notes: c.notes.Load(), NotesArrived: c.notesArrived.Load(), NotesDropped: c.notesDropped.Load(),
		Writes: c.writes, WriteBytes: c.writeBytes, Doorbells: c.doorbells, Polls: c.polls,
		Connects: c.connects.Load(), Accepts: c.accepts.Load(), Handshakes: c.handshakes.Load(), Disconnects: c.disconnects.Load(),
		RNR: rnr, Posted: c.posted, FreeSends: len(p.freeBufs), Unconfirmed: unconfirmed,
	}
}

// Close ends the port. Peers find it silent.
func (p *port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	p.Wake()
	p.poller.Lock() // whoever polls or waits leaves
	defer p.poller.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n.portsMu.Lock()
	p.n.ports = slices.DeleteFunc(p.n.ports, func(x *port) bool { return x == p })
	p.n.portsMu.Unlock()
	if err := p.release(); err != nil {
		return fmt.Errorf("ibv: close port %d: %w", p.num, err)
	}
	return nil
}

// release closes the queue pairs first: after that the device reaches nothing.
func (p *port) release() error {
	var errs []error
	for _, c := range p.byQPN {
		errs = append(errs, c.qp.Close())
	}
	clear(p.byQPN)
	for i := range p.msgs {
		p.giveBack(&p.msgs[i].lent)
	}
	p.open.Store(0)
	if l := p.listener; l.qp != nil { // its requests name buffers and handles
		errs = append(errs, l.qp.Close())
		l.qp = nil
	}
	errs = append(errs, p.handles.close())
	for _, b := range []*verbs.Doorbell{p.tx, p.bell} {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	if p.chain != nil {
		errs = append(errs, p.chain.Close())
	}
	if p.recvs != nil {
		errs = append(errs, p.recvs.Close())
	}
	if p.srq != nil {
		errs = append(errs, p.srq.Close())
	}
	if p.mr != nil {
		errs = append(errs, p.mr.Close())
	}
	errs = append(errs, p.listener.release())
	// The caller's slots and buffers end with the mapping: a port is closed when nobody uses them.
	if p.mem != nil {
		errs = append(errs, unix.Munmap(p.mem))
		p.mem = nil
	}
	return errors.Join(errs...)
}
