//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/verbs"
)

// queueSet is what a lane stands on: a completion queue, a send queue per peer, and the tables of
// operations in flight. It outlives the lanes that use it, one after another.
type queueSet struct {
	net     *Network
	index   int
	channel *verbs.CompChannel
	cq      *verbs.CQ
	mirror  *verbs.QP    // the other end of the connection to this rank itself
	queues  []*sendQueue // by rank; nil: not connected
	dialer  dialer
	ctx     context.Context // of the lane: bounds the making of a connection

	// From prepare on.
	tx           sender
	parts        []part // by request of tx
	ops          operations
	holds        holds
	slab         slab
	slabMemory   deviceMemory
	counters     *fabric.Counters
	freeCounters func()

	downSeen uint32
	rings    uint32    // calls into C
	yielded  time.Time // when the scheduler last saw the goroutine
	batch    batching

	retired uint64 // how many work requests ended; a wait for room looks at it
	loops   loops
	lost    error           // why the completion queue cannot be read any more
	failed  fabric.Failures // of implicit operations since the last flush
	lastOld uint64          // the old value of the operation collected last
}

// part is a request's share of operations: of one, or of several of a group.
type part struct {
	op     int32 // none: implicit
	block  int32 // of the slab, or none
	hold   int32 // the registration that it uses, or none
	pieces int32 // operations that end with it, of those that have no record
	kind   kind
	bare   bool           // it uses no block, no registration and no memory; they are not looked at
	dst    []byte         // where a bounced get's bytes go
	memory *fabric.Memory // that it uses, or nil
	off, n uint64         // of the peer's segment, for errors; not of operations with a record
}

type kind uint8

const (
	kindPut kind = iota
	kindGet
	kindAtomic // and more: the fabric.AtomicOp of one that the device has
)

func (k kind) String() string {
	if k >= kindAtomic {
		return fabric.AtomicOp(k - kindAtomic).String()
	}
	return [...]string{"put", "get"}[k]
}

// prepare makes the queue set ready for a lane. Costly parts are made once, and only for queue
// sets that are used.
func (e *queueSet) prepare() (err error) {
	if e.tx.bell == nil {
		if err := e.build(); err != nil {
			return errors.Join(fmt.Errorf("ibv: lane %d: %w", e.index, err), e.unbuild())
		}
	}
	*e.counters = fabric.Counters{}
	e.failed = nil
	e.ctx = context.Background()
	return nil
}

func (e *queueSet) build() (err error) {
	n, tx := e.net, &e.tx
	if err = tx.makeDoorbell(e.cq, max(n.inline, 8)); err != nil {
		return err
	}
	if e.counters, e.freeCounters, err = offheap.Alloc[fabric.Counters](); err != nil {
		return err
	}
	smalls := smallBlocks(n.cfg.Depth)
	if err = e.slabMemory.open(n.pd, slabBytes(smalls)); err != nil {
		return fmt.Errorf("slab: %w", err)
	}
	e.slab = newSlab(e.slabMemory.mem, e.slabMemory.mr.LKey(), smalls)
	tx.owner = e
	e.size(n.cfg.Depth, tx.limit)
	e.ops.free, e.holds.free, e.batch = none, none, batching{set: e, group: none}
	e.dialer.set, e.loops.set = e, e
	return nil
}

// size sets how many work requests may be in flight: to one peer, and in all.
func (e *queueSet) size(depth int, limit int32) {
	tx := &e.tx
	tx.depth, tx.limit = int32(depth), limit
	tx.every = min(signalEvery, max(tx.depth/2, 1))
	tx.makeRequests(int(limit))
	e.parts = make([]part, limit)
}

func (e *queueSet) unbuild() error {
	err := errors.Join(closed(e.tx.bell), closed(e.tx.chain), e.slabMemory.close())
	if e.freeCounters != nil {
		e.freeCounters()
	}
	e.tx.bell, e.tx.chain, e.slab, e.counters, e.freeCounters = nil, nil, slab{}, nil, nil
	return err
}

// release closes the queue pairs first: after that the device reaches nothing.
func (e *queueSet) release() error {
	var errs []error
	for _, q := range e.queues {
		if q != nil {
			errs = append(errs, closed(q.qp))
		}
	}
	errs = append(errs, closed(e.mirror))
	e.holds.releaseAll(&e.net.mem)
	errs = append(errs, e.unbuild(), closed(e.cq), closed(e.channel))
	return errors.Join(errs...)
}
