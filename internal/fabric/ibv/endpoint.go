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

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/verbs"
)

// endpoint is one message endpoint of a rank: a shared receive queue with the slots, a queue pair
// per connected peer, and one for datagrams, all on one completion queue.
//
// Send is in endpoint_send_datapath.go, Poll in endpoint_poll_datapath.go, Wait in
// endpoint_wait.go. Below them are connections, then messages, which has the sender, and datagrams.
type endpoint struct {
	core
	listener *listener
	srq      *verbs.SRQ
	mem      []byte // slots, send buffers, datagrams
	mr       *verbs.MR
	layout   layout

	// The poller is in Poll, Wait or Close. Only it makes, closes and ends connections, and takes
	// completions. It does not hold mu while it polls.
	poller   sync.Mutex
	bell     *verbs.Doorbell // polls
	downSeen uint32
	polls    uint32
	noted    int // notes that Poll has not returned yet

	// mu protects what follows. It is held while requests are posted, never during a wait.
	mu        sync.Mutex
	closed    bool
	out       messages
	datagrams datagrams
	conns     connections
	slots     slots
	sleeping  bool // the poller is in Wait
	armedAny  bool // and any completion wakes it

	woken  atomic.Bool
	cancel atomic.Pointer[context.CancelFunc] // of the Wait in progress
	alarms fabric.Alarms
	rnr    rnrCounter
}

// core is shared by the parts of an endpoint.
type core struct {
	n      *Network
	num    int
	cfg    fabric.EndpointConfig
	origin time.Time            // of its clock
	events eventQueue           // the poller's
	count  fabric.EndpointStats // with mu; polled is its Polls
	polled atomic.Uint64
	look   atomic.Bool // something waits for the poller, which else polls without mu
}

// layout is where the parts of an endpoint's memory lie.
type layout struct {
	send, in, out int // offsets; slots come first
	stride        int // from slot to slot
	bytes         int
}

const (
	bufferLine = 64
	// A datagram that is longer than its buffer ends the queue pair, for datagrams of all ranks (rxe,
	// Linux 6.1): there is room for the largest, which is of one packet.
	inStride = (grhBytes + packetMax + bufferLine - 1) / bufferLine * bufferLine
	// packetMax is the payload of the largest packet: IBV_MTU_4096 of ibv_query_port(3) is the
	// largest MTU.
	packetMax = 4096
)

func newLayout(cfg fabric.EndpointConfig) (l layout) {
	l.stride = (cfg.SlotSize + bufferLine - 1) / bufferLine * bufferLine
	l.send = cfg.Slots * l.stride
	l.in = l.send + cfg.Sends*l.stride
	l.out = l.in + dgramRecvs*inStride
	l.bytes = l.out + dgramSends*datagramMax
	return l
}

// NewEndpoint opens an endpoint. Connect must have returned.
func (n *Network) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	if err := n.MessageLimits().Check(i, cfg); err != nil {
		return nil, fmt.Errorf("ibv: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || i >= len(n.listeners) {
		return nil, errClosed("new endpoint (or before Connect)")
	}
	l := &n.listeners[i]
	switch {
	case l.err != nil:
		return nil, l.err
	case l.opened:
		return nil, fmt.Errorf("ibv: endpoint %d of rank %d was opened before", i, n.cfg.Rank)
	}
	l.opened = true
	p := &endpoint{core: core{n: n, num: i, cfg: cfg, origin: time.Now()}, listener: l, layout: newLayout(cfg)}
	if err := p.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("ibv: endpoint %d: %w", i, err), p.release())
	}
	n.endpointsMu.Lock()
	n.endpoints = append(n.endpoints, p)
	n.endpointsMu.Unlock()
	return p, nil
}

// build makes everything but connections, and posts all slots.
func (p *endpoint) build() (err error) {
	n, l, cfg := p.n, &p.layout, p.cfg
	// All that can complete: every slot and datagram, and twice the work requests, since requests of a
	// closed queue pair may stay in the completion queue.
	need := cfg.Slots + 2*int(p.out.makeTables(cfg)) + dgramRecvs + dgramSends
	if cq := p.listener.cq; need > cq.Cap() {
		if err := cq.Resize(need); err != nil {
			return err
		}
	}
	if p.mem, err = unix.Mmap(-1, 0, l.bytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return fmt.Errorf("mapping %d bytes for %d slots and %d send buffers: %w", l.bytes, cfg.Slots, cfg.Sends, err)
	}
	if p.mr, err = n.pd.Register(unsafe.Pointer(unsafe.SliceData(p.mem)), uint64(l.bytes),
		verbs.AccessLocalWrite); err != nil {
		return err
	}
	if p.srq, err = n.pd.CreateSRQ(verbs.SRQConfig{MaxWR: cfg.Slots}); err != nil {
		return err
	}
	tx := &p.out.tx
	if p.bell, err = p.listener.cq.NewDoorbell(verbs.DoorbellConfig{}); err != nil {
		return err
	}
	if tx.bell, err = p.listener.cq.NewDoorbell(verbs.DoorbellConfig{}); err != nil {
		return err
	}
	if tx.chain, err = verbs.NewSendChain(verbs.ChainConfig{Slots: chainSlots, Inline: max(n.inline, 8)}); err != nil {
		return err
	}
	if err := p.out.quick.init(max(n.inline, 8)); err != nil {
		return err
	}
	if err := p.assemble(); err != nil {
		return err
	}
	p.rnr.begin(n.dev.Name(), n.port.Port)
	if n.cfg.Messages.Eager {
		for r := n.cfg.Rank + 1; r < n.cfg.Size; r++ { // of each pair the lower one asks
			if n.peers[r].served() {
				p.conns.want(int32(r))
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flushLocked()
}

// assemble gives the parts what they work with.
func (p *endpoint) assemble() (err error) {
	n, l, lkey := p.n, &p.layout, p.mr.LKey()
	out, d, c := &p.out, &p.datagrams, &p.conns
	out.tx.wake = p.Wake
	out.core, out.lkey, out.inline = &p.core, lkey, min(n.inline, p.cfg.SlotSize) // what Connect found
	out.sends, out.stride = p.mem[l.send:l.in], l.stride
	out.bufs.Open(p.cfg)
	d.n, d.num, d.tx, d.lkey, d.inMem, d.outMem = n, p.num, &out.tx, lkey, p.mem[l.in:l.out], p.mem[l.out:]
	d.room = func() bool {
		out.ringIfFull()
		return out.lost == nil
	}
	if err := d.init(p.listener.qp); err != nil {
		return err
	}
	c.core, c.mu, c.srq, c.cq, c.out, c.datagrams = &p.core, &p.mu, p.srq, p.listener.cq, out, d
	c.peers, c.byQPN = make([]*peer, n.cfg.Size), make(map[uint32]*conn)
	p.slots.srq = p.srq
	return p.slots.init(p.cfg, p.mem[:l.send], l.stride, lkey)
}

// reachable returns why nothing can be sent to a rank. The endpoint's mu is held, so that nothing
// is queued behind the end of a peer.
func (n *Network) reachable(op string, rank int) error {
	if err := fabric.CheckServed(n, op, rank); err != nil {
		return err
	}
	return n.deaths.Err(op, rank)
}

func (p *endpoint) errClosed(op string) error {
	return fmt.Errorf("ibv: %s: endpoint %d: %w", op, p.num, os.ErrClosed)
}

func (p *endpoint) usableLocked(op string) error {
	if p.closed {
		return p.errClosed(op)
	}
	return p.out.lost
}

// occupied returns why the caller cannot be the poller. One goroutine at a time is.
func (p *endpoint) occupied(op string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.errClosed(op)
	}
	return fmt.Errorf("ibv: %s: endpoint %d: %w", op, p.num, owner.ErrConcurrent)
}

// Disconnect starts to close an idle connection.
func (p *endpoint) Disconnect(rank int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usableLocked("disconnect"); err != nil {
		return err
	}
	if err := p.n.reachable("disconnect", rank); err != nil {
		return err
	}
	if c := p.conns.to(rank); c != nil && c.state == connUp && c.waiting.n == 0 && !c.closing {
		c.closing, c.proven = true, false
		p.out.idle = append(p.out.idle, c)
		if p.sleeping {
			p.Wake()
		}
	}
	return nil
}

// Connected counts the connections that are made.
func (p *endpoint) Connected() int { return int(p.conns.open.Load()) }

// Stats read the counters.
func (p *endpoint) Stats() fabric.EndpointStats {
	rnr := p.rnr.read()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.count
	for i := range p.out.all {
		s.Unconfirmed += p.out.all[i].unconfirmed()
	}
	s.Polls, s.RNR, s.Posted, s.FreeSends = p.polled.Load(), rnr, p.slots.count, p.out.bufs.Left()
	return s
}

// Close ends the endpoint. Peers find it silent.
func (p *endpoint) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.look.Store(true)
	p.mu.Unlock()
	p.Wake()
	p.poller.Lock() // a Poll or Wait in progress ends
	defer p.poller.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n.endpointsMu.Lock()
	p.n.endpoints = slices.DeleteFunc(p.n.endpoints, func(x *endpoint) bool { return x == p })
	p.n.endpointsMu.Unlock()
	if err := p.release(); err != nil {
		return fmt.Errorf("ibv: close endpoint %d: %w", p.num, err)
	}
	return nil
}

// release closes the queue pairs first: after that the device reaches nothing.
func (p *endpoint) release() error {
	var errs []error
	tx := &p.out.tx
	errs = append(errs, closed(tx.bell)) // with what it has not posted
	for _, c := range p.conns.byQPN {
		errs = append(errs, c.q.qp.Close())
	}
	clear(p.conns.byQPN)
	for i := range p.out.all {
		p.out.all[i].src.release(&p.n.mem)
	}
	p.conns.open.Store(0)
	if l := p.listener; l.qp != nil { // its requests name buffers and handles
		errs = append(errs, l.qp.Close())
		l.qp = nil
	}
	errs = append(errs, p.datagrams.handles.close(), closed(p.bell), closed(tx.chain), closed(p.out.quick.chain),
		closed(p.slots.chain),
		closed(p.datagrams.in.chain), closed(p.srq), closed(p.mr), p.listener.release())
	// The caller's slots and buffers end with the mapping: an endpoint is closed when they are not
	// used any more.
	if p.mem != nil {
		errs = append(errs, unix.Munmap(p.mem))
		p.mem = nil
	}
	return errors.Join(errs...)
}
