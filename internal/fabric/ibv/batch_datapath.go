//go:build linux && cgo

package ibv

import (
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

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
	if e.downSeen != e.net.deaths.N.Load() {
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
			p.group, p.tag, p.reports = true, g.Tag, q
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
func (e *queueSet) checkBatch(b *fabric.Batch, reports *fabric.Completions) error {
	if err := fabric.CheckBatch(e.net, b, reports); err != nil {
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
