//go:build linux && cgo

package ibv

import (
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// A blocking operation of one work request on a lane with nothing in flight is posted and awaited
// in one call, from slot 0. Only one that is not complete after the first budget, or that fails,
// gets records: they take half of the processor time of a small operation.

// synchronous reports whether an operation is carried out so.
func (l *lane) synchronous(f fabric.Flag) bool {
	e := l.set
	return f == fabric.Blocking && e.tx.out == 0 && len(e.tx.probes) == 0
}

// request is the work request of an operation that is carried out so.
func (l *lane) request() *verbs.SendWR {
	e := l.set
	w := e.tx.chain.WR(0)
	w.WRID, w.Flags = e.tx.id(e.tx.free), verbs.Signaled // of the request that record takes
	return w
}

// putInlineNow puts src from within the work request.
func (l *lane) putInlineNow(q *sendQueue, off uint64, src []byte) (fabric.Handle, error) {
	e := l.set
	w := l.request()
	w.Opcode = verbs.OpWrite
	w.SetRemote(q.base+off, q.rkey)
	e.tx.chain.CopyInline(0, src)
	if n, err := l.call(q); n != complete {
		return l.record(q, kindPut, none, nil, n, err)
	}
	return fabric.Done, nil
}

// transferNow moves buf in one work request: directly under lkey, or through the slab.
func (l *lane) transferNow(q *sendQueue, off uint64, buf []byte, what kind, local uint64, lkey uint32,
	direct bool) (fabric.Handle, error) {
	e := l.set
	block := none
	if !direct {
		block = e.slab.list(len(buf)).next()
		local, lkey = e.slab.base+uint64(block), e.slab.lkey
		if what == kindPut {
			copy(e.slab.bytes(block, len(buf)), buf)
		}
	}
	w := l.request()
	w.Opcode = verbs.OpRead
	if what == kindPut {
		w.Opcode = verbs.OpWrite
	}
	e.tx.chain.SetLocal(0, local, uint32(len(buf)), lkey)
	w.SetRemote(q.base+off, q.rkey)
	n, err := l.call(q)
	if n != complete {
		return l.record(q, what, block, buf, n, err)
	}
	if block != none && what == kindGet {
		copy(buf, e.slab.bytes(block, len(buf)))
	}
	return fabric.Done, nil
}

// atomicNow does an atomic that the device has.
func (l *lane) atomicNow(q *sendQueue, off uint64, a *fabric.Atomic) (uint64, fabric.Handle, error) {
	e := l.set
	block := e.slab.small.next()
	e.fillAtomic(q, 0, l.request(), block, off, a)
	n, err := l.call(q)
	if n == complete {
		return e.slab.word(block), fabric.Done, nil
	}
	h, err := l.record(q, kindAtomic+kind(a.Op), block, nil, n, err)
	return e.lastOld, h, err
}

// complete is call's count for a request that is.
const complete = -1

// call posts the request and waits for it within the first budget. It returns complete, or what
// Doorbell.Call returned.
func (l *lane) call(q *sendQueue) (int, error) {
	e := l.set
	bell, c := e.tx.bell, e.counters
	n, err := bell.Call(q.qp, e.tx.chain, 0, 1, 1, firstBudget)
	c.Doorbells++
	c.Polls++
	if n == 1 && err == nil && bell.Completions()[0].Status == verbs.StatusSuccess {
		c.Requests++
		c.Completed++
		if e.rings++; e.rings%ringsPerClock == 0 {
			e.yieldNowAndThen()
		}
		return complete, nil
	}
	return n, err
}

// record makes the records of a request that was posted, and then handles the completions that the
// call that posted it brought.
func (l *lane) record(q *sendQueue, what kind, block int32, buf []byte, n int, err error) (fabric.Handle, error) {
	e := l.set
	if err != nil {
		err = e.tx.refused(err, run{queue: q})
	}
	if block != none {
		e.slab.listOf(block).take()
	}
	o, i := e.ops.add(q.rank, 1), e.tx.take()
	e.parts[i] = part{op: o, block: block, hold: none, kind: what, dst: buf}
	e.tx.add(q, i, 1)
	return l.settled(o, e.answered(n, err))
}
