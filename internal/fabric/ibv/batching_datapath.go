//go:build linux && cgo

package ibv

import (
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// batching is the state of Post.
type batching struct {
	set    *queueSet
	on     bool
	more   bool          // the next piece of the group goes to the same peer
	group  int32         // the operation of the group, or none
	piece  *fabric.Piece // that is being staged
	owed   *sendQueue    // whose last request of the group is unsignaled; nil: none
	quiet  int32         // work requests of merged requests to it since the last signaled one
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
