package coll

import (
	"slices"
)

// allReduce chooses by length: short, all data is gathered; else each member reduces a share, in
// mapped memory or as it arrives; between the two it goes up a tree and down another.
func allReduce(o *op) error { return reducer{o}.reduceTo(-1) }

func reduceToRoot(o *op) error { return reducer{o}.reduceTo(o.root) }

// reduceTo reduces to a root; -1: to all.
func (o reducer) reduceTo(root int) error {
	o.bind()
	t, s, buf := o.t, &o.t.shared.shape, o.data.dst.mem
	switch {
	case len(buf) == 0:
		return o.rails.meet() // which finds mistakes
	case t.n == 1:
		return nil
	case t.n == 2 && root < 0 && uint64(len(buf)) <= s.chunk && len(buf) <= s.short/2:
		return o.reduceTwo(buf)
	case t.n*len(buf) <= s.short:
		return o.reduceGathered(root, buf)
	case o.data.size > o.unit():
		return o.reduceWhole(root)
	}
	near, err := o.nearby()
	if err != nil {
		return err
	}
	switch {
	case near.all:
		return o.reduceMapped(near, buf, root)
	case near.mixed && len(buf) >= t.n*s.long && len(near.leaders)*s.long <= int(s.pane):
		return o.reduceHosts(near, buf, root)
	case len(buf) >= t.n*s.long:
		return o.reduceShares(view{m: t.n, me: t.me}, buf, root)
	}
	return o.reduceTree(buf, root)
}

// reduceTwo is reduceGathered of two members and one message each: what arrives is reduced where it
// lies.
func (o reducer) reduceTwo(buf []byte) error {
	o.mute = true
	if err := o.rails.send(0, buf); err != nil {
		return err
	}
	other, err := o.rails.receive(0)
	if err != nil {
		return err
	}
	other = other[:len(buf)]
	if len(o.flights) > 0 { // of buf, which changes now
		if err := o.settle(o.ctx); err != nil {
			return err
		}
	}
	if o.t.me == 0 {
		err = o.fold(buf, other)
	} else if err = o.fold(other, buf); err == nil {
		copy(buf, other)
	}
	if err == nil {
		err = o.rails.consumed(0)
	}
	o.rails.met()
	return err
}

// reduceGathered has each member, or root, reduce the data of all, in the order of ranks.
func (o reducer) reduceGathered(root int, buf []byte) error {
	t, n := o.t, len(buf)
	all := t.scratch()[:t.n*n]
	from := t.me // blocks are those of the members before it
	if root < 0 {
		copy(all, buf)
		if err := o.rails.bruckEqual(all, n); err != nil {
			return err
		}
	} else {
		if err := o.rails.gatherUp(all, buf); err != nil || t.me != root {
			return err
		}
		from = root
	}
	if err := o.settle(o.ctx); err != nil {
		return err
	}
	return o.reduceRanks(all, from, t.n, buf)
}

// reduceRanks reduces the blocks of the first members into buf. all has the blocks of the members
// before one, the nearest first, beginning with its own.
func (o reducer) reduceRanks(all []byte, from, members int, buf []byte) error {
	n := len(buf)
	at := func(rank int) []byte {
		k := (from - rank + o.t.n) % o.t.n
		return all[k*n : (k+1)*n]
	}
	acc := at(0)
	for rank := 1; rank < members; rank++ {
		if err := o.fold(acc, at(rank)); err != nil {
			return err
		}
	}
	copy(buf, acc)
	return nil
}

// reduceWhole is for elements that fit no message.
func (o reducer) reduceWhole(root int) error {
	if err := o.rails.meet(); err != nil { // see collectWhole
		return err
	}
	if err := o.collectWhole(max(root, 0), o.t.n); err != nil || root >= 0 {
		return err
	}
	for c := range slices.Chunk(o.data.dst.mem, int(o.t.shared.shape.chunk)) {
		if err := o.down(0, c); err != nil {
			return err
		}
	}
	return nil
}

// reduceTree reduces message by message up a tree to the last member, below which ranks are in
// order, and sends the result from there down a tree to all, or to root.
func (o reducer) reduceTree(buf []byte, root int) error {
	unit := o.data.whole(uint64(o.unit()))
	if root >= 0 {
		return o.reduceTreeTo(buf, root, unit)
	}
	for c := range slices.Chunk(buf, unit) {
		if err := o.up(c); err != nil {
			return err
		}
	}
	if err := o.settle(o.ctx); err != nil {
		return err
	}
	for c := range slices.Chunk(buf, unit) {
		if err := o.down(o.t.n-1, c); err != nil {
			return err
		}
	}
	return nil
}

// reduceTreeTo leaves the buffers of others than root as they are.
func (o reducer) reduceTreeTo(buf []byte, root, unit int) error {
	t := o.t
	for c := range slices.Chunk(buf, unit) {
		acc := t.scratch()[:len(c)]
		copy(acc, c)
		if err := o.up(acc); err != nil {
			return err
		}
		if err := o.carry(t.n-1, root, acc); err != nil {
			return err
		}
		if t.me == root {
			copy(c, acc)
		}
		if err := o.settle(o.ctx); err != nil { // acc is used again
			return err
		}
	}
	return nil
}

// up reduces a message to the last member.
func (o reducer) up(acc []byte) error {
	t := o.t
	v, low := t.mirrored(t.n - 1)
	for r := 0; r < low && v+1<<r < t.n; r++ {
		if err := o.foldBefore(r, acc); err != nil {
			return err
		}
	}
	if v == 0 {
		return nil
	}
	return o.rails.send(low, acc)
}

// down sends a message from one member to all, down the tree of a broadcast.
func (o reducer) down(root int, c []byte) error {
	t := o.t
	me := (t.me - root + t.n) % t.n
	low := t.lowest(me)
	if me != 0 {
		if err := o.rails.take(low, c); err != nil {
			return err
		}
	}
	return o.rails.pass(me, low, c)
}

// carry takes a message along rails from one member to another.
func (o reducer) carry(from, to int, c []byte) error {
	t := o.t
	d := (to - from + t.n) % t.n
	for r := range t.rails {
		if d>>r&1 == 0 {
			continue
		}
		next := (from + 1<<r) % t.n
		var err error
		switch t.me {
		case from:
			err = o.rails.send(r, c)
		case next:
			err = o.rails.take(r, c)
		}
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}
