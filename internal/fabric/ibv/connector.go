//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// connector makes and closes the connections that lanes need beyond those made at start. A
// connection serves the operations of one lane; its other end, a target, belongs to the connector
// of the peer, which sends nothing over it. So the end that closes knows whether something is in
// flight, and no lane has to answer for another.
//
// A goroutine receives and sends the datagrams. It sleeps until one comes, or one of its own is to
// be repeated. Requests of lanes are in connector_calls.go.
type connector struct {
	n         *Network
	listener  listener
	memory    deviceMemory       // of datagrams
	stop      context.CancelFunc // of the goroutine; nil: not started
	ended     chan struct{}
	tx        sender // the goroutine's, and what follows
	datagrams datagrams
	targets   map[laneOf]*target
	downSeen  uint32
	failing   bool // no queue pair could be made for the last request

	mu    sync.Mutex
	calls map[uint32]*call // by epoch
	made  map[uint32]int   // epochs of connections that lanes have, and to which rank
	epoch uint32           // the last one
	lost  error            // why it is of no more use
	waker

	accepted, closed, dropped, datagramsSent, open atomic.Uint64
}

// laneOf names a lane of a peer, which has one connection to this rank at most.
type laneOf struct {
	rank uint32
	lane uint16
}

// target is this end of a connection to a peer's lane.
type target struct {
	qp      *verbs.QP
	epoch   uint32
	peerQPN uint32
	psn     uint32 // with which this end would begin
}

// ConnectionStats count the connections of lanes that were made on demand.
type ConnectionStats struct {
	Accepted  uint64 // from peers
	Closed    uint64 // of those, by peers, or at their death
	Open      uint64 // of those, now
	Datagrams uint64 // sent, repetitions included
	Dropped   uint64 // datagrams that were malformed, from elsewhere than they said, or out of date
}

// ConnectionStats may be called at any time.
func (n *Network) ConnectionStats() ConnectionStats {
	c := &n.connector
	return ConnectionStats{Accepted: c.accepted.Load(), Closed: c.closed.Load(), Open: c.open.Load(),
		Datagrams: c.datagramsSent.Load(), Dropped: c.dropped.Load()}
}

// prepare makes what datagrams need, and returns the number of the queue pair for them.
func (c *connector) prepare(n *Network) (uint32, error) {
	c.n = n
	c.calls, c.made, c.targets = make(map[uint32]*call), make(map[uint32]int), make(map[laneOf]*target)
	if err := c.listener.make(n, dgramRecvs+2*dgramSends); err != nil {
		return 0, err
	}
	const in = dgramRecvs * inStride
	if err := c.memory.open(n.pd, datagramBytes); err != nil {
		return 0, fmt.Errorf("datagrams: %w", err)
	}
	if err := c.tx.makeDoorbell(c.listener.cq, 0); err != nil {
		return 0, err
	}
	d := &c.datagrams
	d.n, d.num, d.tx, d.lkey = n, laneBit, &c.tx, c.memory.mr.LKey()
	d.inMem, d.outMem = c.memory.mem[:in], c.memory.mem[in:]
	d.room = func() bool { return !c.tx.full() || c.ring(0) >= 0 }
	if err := d.init(c.listener.qp); err != nil {
		return 0, err
	}
	return c.listener.qp.Num(), nil
}

// start begins to answer.
func (c *connector) start() {
	if c.listener.qp == nil {
		return
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	c.ended = make(chan struct{})
	c.turn() // posts the receive buffers: peers may request from now on
	go c.run(ctx)
}

func (c *connector) run(ctx context.Context) {
	defer close(c.ended)
	for ctx.Err() == nil && c.usable() == nil {
		if c.turn() == 0 {
			c.sleep(ctx)
		}
	}
}

// close ends it. Peers find their connections to this rank silent.
func (c *connector) close() error {
	if c.stop != nil {
		c.stop()
		<-c.ended
		c.stop = nil
	}
	errs := []error{closed(c.tx.bell)} // with what it has not posted
	for at := range c.targets {
		errs = append(errs, c.drop(at))
	}
	errs = append(errs, closed(c.listener.qp)) // its requests name buffers and handles
	c.listener.qp = nil
	errs = append(errs, c.datagrams.handles.close(), closed(c.tx.chain), closed(c.datagrams.in.chain),
		c.memory.close(), c.listener.release())
	c.tx.bell, c.tx.chain, c.datagrams.in.chain = nil, nil, nil
	return errors.Join(errs...)
}

// turn takes the datagrams that there are, answers them, and sends datagrams that are due. It
// returns how many completions came.
func (c *connector) turn() int {
	n := c.ring(1)
	var in []datagram
	for i := range max(n, 0) {
		wc := &c.tx.bell.Completions()[i]
		index := int32(uint32(wc.WRID))
		if wc.WRID>>idShift == idOut {
			c.datagrams.sent(index, wc)
			continue
		}
		if d, ok := c.datagrams.understand(index, wc); ok && d.kind != dgNote {
			in = append(in, d)
		} else {
			c.dropped.Add(1)
		}
		c.datagrams.in.bare = append(c.datagrams.in.bare, index)
	}
	for i := range in {
		c.answer(&in[i])
	}
	if seen := c.n.deaths.N.Load(); seen != c.downSeen {
		c.downSeen = seen
		c.dropDead()
	}
	c.sendDue(time.Now())
	for r := &c.datagrams.in; len(r.bare) > 0 && c.datagrams.room(); {
		first, k := r.next()
		c.tx.stage(run{receives: r, first: first, n: k})
	}
	if c.tx.staged() {
		c.ring(0)
	}
	return n
}

// sleep returns when there may be something to do.
func (c *connector) sleep(ctx context.Context) {
	if err := c.listener.cq.Arm(true); err != nil {
		c.lose(err)
		return
	}
	// What came between the last turn and the arming makes no event.
	if c.turn() != 0 {
		return
	}
	err := c.waker.sleep(ctx, c.listener.channel, func() time.Duration {
		c.mu.Lock()
		defer c.mu.Unlock()
		due := c.nextDueLocked()
		if due.IsZero() {
			return fabric.Never
		}
		return time.Until(due)
	})
	if err != nil {
		c.lose(err)
	}
}

// ring posts staged requests and, with want 1, takes completions that have come: their number, or
// -1 if it is lost.
func (c *connector) ring(want int) int {
	n, err := c.tx.ring(want, 0)
	if err != nil {
		c.lose(err)
		return -1
	}
	return n
}

// answer deals with a datagram.
func (c *connector) answer(d *datagram) {
	at := laneOf{d.from, d.endpoint &^ laneBit}
	if c.n.deaths.Cause(int(d.from)) != nil {
		c.dropped.Add(1)
		return
	}
	switch d.kind {
	case dgRequest:
		c.requested(at, d)
	case dgClose:
		if t := c.targets[at]; t != nil && t.epoch == d.epoch {
			if err := c.drop(at); err != nil {
				c.n.log.Warn("ibv: queue pair of a peer's lane", "rank", at.rank, "err", err)
			}
		}
		c.send(at.rank, at.lane, datagram{kind: dgClosed, epoch: d.epoch})
	case dgReply, dgRefusal, dgClosed:
		if !c.answered(at, d) {
			c.dropped.Add(1)
		}
	default:
		c.dropped.Add(1)
	}
}

// requested makes the target of a peer's lane. A request that is older than the connection is a
// late copy; a newer one says that the peer has closed it.
func (c *connector) requested(at laneOf, d *datagram) {
	t := c.targets[at]
	switch {
	case t != nil && t.epoch == d.epoch && t.peerQPN == d.qpn: // the reply was lost, perhaps
	case t != nil && int32(d.epoch-t.epoch) <= 0:
		c.dropped.Add(1)
		return
	default:
		err := c.drop(at)
		if err == nil {
			t, err = c.accept(at, d)
		}
		if err != nil {
			if !c.failing {
				c.n.log.Warn("ibv: a connection could not be accepted", "rank", at.rank, "err", err)
			}
			c.failing = true
			refusal := datagram{kind: dgRefusal, epoch: d.epoch, errno: uint32(syscall.EIO)}
			if e := (*verbs.Error)(nil); errors.As(err, &e) && e.Errno != 0 {
				refusal.errno = uint32(e.Errno)
			}
			c.send(at.rank, at.lane, refusal)
			return
		}
		c.failing = false
	}
	c.send(at.rank, at.lane, datagram{kind: dgReply, epoch: t.epoch, qpn: t.qp.Num(), psn: t.psn})
}

func (c *connector) accept(at laneOf, d *datagram) (*target, error) {
	qp, err := c.n.newQP(c.listener.cq, 1, 0)
	if err != nil {
		return nil, err
	}
	t := &target{qp: qp, epoch: d.epoch, peerQPN: d.qpn, psn: randomPSN()}
	if err := c.n.establishLane(qp, int(at.rank), d.qpn, d.psn, t.psn); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	c.targets[at] = t
	c.accepted.Add(1)
	c.open.Store(uint64(len(c.targets)))
	return t, nil
}

// drop closes a target, if there is one.
func (c *connector) drop(at laneOf) error {
	t := c.targets[at]
	if t == nil {
		return nil
	}
	delete(c.targets, at)
	c.closed.Add(1)
	c.open.Store(uint64(len(c.targets)))
	return t.qp.Close()
}

// dropDead closes the targets of ranks that are down.
func (c *connector) dropDead() {
	for at := range c.targets {
		if c.n.deaths.Cause(int(at.rank)) != nil {
			if err := c.drop(at); err != nil {
				c.n.log.Warn("ibv: queue pair of a lane of a rank that is down", "rank", at.rank, "err", err)
			}
		}
	}
}
