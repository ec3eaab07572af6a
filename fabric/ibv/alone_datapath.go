//go:build linux && cgo

package ibv

import (
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// A blocking operation of one request on a lane with nothing in flight takes a
// short cut: the request is posted and awaited in one call, from slot 0, and
// only one that is not complete after the first budget, or that fails, enters
// the books. Half of the processor time of a small operation goes into them.

// alone reports whether an operation may take the short cut.
func (e *endpoint) alone(f fabric.Flag) bool {
	return f == fabric.Blocking && e.outstanding == 0 && !e.batching && len(e.owing) == 0
}

// inlineAlone puts src from within the request.
func (e *endpoint) inlineAlone(k *link, off uint64, src []byte) (fabric.Handle, error) {
	w := e.chain.WR(0)
	w.Flags, w.Opcode = 0, verbs.OpWrite
	copy(e.chain.Area(0), src)
	e.chain.SetInline(0, len(src))
	w.SetRemote(k.base+off, k.rkey)
	n, err := e.call(k)
	if n != answered {
		return e.book(k, kindPut, none, nil, n, err)
	}
	return fabric.Done, nil
}

// transferAlone moves buf in one request: directly under lkey, or through the slab.
func (e *endpoint) transferAlone(k *link, off uint64, buf []byte, what kind, local uint64, lkey uint32, direct bool) (fabric.Handle, error) {
	block, dst := none, []byte(nil)
	if !direct {
		block = e.slab.list(len(buf)).next()
		local, lkey = e.slab.base+uint64(block), e.slab.lkey
		if what == kindPut {
			copy(e.slab.bytes(block, len(buf)), buf)
		} else {
			dst = buf
		}
	}
	w := e.chain.WR(0)
	w.Flags, w.Opcode = 0, verbs.OpWrite
	if what == kindGet {
		w.Opcode = verbs.OpRead
	}
	e.chain.SetLocal(0, local, uint32(len(buf)), lkey)
	w.SetRemote(k.base+off, k.rkey)
	n, err := e.call(k)
	if n != answered {
		return e.book(k, what, block, dst, n, err)
	}
	if dst != nil {
		copy(dst, e.slab.bytes(block, len(buf)))
	}
	return fabric.Done, nil
}

// atomicAlone does a fetch-add or a compare-swap.
func (e *endpoint) atomicAlone(k *link, off, operand, compare uint64, add bool) (uint64, fabric.Handle, error) {
	block := e.slab.small.next()
	w := e.chain.WR(0)
	w.Flags = 0
	e.chain.SetLocal(0, e.slab.base+uint64(block), 8, e.slab.lkey)
	if add {
		w.SetFetchAdd(k.base+off, k.rkey, operand)
	} else {
		w.SetCompareSwap(k.base+off, k.rkey, compare, operand)
	}
	n, err := e.call(k)
	if n == answered {
		return e.word(block), fabric.Done, nil
	}
	h, err := e.book(k, kindAtomic, block, nil, n, err)
	return e.lastOld, h, err
}

// answered is call's count for a request that is complete.
const answered = -1

// call posts the request in slot 0 and waits for it within the first budget. It
// returns answered, or what Doorbell.Call returned.
func (e *endpoint) call(k *link) (int, error) {
	w := e.chain.WR(0)
	w.WRID = uint64(e.freeWR) // the one that book would give it
	w.Flags |= verbs.Signaled
	n, err := e.bell.Call(k.qp, e.chain, 0, 1, 1, firstBudget)
	c := e.counters
	c.Doorbells++
	c.Polls++
	if n == 1 && err == nil && e.bell.Completions()[0].Status == verbs.StatusSuccess {
		c.Requests++
		c.Completed++
		if e.rings++; e.rings%ringsPerClock == 0 {
			e.yieldNowAndThen()
		}
		return answered, nil
	}
	return n, err
}

// book enters a request that was posted from slot 0 into the books, and then
// what the call that posted it brought.
func (e *endpoint) book(k *link, what kind, block int32, dst []byte, n int, err error) (fabric.Handle, error) {
	o := e.newOp(int(k.rank), 1)
	if block != none {
		e.slab.listAt(block).take()
	}
	slot := e.slot(k, o, what, block, true)
	e.wrs[e.pending[slot]].dst = dst
	e.runLink, e.runs = none, 1 // the doorbell has had it
	k.silent = 0
	return e.settled(o, e.rung(n, err))
}
