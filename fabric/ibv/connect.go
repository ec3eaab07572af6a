//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// Connect makes the queue pairs of every lane, publishes their numbers, and brings them into the
// state in which they send. A rank reaches itself through a pair of its own, as it does any other.
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
	if err := n.makeQueueSets(addrs); err != nil {
		return fmt.Errorf("ibv: connect: %w", err)
	}
	qpns := make([][]uint32, len(n.all))
	for i, e := range n.all {
		qpns[i] = e.numbers()
	}
	n.listen()
	tables, err := exchange(ctx, n.endpointTable().append(encodeTable(qpns)))
	if err != nil {
		return fmt.Errorf("ibv: connect: %w", err)
	}
	if len(tables) != n.cfg.Size {
		return fmt.Errorf("ibv: connect: the exchange gave %d queue pair tables for %d ranks", len(tables), n.cfg.Size)
	}
	if err := n.readEndpointTables(tables); err != nil {
		return fmt.Errorf("ibv: connect: %w", err)
	}
	lanesEnd := 1 + 4*len(n.all)*n.cfg.Size
	for lane, e := range n.all {
		for rank := range n.peers {
			if n.peers[rank].lanes == 0 {
				continue
			}
			qpn, err := tableEntry(tables[rank][:lanesEnd], len(n.all), n.cfg.Size, lane, n.cfg.Rank)
			if err == nil {
				err = e.connect(rank, qpn)
			}
			if err != nil {
				return fmt.Errorf("ibv: connect lane %d to rank %d: %w", lane, rank, err)
			}
		}
	}
	n.free = append(n.free, n.all...)
	// A peer may send as soon as it is connected: no rank goes on before all are.
	if _, err := exchange(ctx, nil); err != nil {
		return fmt.Errorf("ibv: connect: %w", err)
	}
	return nil
}

func (n *Network) makeQueueSets(addrs [][]byte) (err error) {
	n.peers = make([]address, n.cfg.Size)
	for r, a := range addrs {
		if a == nil {
			continue
		}
		if n.peers[r], err = decodeAddress(a); err != nil {
			return fmt.Errorf("address of rank %d: %w", r, err)
		}
	}
	for i := range n.cfg.Lanes {
		e, err := n.newQueueSet(i)
		if e != nil {
			n.all = append(n.all, e)
		}
		if err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	return nil
}

// newQueueSet makes a completion queue and a queue pair for every peer.
func (n *Network) newQueueSet(index int) (*queueSet, error) {
	attr := n.dev.Attr()
	entries := min(attr.MaxCQE, max(2*n.cfg.Depth, min(maxEntries, n.cfg.Depth*n.cfg.Size)))
	e := &queueSet{net: n, index: index, queues: make([]sendQueue, n.cfg.Size), tx: sender{limit: int32(entries)}}
	var err error
	if e.channel, err = n.dev.CreateCompChannel(); err != nil {
		return e, err
	}
	if e.cq, err = n.dev.CreateCQ(verbs.CQConfig{Entries: entries, Channel: e.channel}); err != nil {
		return e, err
	}
	for r := range e.queues {
		q := &e.queues[r]
		p := &n.peers[r]
		if p.lanes == 0 {
			q.err = &fabric.RankError{Op: "operation", Rank: r, Size: n.cfg.Size}
			continue
		}
		q.rank, q.base, q.rkey, q.size = int32(r), p.base, p.rkey, p.size
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

// createQP asks for the inline capacity wished for, and for less where the
// device cannot.
func (n *Network) createQP(cq *verbs.CQ) (*verbs.QP, error) {
	wish := inlineWish
	if n.inline > 0 {
		wish = n.inline
	}
	for {
		qp, err := n.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, MaxSendWR: n.cfg.Depth, MaxRecvWR: 1, MaxInline: wish})
		if err == nil {
			n.inline = min(wish, qp.Caps().MaxInline)
			if err := qp.Init(verbs.InitAttr{Port: n.port.Port, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | n.atomicAccess()}); err != nil {
				return nil, errors.Join(err, qp.Close())
			}
			return qp, nil
		}
		if wish == 0 {
			return nil, err
		}
		wish /= 2
		if wish < 16 {
			wish = 0
		}
	}
}

// numbers are the queue pair numbers to publish, by rank: those at which the
// rank's own operations arrive.
func (e *queueSet) numbers() []uint32 {
	qpns := make([]uint32, len(e.queues))
	for r := range e.queues {
		switch {
		case e.queues[r].qp == nil:
		case r == e.net.cfg.Rank:
			qpns[r] = e.mirror.Num()
		default:
			qpns[r] = e.queues[r].qp.Num()
		}
	}
	return qpns
}

// connect brings the queue pair of one peer into RTS. It is the only place that
// does: a connection made later, on demand, comes through here too.
func (e *queueSet) connect(rank int, qpn uint32) error {
	peer := &e.net.peers[rank]
	if err := e.establish(e.queues[rank].qp, peer, qpn); err != nil {
		return err
	}
	if rank == e.net.cfg.Rank {
		return e.establish(e.mirror, peer, e.queues[rank].qp.Num())
	}
	return nil
}

func (e *queueSet) establish(qp *verbs.QP, peer *address, qpn uint32) error {
	n := e.net
	initiate := min(n.dev.Attr().MaxQPInitReadAtomic, int(peer.readAtomic), verbs.DefaultReadAtomic)
	return n.establish(qp, peer, verbs.RTRAttr{DestQPN: qpn, RQPSN: peer.psn, MaxDestRdAtomic: n.self.readAtomic},
		verbs.RTSAttr{SQPSN: n.self.psn, MaxReadAtomic: uint8(max(initiate, 1))})
}

// establish brings a queue pair to a peer into the state in which it sends.
func (n *Network) establish(qp *verbs.QP, peer *address, r verbs.RTRAttr, s verbs.RTSAttr) error {
	path, err := verbs.ComputePath(n.path, peer.end)
	if err != nil {
		return err
	}
	if path.PKeyIndex != 0 { // set at INIT to the first, which most fabrics have only
		if err := qp.Modify(verbs.QPAttr{State: verbs.StateInit, PKeyIndex: path.PKeyIndex}, verbs.AttrState|verbs.AttrPKeyIndex); err != nil {
			return err
		}
	}
	r.AV, r.PathMTU = path.AV, path.MTU
	if err := qp.ReadyToReceive(r); err != nil {
		return err
	}
	s.Timeout, s.RetryCount = n.cfg.timeout, n.cfg.retries
	return qp.ReadyToSend(s)
}
