//go:build linux && cgo

package ibv

import (
	"encoding/binary"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/verbs"
)

// batching is the state of Post.
type batching struct {
	set    *queueSet
	on     bool
	more   bool          // the next piece of the group goes to the same peer
	group  int32         // the operation of the group, or none
	piece  *fabric.Piece // that is being staged
	owed   *sendQueue    // whose last request of the group asks for no completion; nil: none
	quiet  int32         // work requests of merged requests since the last that asked, to that queue
	merged mergedRequest
}

// mergedRequest is pieces that are carried out as one request: they follow each other in a group,
// to one peer, and nothing is to be done at their end but to count them.
type mergedRequest struct {
	last    *verbs.SendWR // nil: there is none
	queue   *sendQueue
	request int32
	wrs     int32
	pieces  int32 // that end in it
	kind    kind
	memory  *fabric.Memory
	span    fabric.Span
}

// Post stages a batch piece by piece, and rings the doorbell.
func (l *lane) Post(b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return err
		}
		defer l.guard.Exit()
	}
	e := l.set
	if e == nil {
		return errClosed("post")
	}
	if e.downSeen != e.net.deaths.Len() {
		e.noticeDowns()
	}
	if err := e.checkBatch(b, q); err != nil {
		return err
	}
	e.batch.on = true
	signed, rung := e.tx.signed, e.counters.Doorbells
	for g, pieces := range b.All() {
		o := none
		if !g.Implicit {
			o = e.ops.add(none, 1) // a part for the staging
			p := &e.ops.all[o]
			p.group, p.tag, p.told = true, g.Tag, q
			q.Expect()
		}
		l.stage(pieces, o)
		if o != none {
			e.endPart(o, 0, nil)
		}
	}
	e.batch.on, e.batch.piece = false, nil
	want, budget := 0, time.Duration(0)
	switch {
	case f&fabric.Blocking != 0 && e.tx.signed != signed:
		want, budget = 1, firstBudget
		if e.counters.Doorbells == rung { // else some may be complete
			want = int(e.tx.signed - signed)
		}
	case e.tx.out >= pollAt:
		want = 1
	case !e.tx.staged() && len(e.tx.probes) == 0:
		return nil
	}
	_, _ = e.progress(want, budget) // groups, or Flush, have the error
	return nil
}

// checkBatch refuses a batch that is wrong whatever happens to the peers.
func (e *queueSet) checkBatch(b *fabric.Batch, told *fabric.Completions) error {
	if err := fabric.CheckBatch(e.net, b, told); err != nil {
		return err
	}
	pieces := b.Pieces()
	for i := range pieces {
		if p := &pieces[i]; p.Kind == fabric.KindAtomic {
			if err := e.checkAtomics(p.Op(), p.Peer); err != nil {
				return err
			}
		}
	}
	return nil
}

// stage stages the pieces of a group, or implicit ones.
func (l *lane) stage(pieces []fabric.Piece, group int32) {
	e, b := l.set, &l.set.batch
	b.group = group
	for i := range pieces {
		p := &pieces[i]
		q, err := e.queueTo(p)
		if err != nil {
			e.failPiece(group, p.Failed(err))
			continue
		}
		if b.merged.last != nil && b.merged.queue != q {
			b.endMerged(true)
		}
		if b.owed != q {
			b.settleOwed()
		}
		b.piece = p
		b.more = group != none && i+1 < len(pieces) && pieces[i+1].Peer == p.Peer
		if err := l.stagePiece(q, p); err != nil {
			e.failPiece(group, p.Failed(err))
		}
	}
	b.endMerged(true)
	b.settleOwed()
	b.more, b.group = false, none
}

// queueTo is the queue to a piece's peer. Requests staged before go first where the lane has to
// connect, which may close another connection.
func (e *queueSet) queueTo(p *fabric.Piece) (*sendQueue, error) {
	q := e.queues[p.Peer]
	if q == nil {
		e.batch.endMerged(true)
		e.batch.settleOwed()
		return e.dialer.dial(p.Op(), p.Peer)
	}
	q.used = e.rings
	return q, nil
}

// stagePiece stages one. An error means that the piece was not posted to its end.
func (l *lane) stagePiece(q *sendQueue, p *fabric.Piece) error {
	e := l.set
	n, what := uint64(len(p.Buf)), kindPut
	e.counters.Start(p.Kind, n)
	if p.Kind == fabric.KindAtomic {
		e.batch.endMerged(false)
		f := fabric.Flag(0)
		if e.batch.group == none && p.Buf == nil && offloaded(&p.Atomic) {
			f = fabric.Implicit
		}
		_, err := l.atomic(q, p.Off, &p.Atomic, f)
		return err
	}
	if p.Kind == fabric.KindGet {
		what = kindGet
	}
	c := e.counters
	if n == 0 {
		c.Completed++
		return nil
	}
	local, lkey, direct := addrOf(p.Buf), uint32(0), true
	switch inline := what == kindPut && n <= uint64(e.net.inline); {
	case inline:
		c.Inline++
	case p.Memory != nil:
		c.Direct++
		lkey = p.Memory.Key()
	default:
		if _, direct = e.net.mem.inSegment(p.Buf); direct {
			direct = what == kindGet || n > copyMax
			lkey = e.net.mem.lkey
		}
		if !direct { // as an operation outside of batches, but for the ring
			e.batch.endMerged(false)
			f := fabric.Flag(0)
			if e.batch.group == none {
				f = fabric.Implicit
			}
			_, err := l.transfer(q, p.Off, p.Buf, f, what)
			return err
		}
		c.Direct++
	}
	return e.batch.stageDirect(q, p, what, local, lkey)
}

// stageDirect adds a piece to the merged request.
func (b *batching) stageDirect(q *sendQueue, p *fabric.Piece, what kind, local uint64, lkey uint32) error {
	e := b.set
	s := &b.merged
	for start, n := 0, len(p.Buf); start < n; {
		size := min(n-start, e.net.piece)
		slot, w, err := b.mergedSlot(q, what, p.Memory)
		if err != nil {
			e.counters.Errors++
			return err
		}
		w.Opcode = opcodes[what]
		w.SetRemote(q.base+p.Off+uint64(start), q.rkey)
		if lkey == 0 && what == kindPut && n <= e.net.inline {
			e.tx.chain.CopyInline(slot, p.Buf)
		} else {
			e.tx.chain.SetLocal(slot, local+uint64(start), uint32(size), lkey)
		}
		start += size
		s.span.Add(p.Off, uint64(n))
	}
	s.pieces++
	if b.group == none {
		b.endMerged(false) // each has an error of its own
	}
	return nil
}

// mergedSlot is the next slot of the chain for a piece, in the merged request if it may join that.
func (b *batching) mergedSlot(q *sendQueue, what kind, m *fabric.Memory) (int, *verbs.SendWR, error) {
	e := b.set
	s := &b.merged
	if s.last != nil && (s.kind != what || s.memory != m) {
		b.endMerged(false)
	}
	if q.err != nil || e.tx.full() || !e.tx.room(q, s.wrs+1) {
		b.endMerged(false)
		if err := e.room(q); err != nil {
			return 0, nil, err
		}
	}
	if s.last == nil {
		*s = mergedRequest{queue: q, request: e.tx.take(), kind: what, memory: m, span: fabric.NoSpan}
		if m != nil {
			m.Use()
		}
	}
	slot, w := e.tx.slot(q, e.tx.id(s.request))
	s.wrs++
	s.last = w
	return slot, w, nil
}

// endMerged posts the merged request, if there is one. It is signaled if it is the
// group's last to its peer, and before unsignaled ones could fill a queue.
func (b *batching) endMerged(last bool) {
	e := b.set
	s := &b.merged
	if s.last == nil {
		return
	}
	q, tagged := s.queue, b.group != none
	e.tx.add(q, s.request, s.wrs)
	e.parts[s.request] = part{op: b.group, block: none, hold: none, kind: s.kind, pieces: s.pieces,
		bare: s.memory == nil, memory: s.memory, off: s.span.Low, n: s.span.High - s.span.Low}
	if tagged {
		e.ops.all[b.group].parts++
	}
	b.quiet += s.wrs
	must := tagged && last || !tagged && s.wrs > 1 || b.quiet >= min(e.tx.depth, e.tx.limit)/2
	b.note(q, !e.tx.sign(q, s.last, must) && tagged)
	*s = mergedRequest{}
}

// note records whether the last request to a queue is unsignaled.
func (b *batching) note(q *sendQueue, owed bool) {
	if !owed {
		b.owed, b.quiet = nil, 0
	} else {
		b.owed = q
	}
}

// settleOwed has the last request to a queue completed by a probe. That is needed where the piece
// that should have been signaled was empty or failed.
func (b *batching) settleOwed() {
	if b.owed != nil {
		b.set.tx.probeLater(b.owed)
	}
	b.owed, b.quiet = nil, 0
}

// adopt makes an operation the record of the piece that is being staged.
func (b *batching) adopt(o int32) {
	ops := b.set.ops.all
	p, piece := &ops[o], b.piece
	p.piece, p.parent, p.offset, p.length, p.name, p.result = true, b.group, piece.Off, piece.Len(), piece.Op(), nil
	if piece.Kind == fabric.KindAtomic {
		p.result = piece.Buf
	}
	if p.parent != none {
		ops[p.parent].parts++
	}
}

// disown is for a piece that cannot be posted: its group does not wait for it.
func (b *batching) disown(o int32) {
	ops := b.set.ops.all
	p := &ops[o]
	if p.parent != none {
		ops[p.parent].parts-- // the part for the staging remains
	}
	p.name, p.result = "", nil
}

// endPiece ends a piece that has a record.
func (e *queueSet) endPiece(o int32) {
	p := &e.ops.all[o]
	parent, err := p.parent, error(nil)
	if p.err != nil {
		err = &fabric.OpError{Op: p.name, Rank: int(p.rank), Off: p.offset, Len: p.length, Err: p.err}
	} else if p.result != nil && !p.abandoned {
		binary.NativeEndian.PutUint64(p.result, p.old)
	}
	p.name, p.result = "", nil
	e.ops.release(o)
	if parent != none {
		e.endPart(parent, 0, err)
	} else if err != nil {
		e.failed.Add(err.(*fabric.OpError))
	}
}

// failPiece notes the error of a piece that was not posted.
func (e *queueSet) failPiece(group int32, err *fabric.OpError) {
	if group == none {
		e.failed.Add(err)
	} else if g := &e.ops.all[group]; g.err == nil {
		g.err = err
	}
}

// tell reports the completion of a group.
func (e *queueSet) tell(o int32) {
	p := &e.ops.all[o]
	told, tag, err := p.told, p.tag, p.err
	if p.abandoned {
		told = nil
	}
	p.told = nil
	e.ops.release(o)
	if told != nil {
		told.Tell(tag, err)
	}
}
