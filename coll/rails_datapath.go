package coll

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/shm"
)

// spins is how often a rank looks for a message that its sender stores into memory, before it waits
// as others do; not where processors are short.
const spins = 1024

// rail is what a member has of one of its rails.
type rail struct {
	ahead  []byte // the slot of the member that it goes to, where stores reach it; else nil
	behind []byte // of the one that it comes from
	begin  uint64 // offset in a slot of its messages

	sent, got uint64 // messages
	read      uint64 // of those sent, that the receiver has read as far as this rank knows
	acked     uint64 // of those read here, that the sender knows of
}

// before is the member that a rail of this rank comes from, after the one that it goes to.
func (t *roster) before(rail int) int { return (t.me + t.n - 1<<rail) % t.n }
func (t *roster) after(rail int) int  { return (t.me + 1<<rail) % t.n }

// place is the offset in a slot of a message.
func (t *roster) place(r *rail, message uint64) uint64 {
	return r.begin + message%depth*t.teams.shape.entry
}

// ticket is the high 32 bits of a message's word: generation (24) and number in its rail (8).
func (t *roster) ticket(message uint64) uint64 { return uint64(t.generation)<<8 | message&0xff }

// send sends a message of at most shape.chunk bytes along a rail. data must not change until the
// operation has settled.
func (o *railing) send(rail int, data []byte) error {
	t := o.t
	r := &t.rail[rail]
	if r.sent-r.read >= depth {
		if err := o.credit(rail, r); err != nil {
			return err
		}
	}
	w, at := t.ticket(r.sent)<<32|o.sign, t.place(r, r.sent)
	r.sent++
	if r.ahead != nil {
		return t.store(r.ahead, at, w, data)
	}
	return o.post(t.Member(t.after(rail)), t.off+at, w, data)
}

// store writes a message into the slot of a member. As through a lane, nothing goes to a rank that
// is dead: that breaks the team.
func (t *health) store(slot []byte, at, w uint64, data []byte) error {
	if e := t.broken.Load(); e != nil {
		return e
	}
	if len(data) > 0 {
		copy(slot[at+wordBytes:], data)
	}
	shm.OrderStores()
	*word(slot, at) = w // one store, as of a lane: package fabric/shm, order.go
	return nil
}

// post puts a message into a rank's segment.
func (o *railing) post(rank int, at, w uint64, data []byte) error {
	return o.putWith(rank, at+wordBytes, data, at, w)
}

// putWith puts data into a rank's segment, and then a word, which tells that it is there. Both go
// through the lanes that all teams share, whatever the operation waits with: a flush of these ends
// all that a team has sent.
func (o *pairing) putWith(rank int, at uint64, data []byte, wordAt, w uint64) error {
	m := o.t.teams
	if err := m.shared.lock(o.ctx); err != nil {
		return err
	}
	defer m.shared.unlock()
	lane := m.lanes.To(rank)
	switch n := len(data); {
	case n > m.copyMax:
		h, err := lane.Put(rank, at, data, 0)
		if err != nil {
			return err
		}
		if h != fabric.Done {
			o.flights = append(o.flights, flight{lane: lane, h: h})
		}
	case n > 0:
		if _, err := lane.Put(rank, at, data, fabric.Implicit); err != nil {
			return err
		}
	}
	binary.NativeEndian.PutUint64(o.word[:], w)
	_, err := lane.Put(rank, wordAt, o.word[:], fabric.Implicit)
	return err
}

// credit waits until the receiver has read enough of a rail's messages for one more.
func (o *railing) credit(rail int, r *rail) error {
	t := o.t
	w := word(t.mem, t.teams.shape.acks+8*uint64(rail))
	for {
		v := atomic.LoadUint64(w)
		if uint32(v>>40) == t.generation {
			r.read = max(r.read, v&(1<<40-1))
		}
		if r.sent-r.read < depth {
			return nil
		}
		if err := o.wait(w, v); err != nil {
			return err
		}
	}
}

// receive waits for the next message of a rail and returns the memory that its data is in, which is
// valid until consumed is called.
func (o *railing) receive(rail int) ([]byte, error) {
	t := o.t
	r := &t.rail[rail]
	at := t.place(r, r.got)
	if err := o.arrives(rail, word(t.mem, at), t.ticket(r.got)); err != nil {
		return nil, err
	}
	shm.OrderLoads()
	at += wordBytes
	return t.mem[at : at+t.teams.shape.chunk], nil
}

// arrives waits for the word of a message.
func (o *railing) arrives(rail int, w *uint64, want uint64) error {
	v := atomic.LoadUint64(w)
	if v>>32 != want && o.t.rail[rail].behind != nil && !o.t.teams.crowded {
		for n := 0; n < spins && v>>32 != want; n++ {
			v = atomic.LoadUint64(w)
		}
	}
	for v>>32 != want {
		if err := o.wait(w, v); err != nil {
			return err
		}
		v = atomic.LoadUint64(w)
	}
	return o.check(rail, v)
}

// consumed ends the use of a message. Every second one is acknowledged: a sender that has no credit
// has depth messages that are not, of which at least half must be read before it goes on.
func (o *railing) consumed(rail int) error {
	r := &o.t.rail[rail]
	r.got++
	if o.mute || r.got-r.acked < depth/2 {
		return nil
	}
	return o.acknowledge(rail, r)
}

func (o *railing) acknowledge(rail int, r *rail) error {
	t := o.t
	r.acked = r.got
	w, at := uint64(t.generation)<<40|r.got&(1<<40-1), t.teams.shape.acks+8*uint64(rail)
	if r.behind != nil {
		return t.store(r.behind, at, w, nil)
	}
	binary.NativeEndian.PutUint64(o.word[:], w)
	return t.teams.post(o.ctx, t.Member(t.before(rail)), t.off+at, o.word[:])
}

// met ends a part of an operation in which each member has sent one message on each rail, without
// acknowledgements, and has waited until all others had begun it. What was sent before it has been
// read then, as members do one thing after the other, and both sides of a rail know that.
func (o *railing) met() {
	for i := range o.t.rail {
		r := &o.t.rail[i]
		r.read, r.acked = r.sent-1, r.got-1
	}
	o.mute = false
}

// take receives a message into memory that is as long as its data.
func (o *railing) take(rail int, dst []byte) error {
	b, err := o.receive(rail)
	if err != nil {
		return err
	}
	copy(dst, b)
	return o.consumed(rail)
}

// exchange sends out along a rail, and receives in from it, one message after the other. All
// members do so at once, and none of them is more than depth messages ahead of the next.
func (o *railing) exchange(rail int, out, in []byte) error {
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
func (t *roster) lowest(v int) int {
	if v == 0 {
		return t.rails
	}
	return bits.TrailingZeros(uint(v))
}

// mirrored is this member's number when they are counted down from root, and the rail to its parent
// in a binomial tree, whose number lacks its lowest bit. The members below it are those before it.
func (t *roster) mirrored(root int) (v, low int) {
	v = (root - t.me + t.n) % t.n
	return v, t.lowest(v)
}
