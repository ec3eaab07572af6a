//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

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
	if err = p.memory.open(n.pd, l.bytes); err != nil {
		return fmt.Errorf("%d slots and %d send buffers: %w", cfg.Slots, cfg.Sends, err)
	}
	if p.srq, err = n.pd.CreateSRQ(verbs.SRQConfig{MaxWR: cfg.Slots}); err != nil {
		return err
	}
	tx := &p.out.tx
	if p.bell, err = p.listener.cq.NewDoorbell(verbs.DoorbellConfig{}); err != nil {
		return err
	}
	if err = tx.makeDoorbell(p.listener.cq, max(n.inline, 8)); err != nil {
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
		for r := n.cfg.Rank + 1; r < n.cfg.Size; r++ { // of each pair the lower one requests
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
	n, l, lkey := p.n, &p.layout, p.memory.mr.LKey()
	out, d, c := &p.out, &p.datagrams, &p.conns
	out.tx.wake = p.Wake
	out.core, out.lkey, out.inline = &p.core, lkey, min(n.inline, p.cfg.SlotSize) // what Connect found
	out.sends, out.stride = p.memory.mem[l.send:l.in], l.stride
	out.bufs.Open(p.cfg)
	d.n, d.num, d.tx, d.lkey, d.inMem, d.outMem = n, p.num, &out.tx, lkey, p.memory.mem[l.in:l.out], p.memory.mem[l.out:]
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
	return p.slots.init(p.cfg, p.memory.mem[:l.send], l.stride, lkey)
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
		closed(p.datagrams.in.chain), closed(p.srq), p.listener.release())
	// The caller's slots and buffers end with the mapping: an endpoint is closed when they are not
	// used any more.
	return errors.Join(append(errs, p.memory.close())...)
}
