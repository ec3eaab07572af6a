package coll

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
)

// reducer is an operation that puts members' data together. Moving data is op's, which calls
// nothing of this.
type reducer struct{ *op }

// allReduce chooses by length: short, all data is gathered; else each member reduces a share, in
// mapped memory or as it arrives; between the two it goes up a tree and down another.
func allReduce(o *op) error { return reducer{o}.reduceTo(-1) }

func reduceToRoot(o *op) error { return reducer{o}.reduceTo(o.root) }

// reduceTo reduces to a root; -1: to all.
func (o reducer) reduceTo(root int) error {
	o.bind()
	t, s, buf := o.t, &o.t.teams.shape, o.data.dst.mem
	switch {
	case len(buf) == 0:
		return o.meet() // which finds mistakes
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

// unit is how long a message is at least that all ways of operations can carry.
func (o reducer) unit() int {
	s := &o.t.teams.shape
	return int(min(s.chunk, s.place, s.pane))
}

// whole is n bytes less what would be a part of an element.
func (d *payload) whole(n uint64) int { return int(n) / d.size * d.size }

// desk is memory of this member's alone.
func (t *roster) desk() []byte {
	s := &t.teams.shape
	return t.mem[s.scratch : s.scratch+s.desk]
}

// fold sets dst to dst op src. dst is of members before those of src.
func (o reducer) fold(dst, src []byte) (err error) {
	if len(dst) == 0 {
		return nil
	}
	ended := false
	defer func() {
		if ended {
			return
		}
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
			return
		}
		o.t.fail(o.kind, o.number, errExited) // nobody gets an error from here
		_ = o.land(context.WithoutCancel(o.ctx))
	}()
	o.data.fold.fold(dst, src)
	ended = true
	return nil
}

var errExited = errors.New("the function of a reduction ended its goroutine")

// reduceTwo is reduceGathered of two members and one message each: what arrives is reduced where it
// lies.
func (o reducer) reduceTwo(buf []byte) error {
	o.mute = true
	if err := o.send(0, buf); err != nil {
		return err
	}
	other, err := o.receive(0)
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
		err = o.consumed(0)
	}
	o.met()
	return err
}

// reduceGathered has each member, or root, reduce the data of all, in the order of ranks.
func (o reducer) reduceGathered(root int, buf []byte) error {
	t, n := o.t, len(buf)
	all := t.desk()[:t.n*n]
	from := t.me // blocks are those of the members before it
	if root < 0 {
		copy(all, buf)
		if err := o.bruckEqual(all, n); err != nil {
			return err
		}
	} else {
		if err := o.gatherUp(all, buf); err != nil || t.me != root {
			return err
		}
		from = root
	}
	if err := o.settle(o.ctx); err != nil {
		return err
	}
	return o.reduceRanks(all, from, t.n, buf)
}

// reduceRanks reduces the blocks of the first members into buf. all has those of the members before
// one, the nearest first, beginning with its own.
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
	if err := o.meet(); err != nil { // see collectWhole
		return err
	}
	if err := o.collectWhole(max(root, 0), o.t.n); err != nil || root >= 0 {
		return err
	}
	for c := range slices.Chunk(o.data.dst.mem, int(o.t.teams.shape.chunk)) {
		if err := o.down(0, c); err != nil {
			return err
		}
	}
	return nil
}

// collectWhole has a member reduce the elements of the first so many into its buffer, one after the
// other, with memory for two from the job's budget. The others have none, and all have begun the
// operation: so who has memory waits for nobody who waits for some, whatever teams are at work, nor
// for a program that is elsewhere yet, where it may need this memory.
func (o reducer) collectWhole(at, members int) error {
	t, d, buf := o.t, o.data, o.data.dst.mem
	if t.me != at {
		if t.me >= members {
			return nil
		}
		for c := range slices.Chunk(buf, d.size) {
			if err := o.swap(at, c, nobody, nil); err != nil {
				return err
			}
			if err := o.collect(); err != nil {
				return err
			}
		}
		return o.settle(o.ctx)
	}
	if b := t.teams.budget; b != nil {
		if err := o.acquire(b, 2*int64(d.size)); err != nil {
			return err
		}
		defer b.Release(2 * int64(d.size))
	}
	both := make([]byte, 2*d.size)
	acc, in := both[:d.size], both[d.size:]
	for c := range slices.Chunk(buf, d.size) {
		for i := range members {
			src, into := c, in
			if i == 0 {
				into = acc
			}
			if i != at {
				if err := o.expect(i, d.size); err != nil {
					return err
				}
				if err := o.swap(nobody, nil, i, into); err != nil {
					return err
				}
				src = into
			}
			if i == 0 {
				copy(acc, src)
			} else if err := o.fold(acc, src); err != nil {
				return err
			}
		}
		copy(c, acc)
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
		acc := t.desk()[:len(c)]
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
	return o.send(low, acc)
}

// foldBefore receives a message of members before those whose data acc has, and puts both together.
func (o reducer) foldBefore(rail int, acc []byte) error {
	b, err := o.receive(rail)
	if err != nil {
		return err
	}
	b = b[:len(acc)]
	if err := o.fold(b, acc); err != nil {
		return err
	}
	copy(acc, b)
	return o.consumed(rail)
}

// down sends a message from one member to all, down the tree of a broadcast.
func (o reducer) down(root int, c []byte) error {
	t := o.t
	me := (t.me - root + t.n) % t.n
	low := t.lowest(me)
	if me != 0 {
		if err := o.take(low, c); err != nil {
			return err
		}
	}
	return o.pass(me, low, c)
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
			err = o.send(r, c)
		case next:
			err = o.take(r, c)
		}
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}
