package coll

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"time"
)

// op is an operation that runs. A team has one at a time.
type op struct {
	step
	rails rails // to neighbours
	pairs pairs // to any member

	since    time.Duration // when it was found to wait; 0: not yet
	notified bool
}

// init makes the operation of a team; its waits look.
func (o *op) init(t *membership, h *health) {
	o.t, o.health, o.looks = t, h, o.look
	o.rails = newRails(&o.step)
	o.pairs.step = &o.step
}

// look ends a wait that cannot come to its end. It is called now and then.
func (o *op) look() error {
	if e := o.health.known(); e != nil {
		return e
	}
	select {
	case <-o.t.shared.env.Context().Done():
		return errClosing
	default:
	}
	if err := o.compare(); err != nil {
		return err
	}
	switch now := o.t.shared.env.Host().Now(); {
	case o.since == 0:
		o.since = max(now, 1)
	case !o.notified && now-o.since > noticeAfter:
		o.notified = true
		if err := o.notify(o.noticeWord()); err != nil {
			return err
		}
	}
	return o.t.shared.poll()
}

// noticeAfter is how long a member waits before it announces its operation to others: members in
// different operations may all wait for a message, and send none.
const noticeAfter = 10 * time.Millisecond

// notice writes what this member is in into the slots of those that it sends to on rails; 0: it is
// not any more. What arrives late, in the slot of another team even, says nothing there.
func (o *op) notify(w uint64) error {
	t := o.t
	binary.NativeEndian.PutUint64(o.word[:], w)
	for r := range t.rails {
		if err := t.shared.post(o.ctx, t.Member(t.after(r)), t.off+t.shared.shape.notices+8*uint64(r),
			o.word[:]); err != nil {
			return err
		}
	}
	return nil
}

// noticeWord is what a notice says: generation (24 bits), kind (4), number of the operation (20),
// and hash (16) as in messages.
func (o *op) noticeWord() uint64 {
	return uint64(o.t.generation)<<40 | uint64(o.kind)<<36 | o.number&(1<<20-1)<<16 | o.sign&0xffff
}

// compare finds a message, or a notice, of another operation with this one's number, on whatever
// rail.
func (o *op) compare() error {
	const which = generations<<40 | (1<<20-1)<<16
	mine := o.noticeWord()
	for r := range o.t.rails {
		k := atomic.LoadUint64(word(o.t.mem, o.t.shared.shape.notices+8*uint64(r)))
		if k != mine && k&which == mine&which {
			return o.mismatch(o.t.before(r), Kind(k>>36&15))
		}
		rail := &o.rails.rail[r]
		w := atomic.LoadUint64(word(o.t.mem, o.rails.place(rail, rail.got)))
		if w>>32 != o.t.ticket(rail.got) || w>>16&numberBits != o.number&numberBits {
			continue
		}
		if err := o.check(r, w); err != nil {
			return err
		}
	}
	return o.pairs.compare()
}

// bind has the operation's messages distinguish members with other lengths or types.
func (o *op) bind() {
	d := o.data
	h := mix(mix(uint64(d.each), uint64(d.size)), uint64(d.kind))
	s := &o.t.shared.shape
	h = mix(mix(h, uint64(s.short)), uint64(s.long)) // on which the way depends
	if d.varies {
		h = bits.ReverseBytes64(h) + 1
	}
	o.sign ^= h & 0xffff
}
