package coll

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/ibconduit/conduit/fabric"
)

// before is the member that a rail of this rank comes from, after the one that it goes to.
func (t *Team) before(rail int) int { return (t.me + t.n - 1<<rail) % t.n }
func (t *Team) after(rail int) int  { return (t.me + 1<<rail) % t.n }

// place is the offset in a slot of a message of a rail.
func (t *Team) place(rail int, message uint64) uint64 {
	return t.teams.shape.entries + (uint64(rail)*depth+message%depth)*t.teams.shape.entry
}

// ticket is the high 32 bits of a message's word: generation (24) and number in its rail (8).
func (t *Team) ticket(message uint64) uint64 { return uint64(t.generation)<<8 | message&0xff }

// arrival is the word of the next message of a rail, expected what its high bits will be.
func (t *Team) arrival(rail int) *uint64 { return word(t.mem, t.place(rail, t.got[rail])) }
func (t *Team) expected(rail int) uint64 { return t.ticket(t.got[rail]) }

// send sends a message of at most shape.chunk bytes along a rail. data must not change until the
// operation has settled.
func (o *op) send(rail int, data []byte) error {
	t := o.t
	if err := o.credit(rail); err != nil {
		return err
	}
	rank, message := t.Member(t.after(rail)), t.sent[rail]
	at := t.off + t.place(rail, message)
	binary.NativeEndian.PutUint64(o.word[:], t.ticket(message)<<32|o.sign)
	t.sent[rail]++
	lanes := o.lanes
	if lanes == nil {
		lanes = t.teams.lanes
		if err := t.teams.shared.lock(o.ctx); err != nil {
			return err
		}
		defer t.teams.shared.unlock()
	}
	lane := lanes.To(rank)
	if len(data) > 0 {
		if err := o.put(lane, rank, at+line, data, true); err != nil {
			return err
		}
	}
	return o.put(lane, rank, at, o.word[:], false)
}

// put puts through the lanes of the operation.
func (o *op) put(lane fabric.Lane, rank int, off uint64, data []byte, isData bool) error {
	var flag fabric.Flag
	isData = isData && len(data) > o.t.teams.copyMax
	if o.lanes == nil && !isData {
		flag = fabric.Implicit // the flush of the shared lanes is ours
	}
	h, err := lane.Put(rank, off, data, flag)
	if err == nil && h != fabric.Done {
		o.flights = append(o.flights, flight{lane: lane, h: h, data: isData})
	}
	return err
}

// credit waits until the receiver has read enough of a rail's messages for one more.
func (o *op) credit(rail int) error {
	t := o.t
	w := word(t.mem, t.teams.shape.acks+8*uint64(rail))
	for {
		v := atomic.LoadUint64(w)
		var read uint64
		if uint32(v>>40) == t.generation {
			read = v & (1<<40 - 1)
		}
		if t.sent[rail]-read < depth {
			return nil
		}
		if err := o.wait(w, v); err != nil {
			return err
		}
	}
}

// receive waits for the next message of a rail and returns the memory that its data is in, which is
// valid until consumed is called.
func (o *op) receive(rail int) ([]byte, error) {
	t := o.t
	w, want := t.arrival(rail), t.expected(rail)
	for {
		v := atomic.LoadUint64(w)
		if v>>32 == want {
			if err := o.check(rail, v); err != nil {
				return nil, err
			}
			at := t.place(rail, t.got[rail]) + line
			return t.mem[at : at+t.teams.shape.chunk], nil
		}
		if err := o.wait(w, v); err != nil {
			return nil, err
		}
	}
}

// consumed ends the use of a message. Every second one is acknowledged: a sender that has no credit
// has depth messages that are not, of which at least half must be read before it goes on.
func (o *op) consumed(rail int) error {
	t := o.t
	t.got[rail]++
	if o.mute || t.got[rail]-t.acked[rail] < depth/2 {
		return nil
	}
	t.acked[rail] = t.got[rail]
	// Through the shared lanes always: two lanes could deliver two of these in the wrong order.
	binary.NativeEndian.PutUint64(o.word[:], uint64(t.generation)<<40|t.got[rail]&(1<<40-1))
	return t.teams.post(o.ctx, t.Member(t.before(rail)), t.off+t.teams.shape.acks+8*uint64(rail), o.word[:])
}

// take receives a message into memory that is as long as its data.
func (o *op) take(rail int, dst []byte) error {
	b, err := o.receive(rail)
	if err != nil {
		return err
	}
	copy(dst, b)
	return o.consumed(rail)
}

// exchange sends out along a rail, and receives in from it, one message after the other. All
// members do so at once, and none of them is more than depth messages ahead of the next.
func (o *op) exchange(rail int, out, in []byte) error {
	chunk := int(o.t.teams.shape.chunk)
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

// lowest is the lowest set bit of a number of members in a binomial tree: the rail to its parent,
// or from it. Those below are to children. The root's are all.
func (t *Team) lowest(v int) int {
	if v == 0 {
		return t.rails
	}
	return bits.TrailingZeros(uint(v))
}
