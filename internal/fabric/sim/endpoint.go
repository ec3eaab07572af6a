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
	out    fabric.SendBuffers // which of sends are free

	conns map[int32]*conn
	byUse queue.List[conn] // of them, the one that was used last at the end
	open  int              // of them, those that are not closing
	up    int              // of them, those that are made
	held  []*conn

	q     queue.Ring[fabric.Event]
	notes queue.Ring[*datagram] // of the events NoteArrived in q
	lent  []*datagram           // of those that the last Poll returned

	woken   bool
	starved bool // Reserve found no free send buffer
	full    bool // Send found the queue to a rank full
	waiter  *task
	polls   bool // the waiter is in Poll
	alarms  fabric.Alarms
	alarm   timer
}

// buffer is a send buffer or a slot. Its memory is made when it is first used.
type buffer struct {
	data []byte
	used int32
	lent bool // a slot: it is the program's
}

var _ fabric.Endpoint = (*endpoint)(nil)

// NewEndpoint opens an endpoint.
func (n *Network) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	switch {
	case n.state != joined:
		return nil, fmt.Errorf("sim: NewEndpoint needs a connected network: %w", os.ErrClosed)
	case n.r.dead:
		return nil, errKilled
	case i < len(n.endpoints) && n.endpoints[i] != nil:
		return nil, fmt.Errorf("sim: endpoint %d of rank %d was opened before", i, n.r.id)
	}
	if err := n.MessageLimits().Check(i, cfg); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	for len(n.endpoints) <= i {
		n.endpoints = append(n.endpoints, nil)
	}
	p := &endpoint{n: n, num: i, cfg: cfg, conns: make(map[int32]*conn),
		slots: make([]buffer, cfg.Slots), posted: make([]int32, cfg.Slots),
		sends: make([]buffer, cfg.Sends)}
	p.out.Open(cfg)
	for i := range p.posted {
		p.posted[i] = int32(cfg.Slots - 1 - i)
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
	if p.woken || p.q.Len() > 0 || w.rng.below(64) == 0 { // the contract allows an end without reason
		p.woken = false
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := p.sleep(t, false, reason{"waits at endpoint", p.num}, ctx, forever); err != nil {
		return err
	}
	if !p.woken && p.q.Len() == 0 && ctx.Err() != nil {
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
	if !p.closed && p.alarms.Add(time.Duration(p.n.r.w.now), time.Duration(x)) {
		p.n.r.w.arm(&p.alarm, x)
	}
}

// fire is the first alarm.
func (p *endpoint) fire(*timer) {
	w := p.n.r.w
	if _, next := p.alarms.Take(time.Duration(w.now)); next != fabric.Never {
		w.arm(&p.alarm, int64(next))
	}
	p.Wake()
}

// Connected counts the connections that are made.
func (p *endpoint) Connected() int { return p.up }

// Stats are a copy.
func (p *endpoint) Stats() fabric.EndpointStats {
	s := p.stats
	s.Posted, s.FreeSends = len(p.posted), p.out.Left()
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
	p.q, p.posted, p.out, p.slots, p.sends, p.held = queue.Ring[fabric.Event]{}, nil, fabric.SendBuffers{}, nil, nil, nil
	for p.notes.Len() > 0 {
		p.notes.Pop().recycle()
	}
	p.returnNotes()
	p.Wake()
	return nil
}

// peerDown ends what there is with a dead rank. Down is the last event of it.
func (p *endpoint) peerDown(rank int32) {
	if c := p.conns[rank]; c != nil {
		for c.out.Len() > 0 {
			p.sent(c, c.out.Pop(), p.n.deaths.Err("send", int(rank)))
		}
		p.held = slices.DeleteFunc(p.held, func(h *conn) bool { return h == c })
		c.remove()
	}
	p.push(fabric.Event{Kind: fabric.Down, Peer: int(rank), Err: p.n.deaths.Cause(int(rank))}, true)
}

// die keeps a random part of the messages on their way, and nothing else.
func (p *endpoint) die() {
	w := p.n.r.w
	for c := p.byUse.First(); c != nil; c = c.use.Next() {
		w.disarm(&c.hand)
		w.disarm(&c.ack)
		keep := c.landed + int(w.rng.below(int64(c.posted-c.landed)+1))
		c.out.Truncate(keep)
		if c.posted = keep; keep == c.landed {
			w.disarm(&c.arrive)
		}
	}
	w.disarm(&p.alarm)
}
