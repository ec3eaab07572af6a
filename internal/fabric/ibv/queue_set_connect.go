//go:build linux && cgo

package ibv

import (
	"context"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/verbs"
)

// SetContext bounds the waits for connections.
func (l *lane) SetContext(ctx context.Context) {
	if l.set != nil {
		l.set.ctx = ctx
	}
}

// dialer makes a lane's connections on demand, and closes those that are too many.
type dialer struct {
	set    *queueSet
	dialed []*sendQueue // that were made so, of queueSet.queues
}

// dial connects to a peer. Requests collected before are posted, and go on meanwhile.
func (d *dialer) dial(op string, rank int) (*sendQueue, error) {
	e := d.set
	n := e.net
	if e.lost != nil {
		return nil, e.lost
	}
	if err := n.deaths.Err(op, rank); err != nil {
		return nil, err
	}
	if err := e.post(); err != nil {
		return nil, err
	}
	q := n.peers[rank].newQueue(rank)
	if err := d.makeQP(q); err != nil {
		return nil, fmt.Errorf("ibv: %s: connection of lane %d to rank %d: %w", op, e.index, rank, err)
	}
	psn := randomPSN()
	made, err := n.connector.connect(e.ctx, op, e.index, rank, q.qp.Num(), psn)
	if err == nil {
		if err = n.establishLane(q.qp, rank, made.qpn, made.psn, psn); err != nil {
			n.connector.hangUp(e.index, rank, made.epoch)
		}
	}
	if err != nil {
		d.closeQP(q)
		return nil, err
	}
	q.epoch, q.used = made.epoch, e.rings
	e.queues[rank] = q
	d.dialed = append(d.dialed, q)
	return q, nil
}

// makeQP makes a queue pair, and closes connections as far as there are too many, or as the device
// has no room.
func (d *dialer) makeQP(q *sendQueue) (err error) {
	e := d.set
	n := e.net
	if _, err := verbs.ComputePath(n.path, n.peers[q.rank].end()); err != nil {
		return err
	}
	for n.cfg.Connections > 0 && len(d.dialed) >= n.cfg.Connections {
		if err := d.evict(); err != nil {
			return err
		}
	}
	for {
		if q.qp, err = n.newQP(e.cq, n.cfg.Depth, n.inline); err == nil || len(d.dialed) == 0 {
			return err
		}
		if err := d.evict(); err != nil {
			return err
		}
	}
}

// evict closes the connection that was not used for longest, one with nothing in flight if there is
// one. Else it waits: the device completes or fails each request.
func (d *dialer) evict() error {
	e := d.set
	q := slices.MinFunc(d.dialed, d.compareUse)
	if e.busy(q) {
		if err := e.drainPeer(q); err != nil {
			return err
		}
	}
	d.dialed = slices.DeleteFunc(d.dialed, func(x *sendQueue) bool { return x == q })
	if q.err == nil {
		e.queues[q.rank] = nil
	} // else it is why operations fail
	d.closeQP(q)
	e.net.connector.hangUp(e.index, int(q.rank), q.epoch)
	return nil
}

// compareUse orders connections: those that are of no more use, those with nothing in flight, and
// those that were not used for longer come first.
func (d *dialer) compareUse(a, b *sendQueue) int {
	e := d.set
	key := func(q *sendQueue) int64 {
		switch age := int64(e.rings - q.used); {
		case q.err != nil:
			return -1 << 40
		case !e.busy(q):
			return -age - 1<<33
		default:
			return -age
		}
	}
	return int(max(min(key(a)-key(b), 1), -1))
}

// closeQP takes a queue pair without requests in flight from the device.
func (d *dialer) closeQP(q *sendQueue) {
	e := d.set
	if err := q.qp.Close(); err != nil {
		e.net.log.Warn("ibv: queue pair of a lane", "lane", e.index, "rank", q.rank, "err", err)
	}
	q.qp = nil
}
