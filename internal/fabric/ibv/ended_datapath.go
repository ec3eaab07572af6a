//go:build linux && cgo

package ibv

import (
	"encoding/binary"

	"github.com/ibconduit/conduit/internal/fabric"
)

// ended deals with the end of a request, with err or with success.
func (e *queueSet) ended(q *sendQueue, i int32, err error) {
	e.retired++
	if i == none {
		return
	}
	w := &e.parts[i]
	if w.op == none && w.bare && err == nil {
		e.counters.Completed += uint64(w.pieces)
		return
	}
	var old uint64
	if !w.bare {
		old = e.giveUp(w, err)
	}
	switch {
	case w.op == none:
		e.counters.End(w.pieces, err)
		if w.pieces > 0 && err != nil {
			e.failed.Add(w.failure(q, err))
		}
	case e.ops.all[w.op].group:
		e.counters.End(w.pieces, err)
		if err != nil {
			err = w.failure(q, err)
		}
		e.endPart(w.op, 0, err)
	default:
		e.endPart(w.op, old, err)
	}
}

// giveUp takes what a request that ended has brought, and gives back what it used.
func (e *queueSet) giveUp(w *part, err error) (old uint64) {
	if w.block != none {
		switch {
		case w.kind >= kindAtomic:
			old = e.slab.word(w.block)
		case w.kind == kindGet && err == nil && !(w.op != none && e.ops.all[w.op].abandoned):
			copy(w.dst, e.slab.bytes(w.block, len(w.dst)))
		}
		e.slab.give(w.block)
		w.dst = nil
	}
	if w.memory != nil {
		w.memory.Unuse()
		w.memory = nil
	}
	if w.hold != none {
		e.holds.release(&e.net.mem, w.hold, 1)
	}
	return old
}

// failure is the error of operations without a record.
func (w *part) failure(q *sendQueue, err error) *fabric.OpError {
	return &fabric.OpError{Op: w.kind.String(), Rank: int(q.rank), Off: w.off, Len: w.n, Err: err}
}

// endPart ends one request of an operation that has a record.
func (e *queueSet) endPart(o int32, old uint64, err error) {
	p := &e.ops.all[o]
	if err != nil && p.err == nil {
		p.err = err
	}
	if p.loop && err == nil {
		if e.loops.guesses.missed(p, old) {
			e.loops.again = append(e.loops.again, o)
			return
		}
		old = p.atomic.Inner(p.off, old)
	} else if p.loop && !p.piece {
		p.err = &fabric.OpError{Op: p.atomic.Op.String(), Rank: int(p.rank), Off: p.off, Len: p.atomic.Type.Size(), Err: err}
	}
	p.old = old
	if p.parts--; p.parts > 0 {
		return
	}
	if p.group {
		e.tell(o)
		return
	}
	if p.loop {
		e.loops.n--
	}
	e.counters.End(1, p.err)
	switch {
	case p.piece:
		e.endPiece(o)
	case p.abandoned:
		e.ops.release(o)
	}
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
	reports, tag, err := p.reports, p.tag, p.err
	if p.abandoned {
		reports = nil
	}
	p.reports = nil
	e.ops.release(o)
	if reports != nil {
		reports.Tell(tag, err)
	}
}

// endDown ends the loops on ranks that are down.
func (t *loops) endDown() {
	e := t.set
	left := t.again[:0]
	for _, o := range t.again {
		if q := e.queues[e.ops.all[o].rank]; q.err != nil {
			e.endPart(o, 0, q.err)
		} else {
			left = append(left, o)
		}
	}
	t.again = left
}

// settled is the answer to the start of an operation: its outcome if it is complete, or its handle.
// err is of the ring.
func (l *lane) settled(o int32, err error) (fabric.Handle, error) {
	e := l.set
	switch {
	case e.ops.all[o].parts == 0:
		return fabric.Done, l.set.collect(o)
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
