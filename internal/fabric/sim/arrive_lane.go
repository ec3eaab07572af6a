package sim

import (
	"encoding/binary"

	"github.com/ibconduit/conduit/internal/fabric"
)

// fire of a flow: its first put arrives.
func (f *flow) fire(t *timer) {
	n := f.l.n
	w, o := n.r.w, *f.puts.Item(0)
	switch w.paths.passes(t, n.r.id, f.peer, w.paths.blocked(n.r.id, f.peer)) {
	case hold:
		return
	case lost:
		n.reportDown(f.peer, errSilent)
		return
	}
	target := &w.ranks[f.peer]
	rest := o.buf[o.done:]
	if o.done == 0 && len(rest) > tearBytes && w.rng.below(4) == 0 {
		o.done = int(w.rng.below(int64(len(rest)))) &^ 7
		copy(target.segment[o.off:], rest[:o.done])
		w.touch(target)
		w.arm(t, w.now+1+w.rng.below(2000))
		return
	}
	copy(target.segment[o.off+uint64(o.done):], rest)
	w.touch(target)
	f.puts.Pop()
	if f.puts.Len() > 0 {
		w.arm(t, (*f.puts.Item(0)).at)
	}
	o.back(0)
}

// fire of an operation: it arrives, if it is no put, or its answer does.
func (o *op) fire(t *timer) {
	n := o.l.n
	w, peer := n.r.w, o.f.peer
	blocked := w.paths.blocked(n.r.id, peer)
	if o.phase == homeward {
		blocked = w.paths.blockedBack(t, n.r.id, peer)
	}
	switch w.paths.passes(t, n.r.id, peer, blocked) {
	case hold:
		return
	case lost:
		n.reportDown(peer, errSilent)
		return
	}
	if o.phase == homeward {
		o.finish(nil)
		return
	}
	if o.kind == fabric.KindAtomic {
		o.apply(&w.ranks[peer])
		o.back(0)
		return
	}
	copy(o.buf, w.ranks[peer].segment[o.off:])
	o.back(len(o.buf))
}

// back sends the answer.
func (o *op) back(bytes int) {
	n := o.l.n
	w := n.r.w
	w.emit(markApply, o.f.peer, n.r.id, o.off, uint64(len(o.buf)))
	if n.r.dead {
		return
	}
	o.phase = homeward
	w.arm(&o.timer, w.paths.transit(o.f.peer, n.r.id, headerBytes+bytes))
}

// apply works on the aligned word of 64 bits that the operation's own lies in.
func (o *op) apply(r *Rank) {
	at := o.off &^ 7
	outer := r.segment[at : at+8]
	word := binary.NativeEndian.Uint64(outer)
	o.old = o.atomic.Inner(o.off, word)
	binary.NativeEndian.PutUint64(outer, o.atomic.Outer(o.off, word))
	r.w.touch(r)
}
