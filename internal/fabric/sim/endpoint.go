package sim

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// endpoint exchanges messages. Its connections are in conn.go. Messages are sent in
// endpoint_datapath.go, and arrive in arrive_message.go.
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

// memory is a buffer's, made when it is first used.
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

// push adds an event. A poll sees each, a sleeper only those that wake.
func (p *endpoint) push(e fabric.Event, wakes bool) {
	p.q.Push(e)
	if p.waiter != nil && (wakes || p.polls) {
		p.n.r.w.wake(p.waiter)
	}
}

// give makes a send buffer free.
func (p *endpoint) give(id int32) {
	b := &p.sends[id]
	scribble(b.data[:b.used])
	b.used = 0
	p.out.Free(id)
	if p.starved && (!p.out.Urgent(id) || p.out.Left() == 1) { // one more of those for replies is no room for others
		p.starved = false
		p.Wake()
	}
}

// sent ends a message.
func (p *endpoint) sent(c *conn, m message, err error) {
	p.give(m.buf)
	if p.full {
		p.full = false
		p.Wake()
	}
	p.n.r.w.emit(markSent, p.n.r.id, c.peer, m.cookie, uint64(m.n))
	if m.cookie != 0 {
		p.push(fabric.Event{Kind: fabric.Sent, Peer: int(c.peer), Cookie: m.cookie, Err: err}, true)
	}
}

// returnNotes takes back the notes that the last Poll lent.
func (p *endpoint) returnNotes() {
	for _, d := range p.lent {
		d.recycle()
	}
	clear(p.lent)
	p.lent = p.lent[:0]
}
