package coll

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/fabric/shm"
)

// spins is how often a rank looks for a message that its sender stores into memory, before it waits
// as others do; not where processors are short.
const spins = 1024

// rails are the rails of an operation's team: each sends to a neighbour by numbered words and data
// in that one's memory.
type rails struct {
	step *step
	rail []rail
}

// rail is what a member has of one of its rails.
type rail struct {
	ahead  []byte // the slot of the member that it goes to, where stores reach it; else nil
	behind []byte // of the one that it comes from
	begin  uint64 // offset in a slot of its messages

	sent, got uint64 // messages
	read      uint64 // of those sent, that the receiver has read as far as this rank knows
	acked     uint64 // of those read here, that the sender knows of
}

// newRails connects a team's rails: members that stores reach are found once.
func newRails(o *step) rails {
	t := o.t
	s := t.shared
	all := make([]rail, t.rails)
	for i := range all {
		r := &all[i]
		r.ahead, r.behind = s.near(t.Member(t.after(i)), t.off), s.near(t.Member(t.before(i)), t.off)
		r.begin = s.shape.entries + uint64(i)*depth*s.shape.entry
	}
	return rails{step: o, rail: all}
}

// place is the offset in a slot of a message.
func (o *rails) place(r *rail, message uint64) uint64 {
	return r.begin + message%depth*o.step.t.shared.shape.entry
}

// send sends a message of at most shape.chunk bytes along a rail. data must not change until the
// operation has settled.
func (o *rails) send(rail int, data []byte) error {
	t := o.step.t
	r := &o.rail[rail]
	if r.sent-r.read >= depth {
		if err := o.credit(rail, r); err != nil {
			return err
		}
	}
	w, at := t.ticket(r.sent)<<32|o.step.sign, o.place(r, r.sent)
	r.sent++
	if r.ahead != nil {
		return o.store(r.ahead, at, w, data)
	}
	return o.post(t.Member(t.after(rail)), t.off+at, w, data)
}

// store writes a message into the slot of a member. As through a lane, nothing goes to a rank that
// is dead: that breaks the team.
func (o *rails) store(slot []byte, at, w uint64, data []byte) error {
	if e := o.step.health.broken.Load(); e != nil {
		return e
	}
	if len(data) > 0 {
		copy(slot[at+wordBytes:], data)
	}
	shm.OrderStores()
	*word(slot, at) = w // one store, as of a lane: package internal/fabric/shm, order.go
	return nil
}

// post puts a message into a rank's segment.
func (o *rails) post(rank int, at, w uint64, data []byte) error {
	return o.step.putWith(rank, at+wordBytes, data, at, w)
}

// credit waits until the receiver has read enough of a rail's messages for one more.
func (o *rails) credit(rail int, r *rail) error {
	t := o.step.t
	w := word(t.mem, t.shared.shape.acks+8*uint64(rail))
	for {
		v := atomic.LoadUint64(w)
		if uint32(v>>40) == t.generation {
			r.read = max(r.read, v&(1<<40-1))
		}
		if r.sent-r.read < depth {
			return nil
		}
		if err := o.step.wait(w, v); err != nil {
			return err
		}
	}
}

// receive waits for the next message of a rail and returns the memory that its data is in, which is
// valid until consumed is called.
func (o *rails) receive(rail int) ([]byte, error) {
	t := o.step.t
	r := &o.rail[rail]
	at := o.place(r, r.got)
	if err := o.arrives(rail, word(t.mem, at), t.ticket(r.got)); err != nil {
		return nil, err
	}
	shm.OrderLoads()
	at += wordBytes
	return t.mem[at : at+t.shared.shape.chunk], nil
}

// arrives waits for the word of a message.
func (o *rails) arrives(rail int, w *uint64, want uint64) error {
	v := atomic.LoadUint64(w)
	if v>>32 != want && o.rail[rail].behind != nil && !o.step.t.shared.crowded {
		for n := 0; n < spins && v>>32 != want; n++ {
			v = atomic.LoadUint64(w)
		}
	}
	for v>>32 != want {
		if err := o.step.wait(w, v); err != nil {
			return err
		}
		v = atomic.LoadUint64(w)
	}
	return o.step.check(rail, v)
}

// consumed ends the use of a message. Every second one is acknowledged: a sender that has no credit
// has depth messages that are not, of which at least half must be read before it goes on.
func (o *rails) consumed(rail int) error {
	r := &o.rail[rail]
	r.got++
	if o.step.mute || r.got-r.acked < depth/2 {
		return nil
	}
	return o.acknowledge(rail, r)
}

func (o *rails) acknowledge(rail int, r *rail) error {
	t := o.step.t
	r.acked = r.got
	w, at := uint64(t.generation)<<40|r.got&(1<<40-1), t.shared.shape.acks+8*uint64(rail)
	if r.behind != nil {
		return o.store(r.behind, at, w, nil)
	}
	binary.NativeEndian.PutUint64(o.step.word[:], w)
	return t.shared.post(o.step.ctx, t.Member(t.before(rail)), t.off+at, o.step.word[:])
}

// met ends a part of an operation in which each member has sent one message on each rail, without
// acknowledgements, and has waited until all others had begun it. Earlier messages have been
// read then, as members do one thing after the other, and both sides of a rail know that.
func (o *rails) met() {
	for i := range o.rail {
		r := &o.rail[i]
		r.read, r.acked = r.sent-1, r.got-1
	}
	o.step.mute = false
}

// take receives a message into memory that is as long as its data.
func (o *rails) take(rail int, dst []byte) error {
	b, err := o.receive(rail)
	if err != nil {
		return err
	}
	copy(dst, b)
	return o.consumed(rail)
}

// exchange sends out along a rail, and receives in from it, one message after the other. All
// members do so at once, and none of them is more than depth messages ahead of the next.
func (o *rails) exchange(rail int, out, in []byte) error {
	chunk := int(o.step.t.shared.shape.chunk)
	for at := 0; at < len(out) || at < len(in); at += chunk {
		if at < len(out) {
			if err := o.send(rail, out[at:min(at+chunk, len(out))]); err != nil {
				return err
			}
		}
		if at < len(in) {
			if err := o.take(rail, in[at:min(at+chunk, len(in))]); err != nil {
				return err
			}
		}
	}
	return nil
}
