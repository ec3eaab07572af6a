//go:build linux && cgo

package ibv

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/verbs"
)

// lane is an endpoint in the hands of its user.
type lane struct {
	ep       *endpoint // nil once closed
	counters *fabric.Counters
	guard    owner.Guard
}

var _ fabric.Lane = (*lane)(nil)

// Put writes src into the peer's segment.
func (l *lane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return fabric.Done, err
		}
		defer l.guard.Exit()
	}
	e := l.ep
	if e == nil {
		return fabric.Done, errClosed("put")
	}
	n := uint64(len(src))
	k := e.near(peer, off, n)
	if k == nil {
		var err error
		if k, err = e.to("put", peer, off, n); err != nil {
			return fabric.Done, err
		}
	}
	c := e.counters
	c.Puts++
	c.PutBytes += n
	switch n := len(src); {
	case n == 0:
		c.Completed++
		return fabric.Done, nil
	case n <= e.net.inline:
		c.Inline++
		if e.alone(f) {
			return e.inlineAlone(k, off, src)
		}
		o, err := e.begin(k, 1, f)
		if err != nil {
			return fabric.Done, e.refuse(err)
		}
		slot := e.slot(k, o, kindPut, none, true)
		copy(e.chain.Area(slot), src)
		e.chain.SetInline(slot, n)
		e.chain.WR(slot).Opcode = verbs.OpWrite
		e.chain.WR(slot).SetRemote(k.base+off, k.rkey)
		return e.commit(k, o, slot, f)
	default:
		return e.transfer(k, off, src, f, kindPut)
	}
}

// Get reads from the peer's segment into dst.
func (l *lane) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return fabric.Done, err
		}
		defer l.guard.Exit()
	}
	e := l.ep
	if e == nil {
		return fabric.Done, errClosed("get")
	}
	n := uint64(len(dst))
	k := e.near(peer, off, n)
	if k == nil {
		var err error
		if k, err = e.to("get", peer, off, n); err != nil {
			return fabric.Done, err
		}
	}
	c := e.counters
	c.Gets++
	c.GetBytes += n
	if n == 0 {
		c.Completed++
		return fabric.Done, nil
	}
	return e.transfer(k, off, dst, f, kindGet)
}

// transfer moves buf piece by piece: directly where the device reaches it, or
// can be made to, else through the slab.
func (e *endpoint) transfer(k *link, off uint64, buf []byte, f fabric.Flag, what kind) (fabric.Handle, error) {
	local, direct := e.net.local(buf)
	direct = direct && (what == kindGet || len(buf) > copyMax)
	lkey, piece, held := e.net.mr.LKey(), e.net.piece, none
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
		direct, lkey = true, e.holds[held].region.LKey
	default:
		piece = bigBlock
		e.counters.Bounced++
	}
	if held == none && len(buf) <= piece && e.alone(f) {
		return e.transferAlone(k, off, buf, what, local, lkey, direct)
	}
	parts := int32((len(buf) + piece - 1) / piece)
	o, err := e.begin(k, parts, f)
	if err != nil {
		if held != none {
			e.letGo(held, parts)
		}
		return fabric.Done, e.refuse(err)
	}
	slot := 0
	for at := 0; at < len(buf); at += piece {
		part := buf[at:min(at+piece, len(buf))]
		last := at+len(part) == len(buf)
		if at > 0 {
			if err := e.room(k); err != nil {
				missing := int32((len(buf) - at + piece - 1) / piece)
				if held != none {
					e.withdraw(k, held, missing)
				}
				return fabric.Done, e.cutShort(k, o, missing, buf, err)
			}
		}
		if direct {
			slot = e.slot(k, o, what, none, last)
			e.chain.SetLocal(slot, local+uint64(at), uint32(len(part)), lkey)
			if held != none {
				e.keep(held, part)
			}
		} else if slot, err = e.bounce(k, o, what, part, last); err != nil {
			return fabric.Done, e.cutShort(k, o, int32((len(buf)-at+piece-1)/piece), buf, err)
		}
		w := e.chain.WR(slot)
		w.Opcode = verbs.OpWrite
		if what == kindGet {
			w.Opcode = verbs.OpRead
		}
		w.SetRemote(k.base+off+uint64(at), k.rkey)
		if !last {
			e.sign(k, slot, false)
		}
	}
	return e.commit(k, o, slot, f)
}

// bounce lays a piece of a put into a block of the slab, or reserves one for a
// piece of a get.
func (e *endpoint) bounce(k *link, o int32, what kind, part []byte, last bool) (int, error) {
	list := e.slab.list(len(part))
	for list.empty() {
		if err := e.stall(k); err != nil {
			return 0, err
		}
	}
	if err := e.room(k); err != nil { // what was reserved may be gone after a stall
		return 0, err
	}
	block := list.take()
	slot := e.slot(k, o, what, block, last)
	if what == kindPut {
		copy(e.slab.bytes(block, len(part)), part)
	} else {
		e.wrs[e.pending[len(e.pending)-1]].dst = part
	}
	e.chain.SetLocal(slot, e.slab.base+uint64(block), uint32(len(part)), e.slab.lkey)
	return slot, nil
}

// Atomic applies op to a word of the peer's segment. The old value arrives in
// the slab. A swap is a compare-swap that is tried again until it finds what it
// expects: IBTA has no swap of its own.
func (l *lane) Atomic(code fabric.AtomicOp, peer int, off, operand, compare uint64, f fabric.Flag) (uint64, fabric.Handle, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return 0, fabric.Done, err
		}
		defer l.guard.Exit()
	}
	e := l.ep
	if e == nil {
		return 0, fabric.Done, errClosed("atomic")
	}
	k := e.near(peer, off, 8)
	if k == nil {
		var err error
		if k, err = e.to(code.String(), peer, off, 8); err != nil {
			return 0, fabric.Done, err
		}
	}
	switch {
	case off%8 != 0 || k.base%8 != 0:
		return 0, fabric.Done, &fabric.AlignError{Op: code.String(), Rank: peer, Off: off, Align: 8}
	case !code.Valid():
		return 0, fabric.Done, fmt.Errorf("ibv: no atomic operation %d", code)
	case !e.net.atomics:
		return 0, fabric.Done, fmt.Errorf("ibv: %s: device %s has no atomics: %w", code, e.net.dev.Name(), verbs.ErrNotSupported)
	}
	f &^= fabric.Implicit
	e.counters.Atomics++
	if code != fabric.Swap && e.alone(f) {
		return e.atomicAlone(k, off, operand, compare, code == fabric.FetchAdd)
	}
	o, err := e.begin(k, 1, f)
	if err != nil {
		return 0, fabric.Done, e.refuse(err)
	}
	p := &e.ops[o]
	p.offset, p.operand, p.compare, p.swap = off, operand, compare, code == fabric.Swap
	if p.swap {
		p.compare = 0
	}
	slot, err := e.postAtomic(k, o, code == fabric.FetchAdd)
	if err != nil {
		return 0, fabric.Done, e.cutShort(k, o, 1, nil, err)
	}
	h, err := e.commit(k, o, slot, f)
	return e.lastOld, h, err
}

// postAtomic fills a slot with the atomic that the operation describes.
func (e *endpoint) postAtomic(k *link, o int32, add bool) (int, error) {
	for e.slab.small.empty() {
		if err := e.stall(k); err != nil {
			return 0, err
		}
	}
	if err := e.room(k); err != nil {
		return 0, err
	}
	block := e.slab.small.take()
	slot := e.slot(k, o, kindAtomic, block, true)
	e.chain.SetLocal(slot, e.slab.base+uint64(block), 8, e.slab.lkey)
	p := &e.ops[o]
	if add {
		e.chain.WR(slot).SetFetchAdd(k.base+p.offset, k.rkey, p.operand)
	} else {
		e.chain.WR(slot).SetCompareSwap(k.base+p.offset, k.rkey, p.compare, p.operand)
	}
	return slot, nil
}

// near is to without the words for what is wrong: then it returns nil.
func (e *endpoint) near(peer int, off, n uint64) *link {
	if uint(peer) < uint(len(e.links)) {
		k := &e.links[peer]
		if n <= k.size && off <= k.size-n && k.qp != nil && k.err == nil && e.downSeen == e.net.downSeq.Load() {
			return k
		}
	}
	return nil
}

// to checks an operation's target.
func (e *endpoint) to(op string, peer int, off, n uint64) (*link, error) {
	if uint(peer) >= uint(len(e.links)) || e.links[peer].qp == nil {
		return nil, &fabric.RankError{Op: op, Rank: peer, Size: len(e.links)}
	}
	k := &e.links[peer]
	if off > k.size || n > k.size-off {
		return nil, &fabric.BoundsError{Op: op, Rank: peer, Off: off, Len: n, Size: k.size}
	}
	if e.downSeen != e.net.downSeq.Load() {
		e.noticeDowns()
	}
	if k.err != nil {
		return nil, k.err
	}
	return k, nil
}

// local returns the address of buf if the device reaches it under the segment's key.
func (n *Network) local(buf []byte) (uint64, bool) {
	p := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
	at := p - n.self.base
	return p, at < n.self.size && uint64(len(buf)) <= n.self.size-at
}

// begin makes room for the first work request of an operation and, unless it is
// implicit, for its outcome.
func (e *endpoint) begin(k *link, parts int32, f fabric.Flag) (int32, error) {
	if err := e.room(k); err != nil {
		return none, err
	}
	if f&fabric.Implicit != 0 {
		return none, nil
	}
	return e.newOp(int(k.rank), parts), nil
}

// refuse counts an operation that was counted as started and never posted.
func (e *endpoint) refuse(err error) error {
	e.counters.Errors++
	return err
}

// cutShort ends an operation on buf whose last pieces cannot be posted. A get's
// buffer is the caller's again.
func (e *endpoint) cutShort(k *link, o, missing int32, buf []byte, err error) error {
	if o == none {
		e.forget(k, buf)
		return e.refuse(err)
	}
	p := &e.ops[o]
	p.parts -= missing
	p.abandoned = true
	if p.err == nil {
		p.err = err
	}
	if p.parts == 0 { // else the pieces that are out count it when they end
		e.freeOpAt(o)
		return e.refuse(err)
	}
	return err
}

// forget keeps what is in flight on a link from being copied into buf.
func (e *endpoint) forget(k *link, buf []byte) {
	for i := k.head; i != none; i = e.wrs[i].next {
		w := &e.wrs[i]
		at := uintptr(unsafe.Pointer(unsafe.SliceData(w.dst))) - uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
		if len(w.dst) > 0 && w.hold == 0 && at < uintptr(len(buf)) {
			w.dst = nil
		}
	}
}

// slot takes the next slot of the chain for a work request to k. room has made
// sure that there is one.
func (e *endpoint) slot(k *link, o int32, what kind, block int32, last bool) int {
	i := e.freeWR
	w := &e.wrs[i]
	e.freeWR = w.next
	w.next, w.link, w.op, w.block, w.last, w.kind = none, k.rank, o, block, last, what // dst was cleared by retire
	if k.tail == none {
		k.head = i
	} else {
		e.wrs[k.tail].next = i
	}
	k.tail = i
	if k.outstanding == 0 {
		k.place = int32(len(e.active))
		e.active = append(e.active, k.rank)
	}
	k.outstanding++
	e.outstanding++
	slot := len(e.pending)
	if e.runLink != k.rank {
		e.closeRun()
		e.runLink, e.runFirst = k.rank, slot
	}
	e.pending = append(e.pending, i)
	r := e.chain.WR(slot)
	r.WRID = uint64(i)
	r.Flags = 0
	return slot
}

// sign decides whether a work request asks for a completion.
func (e *endpoint) sign(k *link, slot int, must bool) {
	k.silent++
	w := &e.wrs[e.pending[slot]]
	every := min(int32(signalEvery), max(int32(e.net.cfg.Depth)/2, 1))
	if must || k.silent >= every || e.outstanding >= e.limit/2 ||
		w.block != none && (e.slab.small.scarce() || e.slab.big.scarce()) {
		e.chain.WR(slot).Flags |= verbs.Signaled
		k.silent = 0
	}
}

// commit ends the filling of an operation's last slot: in a batch it waits for
// End, else it is posted. A blocking operation gets its first polling budget in
// the same call.
func (e *endpoint) commit(k *link, o int32, slot int, f fabric.Flag) (fabric.Handle, error) {
	e.sign(k, slot, o != none)
	if e.batching {
		if o == none {
			return fabric.Done, nil
		}
		return e.handle(o), nil
	}
	var err error
	if f&fabric.Blocking != 0 && o != none {
		_, err = e.progress(1, firstBudget)
	} else if e.outstanding >= pollAt {
		_, err = e.progress(1, 0)
	} else {
		err = e.post()
	}
	if o == none {
		return fabric.Done, nil // it was collected: Flush tells of its error, and nobody else
	}
	return e.settled(o, err)
}

// settled is the answer to who started an operation: its outcome if it is
// complete, or its handle. err is of the ring.
func (e *endpoint) settled(o int32, err error) (fabric.Handle, error) {
	switch {
	case e.ops[o].parts == 0:
		return fabric.Done, e.collect(o)
	case err != nil:
		e.ops[o].abandoned = true
		return fabric.Done, err
	}
	return e.handle(o), nil
}

// collect takes an operation's outcome and spends its handle.
func (e *endpoint) collect(o int32) error {
	p := &e.ops[o]
	err := p.err
	e.lastOld = p.old
	e.freeOpAt(o)
	return err
}

// word reads an atomic's old value out of its block.
func (e *endpoint) word(block int32) uint64 {
	return binary.NativeEndian.Uint64(e.slab.mem[block:])
}
