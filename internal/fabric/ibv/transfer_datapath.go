//go:build linux && cgo

package ibv

import (
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/verbs"
)

// target returns the queue to a peer for an operation on n bytes at off, or nil: then checkTarget
// has more to say.
func (l *lane) target(peer int, off, n uint64) *sendQueue {
	e := l.set
	if e != nil && uint(peer) < uint(len(e.queues)) && e.downSeen == e.net.deaths.N.Load() {
		if q := e.queues[peer]; q != nil && n <= q.size && off <= q.size-n && q.err == nil {
			q.used = e.rings
			return q
		}
	}
	return nil
}

// checkTarget is target with an error. It notices which ranks are down, and connects to a peer that
// the lane is not connected to.
func (l *lane) checkTarget(op string, peer int, off, n uint64) (*sendQueue, error) {
	e := l.set
	if e == nil {
		return nil, errClosed(op)
	}
	if err := fabric.CheckTarget(e.net, op, peer, off, n); err != nil {
		return nil, err
	}
	if e.downSeen != e.net.deaths.N.Load() {
		e.noticeDowns()
	}
	q := e.queues[peer]
	if q == nil {
		return e.dialer.dial(op, peer)
	}
	q.used = e.rings
	return q, q.err
}

// putInline puts src from within the work request.
func (l *lane) putInline(q *sendQueue, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	e := l.set
	if e.tx.full() || !e.tx.room(q, 1) {
		if err := e.room(q); err != nil {
			return fabric.Done, l.refuse(err)
		}
	}
	o := none
	if f&fabric.Implicit == 0 {
		o = e.ops.add(q.rank, 1)
	}
	i, slot, w := e.tx.one(q)
	p := &e.parts[i]
	p.op, p.pieces, p.kind, p.bare, p.off, p.n = o, 1, kindPut, true, off, uint64(len(src))
	w.Opcode = verbs.OpWrite
	w.SetRemote(q.base+off, q.rkey)
	e.tx.chain.CopyInline(slot, src)
	return l.commit(q, o, w, false, f)
}

// transfer moves buf piece by piece: directly where the device reaches it, or can be made to, else
// through the slab.
func (l *lane) transfer(q *sendQueue, off uint64, buf []byte, f fabric.Flag, what kind) (fabric.Handle, error) {
	e := l.set
	mem := &e.net.mem
	local, direct := mem.inSegment(buf)
	direct = direct && (what == kindGet || len(buf) > copyMax)
	lkey, size, held := mem.lkey, e.net.piece, none
	if !direct && int64(len(buf)) >= mem.zeroMin.Load() {
		region, err := mem.register(buf, accesses[what])
		switch {
		case err == nil:
			held = e.holds.add(region, pieces(len(buf), size))
		case fatal(err):
			return fabric.Done, l.refuse(err)
		default:
			e.counters.Unregistered++
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
	if held == none && len(buf) <= size && l.synchronous(f) {
		return l.transferNow(q, off, buf, what, local, lkey, direct)
	}
	parts := pieces(len(buf), size)
	o, err := l.begin(q, parts, f)
	for left := parts; err == nil; left-- {
		start := int(parts-left) * size
		b := buf[start:min(start+size, len(buf))]
		p := part{op: o, block: none, hold: held, kind: what, off: off, n: uint64(len(buf))}
		if left == 1 {
			p.pieces = 1
		}
		if !direct {
			if err = l.bounce(q, &p, b); err != nil {
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
			return l.commit(q, o, w, p.block != none, f)
		}
		e.tx.sign(q, w, p.block != none && e.slab.scarce())
		if err = e.room(q); err != nil {
			parts = left - 1 // that were not posted
		}
	}
	if held != none {
		e.holds.release(mem, held, parts)
	}
	return fabric.Done, l.cutShort(o, err)
}

var (
	opcodes  = [...]verbs.Opcode{kindPut: verbs.OpWrite, kindGet: verbs.OpRead}
	accesses = [...]regcache.Access{kindPut: 0, kindGet: regcache.LocalWrite}
)

// bounce lays a piece of a put into a block of the slab, or takes one for a piece of a get. There
// is room for its work request then.
func (l *lane) bounce(q *sendQueue, p *part, b []byte) error {
	e := l.set
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

// begin makes room for the first work request of an operation and, unless it is implicit, for its
// outcome.
func (l *lane) begin(q *sendQueue, parts int32, f fabric.Flag) (int32, error) {
	e := l.set
	if err := e.room(q); err != nil {
		return none, err
	}
	if f&fabric.Implicit != 0 {
		return none, nil
	}
	o := e.ops.add(q.rank, parts)
	if e.batch.on {
		e.batch.adopt(o)
	}
	return o, nil
}

// refuse counts an operation that was counted as started and is not in flight.
func (l *lane) refuse(err error) error {
	e := l.set
	e.counters.Errors++
	return err
}

// cutShort ends an operation with last work requests that cannot be posted; the others have ended,
// see room.
func (l *lane) cutShort(o int32, err error) error {
	e := l.set
	if o != none {
		if e.batch.on {
			e.batch.disown(o)
		}
		e.ops.release(o)
	}
	return l.refuse(err)
}

// commit ends the filling of an operation's last slot. It is posted, but in a batch, where the last
// to a peer is signaled. A blocking operation gets its first polling budget in the
// same call.
func (l *lane) commit(q *sendQueue, o int32, w *verbs.SendWR, bounced bool, f fabric.Flag) (fabric.Handle, error) {
	e := l.set
	implicit := f&fabric.Implicit != 0
	signed := e.tx.sign(q, w, !implicit && !e.batch.more || bounced && e.slab.scarce())
	if e.batch.on {
		e.batch.note(q, o != none && !signed)
		return fabric.Done, nil
	}
	want, budget := 0, time.Duration(0)
	if f&fabric.Blocking != 0 && !implicit {
		want, budget = 1, firstBudget
	} else if e.tx.out >= pollAt {
		want = 1
	}
	_, err := e.progress(want, budget)
	if implicit {
		return fabric.Done, nil // it was collected: Flush has its error, and no other call
	}
	return l.settled(o, err)
}
