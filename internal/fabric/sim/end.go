package sim

import (
	"context"
	"slices"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// Kill stops a rank where it is. Its tasks are ended at the end of Run: the wait that each is in
// returns an error then, and so does every later one, so that they clean up; it has no effect on
// the world. A task that tries again whatever the error is keeps Run from returning: look at Dead.
func (w *World) Kill(rank int) {
	w.fault(7, rank, rank, 0)
	r := &w.ranks[rank]
	if r.dead {
		return
	}
	r.dead = true
	for t := w.tasks.First(); t != nil; t = t.listed.Next() {
		if t.r == r {
			t.frozen = true
			w.live--
		}
	}
	r.net.die()
}

// PeerDown makes everything that has to do with the rank fail.
func (n *Network) PeerDown(rank int, cause error) {
	if rank < 0 || rank >= len(n.r.w.ranks) || n.r.dead {
		return
	}
	n.markDown(int32(rank), cause)
}

// markDown reports whether it was the first to know.
func (n *Network) markDown(rank int32, cause error) bool {
	if rank == n.r.id || !n.deaths.Add(int(rank), cause) {
		return false
	}
	n.r.w.emit(markDown, n.r.id, rank, 0, 0)
	for _, l := range n.lanes {
		l.peerDown(rank)
	}
	for _, p := range n.endpoints {
		if p != nil && !p.closed {
			p.peerDown(rank)
		}
	}
	return true
}

// reportDown is markDown for what traffic shows.
func (n *Network) reportDown(rank int32, cause error) {
	if n.r.dead || !n.markDown(rank, cause) {
		return
	}
	if f := n.r.w.cfg.OnDown; f != nil {
		n.r.Go("OnDown", func(context.Context) error { f(n.r, int(rank), cause); return nil })
	}
}

// die is the death of the rank: a random part of what is on its way arrives.
func (n *Network) die() {
	for _, l := range n.lanes {
		l.die()
	}
	for _, p := range n.endpoints {
		if p != nil {
			p.die()
		}
	}
}

// peerDown fails the operations in flight to a rank.
func (l *lane) peerDown(rank int32) {
	f := l.flows[rank]
	if f == nil {
		return
	}
	f.clear()
	l.held = slices.DeleteFunc(l.held, func(o *op) bool { return o.f == f })
	for _, o := range l.ops {
		if o.f == f && o.phase != idle && o.phase != complete {
			l.n.r.w.disarm(&o.timer)
			o.fail()
		}
	}
}

func (f *flow) clear() {
	f.l.n.r.w.disarm(&f.timer)
	f.puts = queue.Ring[*op]{}
}

// die keeps a random part of the puts on their way, and no answer.
func (l *lane) die() {
	w := l.n.r.w
	for _, o := range l.ops {
		if o.phase == homeward || o.phase == outward && o.kind != fabric.KindPut && w.rng.chance(0.5) {
			w.disarm(&o.timer)
		}
	}
	for _, o := range l.ops { // in the order of the operations, not of a map
		if f := o.f; o.phase == outward && f.puts.Len() > 0 && *f.puts.Item(0) == o {
			n := int(w.rng.below(int64(f.puts.Len()) + 1))
			f.puts.Truncate(n)
			if n == 0 {
				w.disarm(&f.timer)
			}
		}
	}
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
