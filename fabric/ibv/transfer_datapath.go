//go:build linux && cgo

package ibv

import (
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// target returns the queue to a peer for an operation on n bytes at off, or nil: then checkTarget says what is wrong.
func (e *queueSet) target(peer int, off, n uint64) *sendQueue {
	if uint(peer) < uint(len(e.queues)) {
		q := &e.queues[peer]
		if n <= q.size && off <= q.size-n && q.qp != nil && q.err == nil && e.downSeen == e.net.downSeq.Load() {
			return q
		}
	}
	return nil
}

// checkTarget is target with an error.
func (e *queueSet) checkTarget(op string, peer int, off, n uint64) (*sendQueue, error) {
	if uint(peer) >= uint(len(e.queues)) || e.queues[peer].qp == nil {
		return nil, &fabric.RankError{Op: op, Rank: peer, Size: len(e.queues)}
	}
	q := &e.queues[peer]
	if off > q.size || n > q.size-off {
		return nil, &fabric.BoundsError{Op: op, Rank: peer, Off: off, Len: n, Size: q.size}
	}
	if e.downSeen != e.net.downSeq.Load() {
		e.noticeDowns()
	}
	if q.err != nil {
		return nil, q.err
	}
	return q, nil
}

// local returns the address of buf, and whether it lies in the segment.
func (n *Network) local(buf []byte) (uint64, bool) {
	p := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
	off := p - n.self.base
	return p, off < n.self.size && uint64(len(buf)) <= n.self.size-off
}

// putInline puts src from within the work request.
func (e *queueSet) putInline(q *sendQueue, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	if e.tx.full() || !e.tx.room(q, 1) {
		if err := e.room(q); err != nil {
			return fabric.Done, e.refuse(err)
		}
	}
	o := none
	if f&fabric.Implicit == 0 {
		o = e.ops.add(q.rank, 1)
	}
	i, slot, w := e.tx.one(q)
	p := &e.parts[i]
	p.op, p.block, p.hold, p.kind, p.last = o, none, none, kindPut, true
	w.Opcode = verbs.OpWrite
	w.SetRemote(q.base+off, q.rkey)
	e.tx.chain.CopyInline(slot, src)
	return e.commit(q, o, w, false, f)
}

// transfer moves buf piece by piece: directly where the device reaches it, or can be made to, else through the slab.
func (e *queueSet) transfer(q *sendQueue, off uint64, buf []byte, f fabric.Flag, what kind) (fabric.Handle, error) {
	local, direct := e.net.local(buf)
	direct = direct && (what == kindGet || len(buf) > copyMax)
	lkey, size, held := e.net.mr.LKey(), e.net.piece, none
	if !direct && int64(len(buf)) >= e.net.zeroMin.Load() {
		var err error
		if held, err = e.register(buf, what); err != nil {
			return fabric.Done, e.refuse(err)
		}
	}
	switch {
	case direct:
		e.counters.Direct++
	case held != none:
		e.counters.ZeroCopy++
		direct, lkey = true, e.holds.all[held].region.LKey
	default:
		size = bigBlock
		e.counters.Bounced++
	}
	if held == none && len(buf) <= size && e.synchronous(f) {
		return e.transferNow(q, off, buf, what, local, lkey, direct)
	}
	parts := int32((len(buf) + size - 1) / size)
	o, err := e.begin(q, parts, f)
	for left := parts; err == nil; left-- {
		start := int(parts-left) * size
		b := buf[start:min(start+size, len(buf))]
		p := part{op: o, block: none, hold: held, kind: what, last: left == 1}
		if !direct {
			if err = e.bounce(q, &p, b); err != nil {
				break
			}
		}
		i, slot, w := e.tx.one(q)
		e.parts[i] = p
		if direct {
			e.tx.chain.SetLocal(slot, local+uint64(start), uint32(len(b)), lkey)
		} else {
			e.tx.chain.SetLocal(slot, e.slab.base+uint64(p.block), uint32(len(b)), e.slab.lkey)
		}
		w.Opcode = opcodes[what]
		w.SetRemote(q.base+off+uint64(start), q.rkey)
		if left == 1 {
			return e.commit(q, o, w, p.block != none, f)
		}
		e.sign(q, w, false, p.block != none)
		if err = e.room(q); err != nil {
			parts = left - 1 // that were not posted
		}
	}
	if held != none {
		e.holds.release(e.net, held, parts)
	}
	return fabric.Done, e.cutShort(o, err)
}

var opcodes = [...]verbs.Opcode{kindPut: verbs.OpWrite, kindGet: verbs.OpRead}

// bounce lays a piece of a put into a block of the slab, or takes one for a piece of a get. There is room for its work
// request then.
func (e *queueSet) bounce(q *sendQueue, p *part, b []byte) error {
	list := e.slab.list(len(b))
	if err := e.block(q, list); err != nil {
		return err
	}
	p.block = list.take()
	if p.kind == kindPut {
		copy(e.slab.bytes(p.block, len(b)), b)
	} else {
		p.dst = b
	}
	return nil
}

// block waits until a list has a block. There is room for a work request then.
func (e *queueSet) block(q *sendQueue, list *blockList) error {
	for list.empty() {
		if err := e.stall(q); err != nil {
			return err
		}
		if err := e.room(q); err != nil { // what there was may be gone
			return err
		}
	}
	return nil
}

// postAtomic stages the atomic that an operation describes.
func (e *queueSet) postAtomic(q *sendQueue, o int32, add bool) (*verbs.SendWR, error) {
	if err := e.room(q); err != nil {
		return nil, err
	}
	if err := e.block(q, &e.slab.small); err != nil {
		return nil, err
	}
	block := e.slab.small.take()
	i, slot, w := e.tx.one(q)
	e.parts[i] = part{op: o, block: block, hold: none, kind: kindAtomic, last: true}
	p := &e.ops.all[o]
	e.fillAtomic(q, slot, w, block, p.offset, p.operand, p.compare, add)
	return w, nil
}

func (e *queueSet) fillAtomic(q *sendQueue, slot int, w *verbs.SendWR, block int32, off, operand, compare uint64, add bool) {
	e.tx.chain.SetLocal(slot, e.slab.base+uint64(block), 8, e.slab.lkey)
	if add {
		w.SetFetchAdd(q.base+off, q.rkey, operand)
	} else {
		w.SetCompareSwap(q.base+off, q.rkey, compare, operand)
	}
}

// begin makes room for the first work request of an operation and, unless it is implicit, for its outcome.
func (e *queueSet) begin(q *sendQueue, parts int32, f fabric.Flag) (int32, error) {
	if err := e.room(q); err != nil {
		return none, err
	}
	if f&fabric.Implicit != 0 {
		return none, nil
	}
	return e.ops.add(q.rank, parts), nil
}

// refuse counts an operation that was counted as started and is not in flight.
func (e *queueSet) refuse(err error) error {
	e.counters.Errors++
	return err
}

// cutShort ends an operation whose last work requests cannot be posted; the others have ended, see room.
func (e *queueSet) cutShort(o int32, err error) error {
	if o != none {
		e.ops.release(o)
	}
	return e.refuse(err)
}

// sign decides whether a work request asks for a completion.
func (e *queueSet) sign(q *sendQueue, w *verbs.SendWR, must, bounced bool) {
	e.tx.sign(q, w, must || bounced && (e.slab.small.scarce() || e.slab.big.scarce()))
}

// commit ends the filling of an operation's last slot: in a batch it waits for End, else it is posted. A blocking
// operation gets its first polling budget in the same call.
func (e *queueSet) commit(q *sendQueue, o int32, w *verbs.SendWR, bounced bool, f fabric.Flag) (fabric.Handle, error) {
	e.sign(q, w, o != none, bounced)
	if e.batching {
		if o == none {
			return fabric.Done, nil
		}
		return e.ops.handle(o), nil
	}
	want, budget := 0, time.Duration(0)
	if f&fabric.Blocking != 0 && o != none {
		want, budget = 1, firstBudget
	} else if e.tx.out >= pollAt {
		want = 1
	}
	_, err := e.progress(want, budget)
	if o == none {
		return fabric.Done, nil // it was collected: Flush has its error, and no other call
	}
	return e.settled(o, err)
}

// settled is the answer to the start of an operation: its outcome if it is complete, or its handle. err is of the ring.
func (e *queueSet) settled(o int32, err error) (fabric.Handle, error) {
	switch {
	case e.ops.all[o].parts == 0:
		return fabric.Done, e.collect(o)
	case err != nil:
		e.ops.all[o].abandoned = true
		return fabric.Done, err
	}
	return e.ops.handle(o), nil
}

// collect takes an operation's outcome and spends its handle.
func (e *queueSet) collect(o int32) error {
	p := &e.ops.all[o]
	err := p.err
	e.lastOld = p.old
	e.ops.release(o)
	return err
}
