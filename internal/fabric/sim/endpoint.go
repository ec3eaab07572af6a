package sim

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// endpoint exchanges messages. Its connections are in conn.go, the way of a message in
// endpoint_datapath.go.
type endpoint struct {
	n      *Network
	num    int
	cfg    fabric.EndpointConfig
	stats  fabric.EndpointStats
	closed bool

	slots  []buffer
	posted []int32 // the slots that wait for a message; the last is the next
	sends  []buffer
	free   []int32 // send buffers
	common int     // of them, in use without Urgent

	conns map[int32]*conn
	byUse queue.List[conn] // of them, the one that was used last at the end
	open  int              // of them, those that are not closing
	up    int              // of them, those that are made
	held  []*conn

	q     ring[fabric.Event]
	notes ring[*datagram] // of the events NoteArrived in q
	lent  []*datagram     // of those that the last Poll returned

	woken   bool
	starved bool // Reserve found no free send buffer
	full    bool // Send found the queue to a rank full
	waiter  *task
	polls   bool // the waiter is in Poll
	alarms  []int64
	alarm   timer
}

// buffer is a send buffer or a slot. Its memory is made when it is first used.
type buffer struct {
	data   []byte
	used   int32
	state  bufferState
	urgent bool // it was reserved so
}

type bufferState uint8

const (
	free  bufferState = iota // a slot: posted
	ours                     // the program's
	wired                    // a send buffer on its way
)

var _ fabric.Endpoint = (*endpoint)(nil)

// NewEndpoint opens an endpoint.
func (n *Network) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	switch {
	case n.state != joined:
		return nil, fmt.Errorf("sim: NewEndpoint needs a connected network: %w", os.ErrClosed)
	case n.r.dead:
		return nil, errKilled
	case i < 0 || i >= maxEndpoints:
		return nil, fmt.Errorf("sim: no endpoint %d (endpoints are 0 to %d)", i, maxEndpoints-1)
	case i < len(n.endpoints) && n.endpoints[i] != nil:
		return nil, fmt.Errorf("sim: endpoint %d of rank %d was opened before", i, n.r.id)
	case cfg.Slots < 1 || cfg.Slots > maxSlots || cfg.SlotSize < 1 || cfg.SlotSize > maxMessage:
		return nil, fmt.Errorf("sim: an endpoint has 1 to %d slots of 1 to %d bytes, not %d of %d",
			maxSlots, maxMessage, cfg.Slots, cfg.SlotSize)
	case cfg.Sends < 1 || cfg.Sends > maxSlots || cfg.Reserved < 0 || cfg.Reserved >= cfg.Sends:
		return nil, fmt.Errorf("sim: an endpoint has 1 to %d send buffers and reserves fewer than all, not %d and %d",
			maxSlots, cfg.Sends, cfg.Reserved)
	}
	for len(n.endpoints) <= i {
		n.endpoints = append(n.endpoints, nil)
	}
	p := &endpoint{n: n, num: i, cfg: cfg, conns: make(map[int32]*conn),
		slots: make([]buffer, cfg.Slots), posted: make([]int32, cfg.Slots),
		sends: make([]buffer, cfg.Sends), free: make([]int32, cfg.Sends)}
	for i := range p.posted {
		p.posted[i] = int32(cfg.Slots - 1 - i)
	}
	for i := range p.free {
		p.free[i] = int32(cfg.Sends - 1 - i)
	}
	p.alarm.owner = p
	n.endpoints[i] = p
	n.open++
	return p, nil
}

// endpoint is the one of a number, and whether it was ever opened.
func (n *Network) endpoint(i int) (p *endpoint, known bool) {
	if i >= len(n.endpoints) || n.endpoints[i] == nil {
		return nil, n.state == closed
	}
	return n.endpoints[i], true
}

func (p *endpoint) usable(op string) error {
	if p.closed {
		return fmt.Errorf("sim: %s: endpoint %d: %w", op, p.num, os.ErrClosed)
	}
	if p.n.r.dead {
		return errKilled
	}
	return nil
}

// memory is a buffer's, made when it is first asked for.
func (p *endpoint) memory(b *buffer) []byte {
	if b.data == nil {
		b.data = make([]byte, p.cfg.SlotSize)
	}
	return b.data
}

// Wait sleeps until something happens that wakes.
func (p *endpoint) Wait(ctx context.Context) error {
	if err := p.usable("wait"); err != nil {
		return err
	}
	w := p.n.r.w
	t, err := w.task("wait")
	if err != nil {
		return err
	}
	if p.woken || p.q.len() > 0 || w.rng.below(64) == 0 { // the contract allows an end without reason
		p.woken = false
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := p.sleep(t, false, reason{"waits at endpoint", p.num}, ctx, forever); err != nil {
		return err
	}
	if !p.woken && p.q.len() == 0 && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.woken = false
	return p.usable("wait")
}

// sleep is park, until something happens at the endpoint.
func (p *endpoint) sleep(t *task, polls bool, why reason, ctx context.Context, until int64) error {
	if p.waiter != nil {
		return fmt.Errorf("sim: Poll or Wait of endpoint %d by two tasks at a time: %s and %s", p.num, p.waiter, t)
	}
	p.waiter, p.polls = t, polls
	err := t.park(why, ctx, until)
	p.waiter = nil
	return err
}

// Wake ends a Wait.
func (p *endpoint) Wake() {
	p.woken = true
	p.n.r.w.wake(p.waiter)
}

// Now is the time on the rank's own clock.
func (p *endpoint) Now() time.Duration { return time.Duration(p.n.r.w.now + p.n.r.origin) }

// After sets an alarm.
func (p *endpoint) After(at time.Duration) {
	x := int64(at) - p.n.r.origin
	if x <= p.n.r.w.now {
		p.Wake()
		return
	}
	i, found := slices.BinarySearch(p.alarms, x)
	if found || p.closed {
		return
	}
	p.alarms = slices.Insert(p.alarms, i, x)
	p.n.r.w.arm(&p.alarm, p.alarms[0])
}

// fire is the first alarm.
func (p *endpoint) fire(*timer) {
	w := p.n.r.w
	k := 0
	for k < len(p.alarms) && p.alarms[k] <= w.now {
		k++
	}
	p.alarms = slices.Delete(p.alarms, 0, k)
	if len(p.alarms) > 0 {
		w.arm(&p.alarm, p.alarms[0])
	}
	p.Wake()
}

// Connected counts the connections that are made.
func (p *endpoint) Connected() int { return p.up }

// Stats are a copy.
func (p *endpoint) Stats() fabric.EndpointStats {
	s := p.stats
	s.Posted, s.FreeSends = len(p.posted), len(p.free)
	return s
}

// Close forgets everything. A sender to the endpoint finds the rank down.
func (p *endpoint) Close() error {
	if p.closed {
		return nil
	}
	w := p.n.r.w
	p.closed = true
	p.n.open--
	w.disarm(&p.alarm)
	for c := p.byUse.First(); c != nil; c = p.byUse.First() {
		c.remove()
	}
	p.q, p.posted, p.free, p.slots, p.sends, p.held = ring[fabric.Event]{}, nil, nil, nil, nil, nil
	for p.notes.len() > 0 {
		p.notes.pop().recycle()
	}
	p.returnNotes()
	p.Wake()
	return nil
}

// peerDown ends what there is with a dead rank. Down is the last event of it.
func (p *endpoint) peerDown(rank int32, cause error) {
	if c := p.conns[rank]; c != nil {
		for c.out.len() > 0 {
			p.sent(c, c.out.pop(), &fabric.PeerDownError{Rank: int(rank), Op: "send", Cause: cause})
		}
		p.held = slices.DeleteFunc(p.held, func(h *conn) bool { return h == c })
		c.remove()
	}
	p.push(fabric.Event{Kind: fabric.Down, Peer: int(rank), Err: cause}, true)
}

// die keeps a random part of the messages on their way, and nothing else.
func (p *endpoint) die() {
	w := p.n.r.w
	for c := p.byUse.First(); c != nil; c = c.use.Next() {
		w.disarm(&c.hand)
		w.disarm(&c.ack)
		keep := c.landed + int(w.rng.below(int64(c.posted-c.landed)+1))
		c.out.truncate(keep)
		if c.posted = keep; keep == c.landed {
			w.disarm(&c.arrive)
		}
	}
	w.disarm(&p.alarm)
}
