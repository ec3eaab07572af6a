//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// Connect makes the queue pairs of every lane to the near peers, publishes their numbers, and
// brings them into the state in which they send. A rank reaches itself through a pair of its own,
// as it does any other. Where not all ranks are near, it starts what makes the other connections.
func (n *Network) Connect(ctx context.Context, addrs [][]byte, exchange fabric.Exchange) error {
	if len(addrs) != n.cfg.Size {
		return fmt.Errorf("ibv: connect: %d addresses for %d ranks", len(addrs), n.cfg.Size)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.closed:
		return errClosed("connect")
	case n.peers != nil:
		return errors.New("ibv: connect: called before; it is called once")
	}
	if err := n.connect(ctx, addrs, exchange); err != nil {
		return fmt.Errorf("ibv: connect: %w", err)
	}
	n.free = append(n.free, n.all...)
	return nil
}

func (n *Network) connect(ctx context.Context, addrs [][]byte, exchange fabric.Exchange) (err error) {
	all := make([]address, n.cfg.Size)
	for r, a := range addrs {
		if a == nil {
			continue
		}
		if all[r], err = decodeAddress(a); err != nil {
			return fmt.Errorf("address of rank %d: %w", r, err)
		}
	}
	n.peers = newRemotes(all)
	mine, err := n.makeTable()
	if err != nil {
		return err
	}
	tables, err := exchange(ctx, mine.encode())
	if err != nil {
		return err
	}
	if len(tables) != n.cfg.Size {
		return fmt.Errorf("the exchange gave %d queue pair tables for %d ranks", len(tables), n.cfg.Size)
	}
	n.endpointQPNs = make([]uint32, n.cfg.Size*len(n.listeners))
	for rank, b := range tables {
		if !n.peers[rank].served() {
			continue
		}
		t, err := decodeTable(b, len(n.listeners), n.cfg.Lanes, n.near.count)
		if err == nil {
			err = n.read(rank, &t, all[rank].psn)
		}
		if err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	n.connector.start()
	// A peer may send as soon as it is connected: no rank goes on before all are.
	_, err = exchange(ctx, nil)
	return err
}

// makeTable makes the queue pairs that this rank publishes.
func (n *Network) makeTable() (t table, err error) {
	n.qkey = rand.Uint32() >> 1 // with the highest bit set it would be a privileged one (IBTA 1.4 vol. 1 §10.2.5)
	t.qkey = n.qkey
	for i := range n.cfg.Lanes {
		e, err := n.newQueueSet(i)
		if e != nil {
			n.all = append(n.all, e)
		}
		if err != nil {
			return t, fmt.Errorf("lane %d: %w", i, err)
		}
		t.lanes = append(t.lanes, e.numbers())
	}
	if !n.near.all() {
		if t.listener, err = n.connector.prepare(n); err != nil {
			return t, fmt.Errorf("what connects lanes on demand: %w", err)
		}
	}
	n.listen()
	t.endpoints = numbers(n.listeners)
	return t, nil
}

// read takes from a rank's table what this one needs.
func (n *Network) read(rank int, t *table, psn uint32) error {
	p := &n.peers[rank]
	p.qkey, p.listener = t.qkey, t.listener
	copy(n.endpointQPNs[rank*len(n.listeners):], t.endpoints)
	if n.near.place(n.cfg.Rank, rank) < 0 {
		return nil
	}
	place := n.near.place(rank, n.cfg.Rank)
	for i, e := range n.all {
		qpn := t.lanes[i][place]
		if qpn == 0 {
			return fmt.Errorf("no queue pair for lane %d", i)
		}
		if err := e.connectNear(rank, qpn, psn); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	return nil
}

// newQueueSet makes a completion queue, and a queue pair for each near peer.
func (n *Network) newQueueSet(index int) (*queueSet, error) {
	attr := n.dev.Attr()
	entries := min(attr.MaxCQE, max(2*n.cfg.Depth, min(maxEntries, n.cfg.Depth*n.cfg.Size)))
	e := &queueSet{net: n, index: index, queues: make([]*sendQueue, n.cfg.Size), tx: sender{limit: int32(entries)}}
	e.ctx = context.Background()
	var err error
	if e.channel, err = n.dev.CreateCompChannel(); err != nil {
		return e, err
	}
	if e.cq, err = n.dev.CreateCQ(verbs.CQConfig{Entries: entries, Channel: e.channel}); err != nil {
		return e, err
	}
	for place := range n.near.count {
		r := n.near.at(n.cfg.Rank, place)
		if !n.peers[r].served() {
			continue
		}
		q := n.peers[r].newQueue(r)
		e.queues[r] = q
		if q.qp, err = n.createQP(e.cq); err != nil {
			return e, err
		}
		if r == n.cfg.Rank {
			if e.mirror, err = n.createQP(e.cq); err != nil {
				return e, err
			}
		}
	}
	return e, nil
}

// numbers are the queue pair numbers to publish, by place of the near peer: those at which the
// rank's own operations arrive.
func (e *queueSet) numbers() []uint32 {
	n := e.net
	qpns := make([]uint32, n.near.count)
	for place := range qpns {
		switch r := n.near.at(n.cfg.Rank, place); {
		case e.queues[r] == nil:
		case r == n.cfg.Rank:
			qpns[place] = e.mirror.Num()
		default:
			qpns[place] = e.queues[r].qp.Num()
		}
	}
	return qpns
}

// connectNear connects the queue pair to a near peer's, which sends from packet number psn
// on.
func (e *queueSet) connectNear(rank int, qpn, psn uint32) error {
	n := e.net
	if err := n.establishLane(e.queues[rank].qp, rank, qpn, psn, n.self.psn); err != nil {
		return err
	}
	if rank == n.cfg.Rank {
		return n.establishLane(e.mirror, rank, e.queues[rank].qp.Num(), psn, n.self.psn)
	}
	return nil
}

// listen makes the listeners of endpoints. A device that cannot is no reason not to connect the
// lanes.
func (n *Network) listen() {
	n.listeners = make([]listener, n.cfg.Messages.Endpoints)
	for i := range n.listeners {
		l := &n.listeners[i]
		err := l.make(n, listenEntries)
		if n.dev.Attr().MaxSRQ == 0 {
			err = fmt.Errorf("device %s has no shared receive queues: %w", n.dev.Name(), verbs.ErrNotSupported)
		}
		if err != nil {
			_ = l.release()
			l.err = fmt.Errorf("ibv: endpoint %d: %w", i, err)
			n.log.Warn("ibv: no messages", "endpoint", i, "err", err)
		}
	}
}

// numbers are the numbers of the listeners' queue pairs; 0 for one that has none.
func numbers(listeners []listener) []uint32 {
	qpns := make([]uint32, len(listeners))
	for i := range listeners {
		if l := &listeners[i]; l.qp != nil {
			qpns[i] = l.qp.Num()
		}
	}
	return qpns
}
