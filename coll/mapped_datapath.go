package coll

import (
	"slices"
)

// reduceMapped reduces in memory that all members have mapped, piece by piece. Each lays its piece
// out in a pane of its own slot, reduces its share of all panes, in the order of ranks, into the
// first member's pane, and copies the result from there. So bytes are copied once on their way to
// others, and once back. root gets the result; -1: all do.
//
// Each member signals to the others, in the words of pairs, that it has laid out a piece, and that
// its share of one is reduced: of pieces 0, 1, 0, 2, 1, 3, 2 and so on, so that no member waits for
// the last step. A member that has reduced its share of a piece has copied the second one before
// it. When all have, one lays out the third one behind it: so there are five panes, of which no two
// in use are the same.
func (o reducer) reduceMapped(near *near, buf []byte, root int) error {
	p, unit := o.pairs.channels(), o.data.whole(o.t.shared.shape.pane)
	count := (len(buf) + unit - 1) / unit
	piece := func(i int) []byte { return buf[i*unit : min((i+1)*unit, len(buf))] }
	begin := p.laid
	p.laid += uint64(count)
	o.lay(near, piece(0), begin, root)
	for i := range count + 1 {
		if i+1 < count {
			o.lay(near, piece(i+1), begin+uint64(i+1), root)
		}
		if i < count {
			if err := o.pairs.signalled(near); err != nil {
				return err
			}
			if err := o.reducePane(near, piece(i), begin+uint64(i), root); err != nil {
				return err
			}
			o.pairs.signal(near, noMember)
		}
		if i > 0 {
			if err := o.pairs.signalled(near); err != nil {
				return err
			}
			o.copyBack(near, piece(i-1), begin+uint64(i-1), root)
		}
	}
	return nil
}

// reduceHosts does so on each host; the first members then put their pieces together over the
// network before the others copy them.
func (o reducer) reduceHosts(near *near, buf []byte, root int) error {
	p, g := o.pairs.channels(), near.group
	leaders := view{list: near.leaders, m: len(near.leaders), me: slices.Index(near.leaders, o.t.me)}
	for c := range slices.Chunk(buf, o.data.whole(o.t.shared.shape.pane)) {
		p.laid++
		o.lay(near, c, p.laid, root)
		if err := o.pairs.signalled(near); err != nil {
			return err
		}
		if err := o.reducePane(near, c, p.laid, root); err != nil {
			return err
		}
		if g.me > 0 {
			o.pairs.signal(near, 0)
			if err := o.pairs.arrived(g.at(0)); err != nil {
				return err
			}
		} else {
			if err := o.pairs.signalled(near); err != nil {
				return err
			}
			if err := o.reduceShares(leaders, o.pane(near, 0, p.laid, len(c)), -1); err != nil {
				return err
			}
			o.pairs.signal(near, noMember)
		}
		if root < 0 || root == o.t.me {
			copy(c, o.pane(near, 0, p.laid, len(c)))
		}
	}
	return nil
}

// pane is a member's of the host with a piece.
func (o reducer) pane(near *near, i int, piece uint64, n int) []byte {
	s := &o.t.shared.shape
	at := s.panes + piece%panes*s.pane
	return near.slots[i][at : at+uint64(n)]
}

// inPlace reports whether this member reduces its share in its buffer.
func (near *near) inPlace(root int) bool { return near.group.me == 0 && root < 0 }

// lay lays a piece out for the others, but this member's share, unless that is where it is reduced.
func (o reducer) lay(near *near, c []byte, piece uint64, root int) {
	g := near.group
	mine := o.pane(near, g.me, piece, len(c))
	from, to := o.data.share(len(c), g.me, g.m)
	if g.me == 0 && root >= 0 {
		to = from
	}
	copy(mine[:from], c[:from])
	copy(mine[to:], c[to:])
	o.pairs.signal(near, noMember)
}

// reducePane reduces this member's share of a piece that all have laid out.
func (o reducer) reducePane(near *near, c []byte, piece uint64, root int) error {
	g := near.group
	from, to := o.data.share(len(c), g.me, g.m)
	result := o.pane(near, 0, piece, len(c))[from:to]
	acc := result
	if near.inPlace(root) {
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
	if near.inPlace(root) {
		copy(result, acc)
	}
	return nil
}

// copyBack gets the result of a piece that all have reduced their shares of.
func (o reducer) copyBack(near *near, c []byte, piece uint64, root int) {
	if root >= 0 && root != o.t.me {
		return
	}
	has := 0
	if near.inPlace(root) {
		_, has = o.data.share(len(c), 0, near.group.m)
	}
	copy(c[has:], o.pane(near, 0, piece, len(c))[has:])
}
