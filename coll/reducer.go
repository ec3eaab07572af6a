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

// unit is how long a message is at least that all ways of operations can carry.
func (o reducer) unit() int {
	s := &o.t.shared.shape
	return int(min(s.chunk, s.place, s.pane))
}

// whole is n bytes less what would be a part of an element.
func (d *payload) whole(n uint64) int { return int(n) / d.size * d.size }

// fold sets dst to dst op src. dst is of members before the ones of src.
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
		o.health.fail(o.kind, o.number, errExited) // nobody gets an error from here
		_ = o.land(context.WithoutCancel(o.ctx))
	}()
	o.data.fold.fold(dst, src)
	ended = true
	return nil
}

var errExited = errors.New("the function of a reduction ended its goroutine")

// foldBefore receives a message of members before the ones in acc, and puts both together.
func (o reducer) foldBefore(rail int, acc []byte) error {
	b, err := o.rails.receive(rail)
	if err != nil {
		return err
	}
	b = b[:len(acc)]
	if err := o.fold(b, acc); err != nil {
		return err
	}
	copy(acc, b)
	return o.rails.consumed(rail)
}

// collectWhole has a member reduce the elements of the first so many into its buffer, one after the
// other, with memory for two from the job's budget. The others have none, and all have begun the
// operation: so a member with memory waits for none that waits for some, whatever teams are at
// work, nor for a program that is elsewhere yet, where it may need this memory.
func (o reducer) collectWhole(at, members int) error {
	t, d, buf := o.t, o.data, o.data.dst.mem
	if t.me != at {
		if t.me >= members {
			return nil
		}
		for c := range slices.Chunk(buf, d.size) {
			if err := o.pairs.swap(at, c, noMember, nil); err != nil {
				return err
			}
			if err := o.collect(); err != nil {
				return err
			}
		}
		return o.settle(o.ctx)
	}
	if b := t.shared.budget; b != nil {
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
				if err := o.pairs.expect(i, d.size); err != nil {
					return err
				}
				if err := o.pairs.swap(noMember, nil, i, into); err != nil {
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
