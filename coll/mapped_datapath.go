package coll

import (
	"slices"
	"sync/atomic"
)

// reduceMapped reduces in memory that all members of a host have mapped, piece by piece. Each lays
// its piece out in a pane of its own slot, reduces its share of all panes, in the order of ranks,
// into the first member's pane, and copies the result from there. So bytes are copied once on their
// way to others, and once back. Where there are several hosts their first members put the pieces
// together, which they hold then, before the others copy them.
//
// A member tells the others, in the words of pairs, that its piece is laid out, and then that its
// share is reduced. It lays out a piece while others reduce the one before: when all have reduced a
// piece they have copied the one before it, so three panes are enough.
func (o *op) reduceMapped(near *near, buf []byte, root int) error {
	t, d, p := o.t, o.data, o.t.channels()
	unit := d.whole(t.teams.shape.pane)
	o.lay(near, buf[:min(unit, len(buf))], p.laid, root)
	if err := o.signalled(near, -1); err != nil {
		return err
	}
	for len(buf) > 0 {
		c := buf[:min(unit, len(buf))]
		buf = buf[len(c):]
		if len(buf) > 0 {
			o.lay(near, buf[:min(unit, len(buf))], p.laid+1, root)
		}
		if err := o.reducePanes(near, c, root, len(buf) > 0); err != nil {
			return err
		}
		p.laid++
	}
	return nil
}

// pane is a member's of the host with a piece.
func (o *op) pane(near *near, i int, piece uint64, n int) []byte {
	s := &o.t.teams.shape
	at := s.panes + piece%panes*s.pane
	return near.slots[i][at : at+uint64(n)]
}

// direct reports whether this member reduces its share in its buffer, which is where the result
// goes.
func (near *near) direct(root int) bool { return near.group.me == 0 && root < 0 }

// lay lays a piece out for the others: what they reduce, and what this member does not read from
// its buffer.
func (o *op) lay(near *near, c []byte, piece uint64, root int) {
	g := near.group
	mine := o.pane(near, g.me, piece, len(c))
	from, to := o.data.share(len(c), g.me, g.m)
	if g.me == 0 && root >= 0 {
		to = from
	}
	copy(mine[:from], c[:from])
	copy(mine[to:], c[to:])
	o.signal(near, -1)
}

// reducePanes reduces the piece that all have laid out, and gets the result. Where there are more
// the next one is laid out by all then.
func (o *op) reducePanes(near *near, c []byte, root int, more bool) error {
	g, piece := near.group, o.t.pairs.laid
	from, to := o.data.share(len(c), g.me, g.m)
	result := o.pane(near, 0, piece, len(c))
	acc := result[from:to]
	if near.direct(root) {
		acc = c[from:to]
	}
	for i := 1; i < g.m; i++ {
		src := c[from:to]
		if i != g.me {
			src = o.pane(near, i, piece, len(c))[from:to]
		}
		if err := o.fold(acc, src); err != nil {
			return err
		}
	}
	if near.direct(root) {
		copy(result[from:to], acc)
	}
	if near.all {
		o.signal(near, -1)
	} else if g.me > 0 {
		o.signal(near, 0)
	}
	if more {
		if err := o.signalled(near, -1); err != nil { // this was before what is waited for below
			return err
		}
	}
	if near.all || g.me == 0 {
		if err := o.signalled(near, -1); err != nil {
			return err
		}
	}
	if !near.all {
		if err := o.throughLeader(near, result); err != nil {
			return err
		}
	}
	switch {
	case root >= 0 && root != o.t.me:
	case near.all && near.direct(root):
		copy(c[to:], result[to:])
	default:
		copy(c, result)
	}
	return nil
}

// throughLeader has the first member of the host put its piece together with those of other hosts.
func (o *op) throughLeader(near *near, result []byte) error {
	if near.group.me > 0 {
		return o.signalled(near, 0)
	}
	leaders := view{list: near.leaders, m: len(near.leaders), me: slices.Index(near.leaders, o.t.me)}
	if err := o.reduceShares(leaders, result, -1); err != nil {
		return err
	}
	o.signal(near, -1)
	return nil
}

// signal counts a message to a member of the host, or to all others (-1).
func (o *op) signal(near *near, to int) {
	t, p, g := o.t, o.t.pairs, near.group
	for i := range g.m {
		if i == g.me || to >= 0 && i != to {
			continue
		}
		member := g.at(i)
		p.sent[member]++
		w := word(near.slots[i], t.teams.shape.arrivals+8*uint64(t.me))
		atomic.StoreUint64(w, o.pairWord(member))
	}
}

// signalled waits for that from a member of the host, or from all others.
func (o *op) signalled(near *near, from int) error {
	g := near.group
	for i := range g.m {
		if i == g.me || from >= 0 && i != from {
			continue
		}
		if err := o.arrived(g.at(i)); err != nil {
			return err
		}
	}
	return nil
}
