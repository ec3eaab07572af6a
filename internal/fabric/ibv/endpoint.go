//go:build linux && cgo

package ibv

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/verbs"
)

// endpoint is one message endpoint of a rank: a shared receive queue with the slots, a queue pair
// per connected peer, and one for datagrams, all on one completion queue.
//
// Send is in endpoint_send_datapath.go, Poll in endpoint_poll_datapath.go, Wait in
// endpoint_wait.go; endpoint_open.go opens and closes it. Below them are connections, then
// messages, which has the sender, and datagrams.
type endpoint struct {
	core
	listener *listener
	srq      *verbs.SRQ
	memory   deviceMemory // of slots, send buffers and datagrams
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

	waker
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

// Now is the time since the endpoint was opened.
func (p *endpoint) Now() time.Duration { return time.Since(p.origin) }

// After sets an alarm.
func (p *endpoint) After(t time.Duration) {
	if p.alarms.Add(p.Now(), t) && p.cancel.Load() != nil { // a Wait in progress has looked for later ones only
		p.Wake()
	}
}
