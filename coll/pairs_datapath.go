package coll

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

// pairs are the channels of an operation's team between any two members, in which data goes that
// rails would carry over detours. A receiver grants a place for each message; the sender writes the
// message there, and then the word of the pair. So memory does not grow with the members, but for
// two words each. Grants go ahead of arrivals, as far as there are places.
type pairs struct {
	step *step
	made *channels // nil before the first operation that needs them
}

// channels are their state.
type channels struct {
	sent, got []uint32 // messages to and from each member
	granted   []uint32 // places to each member
	used      []uint32 // of those that each has granted
	recent    []uint8  // the places of the last 4 grants to each, 2 bits each, the last one lowest

	given, taken uint64        // grants, and those whose messages were read, in the same order
	order        [places]uint8 // the places of those between the two, in a ring
	busy         uint8         // these places
	wants        []want        // what is not granted yet
	first        int           // of them

	near *near  // which members are mapped; nil before anything asks
	laid uint64 // pieces that went through the panes
}

// want is a run of messages that the operation will read.
type want struct{ from, messages int }

// channels are the team's, made when first used.
func (o *pairs) channels() *channels {
	if o.made == nil {
		n := o.step.t.n
		counts := make([]uint32, 4*n)
		o.made = &channels{sent: counts[:n], got: counts[n : 2*n], granted: counts[2*n : 3*n], used: counts[3*n:],
			recent: make([]uint8, n)}
	}
	return o.made
}

// A grant is a word in the sender's slot, by the receiver's rank:
// generation (24 bits), grants of the pair (8), kind (4), number of the operation (12), part of
// its hash (8), places of the last 4 grants (8).
func (o *pairs) grantWord(count uint32, from int, recent uint8) uint64 {
	return o.step.t.ticket(uint64(count))<<32 | o.step.signWith(from, o.step.data.in(from))>>8<<8 | uint64(recent)
}

// signWith is what messages of a pair have in common, in which n bytes go from one to the other: of
// operations in which that is the pair's own business it has the number as well.
func (o *step) signWith(_, n int) uint64 {
	if !o.data.varies {
		return o.sign
	}
	return o.sign ^ mix(0, uint64(n))&0xffff
}

// messages is how many a pair needs for n bytes. Where lengths are the pair's own business it is
// one at least, so that a mistake is found.
func (o *pairs) messages(n int) int {
	place := int(o.step.t.shared.shape.place)
	if n == 0 && o.step.data.varies {
		return 1
	}
	return (n + place - 1) / place
}

// expect has n bytes of a member granted when there are places. Members are expected in the order
// in which their messages are taken.
func (o *pairs) expect(from, n int) error {
	p := o.channels()
	if p.first == len(p.wants) {
		p.wants, p.first = p.wants[:0], 0
	}
	if m := o.messages(n); m > 0 {
		p.wants = append(p.wants, want{from, m})
	}
	return o.grant()
}

// width is how many places may be granted at a time: all, but where the job has a budget for
// transient memory as many as that has room for, and one in any case. The places belong to the
// slot, so no member waits for them; unused ones take no memory before they are first
// written.
func (t *membership) width() uint64 {
	if t.shared.budget == nil {
		return places
	}
	return 1 + min(uint64(t.shared.budget.Room())/t.shared.shape.place, places-1)
}

// pick takes the first free place, of which there must be one: so few are ever touched where few
// are granted at a time.
func (p *channels) pick() uint8 {
	place := uint8(bits.TrailingZeros8(^p.busy))
	p.busy |= 1 << place
	p.order[p.given%places] = place
	p.given++
	return place
}

// grant grants what there are places for.
func (o *pairs) grant() error {
	t, p := o.step.t, o.made
	width := t.width()
	for p.first < len(p.wants) {
		w := &p.wants[p.first]
		before := w.messages
		for w.messages > 0 && p.given-p.taken < width {
			p.granted[w.from]++
			p.recent[w.from] = p.recent[w.from]<<2 | p.pick()
			w.messages--
		}
		if w.messages == before {
			return nil
		}
		binary.NativeEndian.PutUint64(o.step.word[:], o.grantWord(p.granted[w.from], w.from, p.recent[w.from]))
		if err := t.shared.post(o.step.ctx, t.Member(w.from), t.off+t.shared.shape.grants+8*uint64(t.me),
			o.step.word[:]); err != nil {
			return err
		}
		if w.messages == 0 {
			p.first++
		}
	}
	return nil
}

// admitted waits for a grant to this member and returns the place.
func (o *pairs) admitted(to int) (place uint64, err error) {
	t, p := o.step.t, o.channels()
	w := word(t.mem, t.shared.shape.grants+8*uint64(to))
	for {
		v := atomic.LoadUint64(w)
		if ahead := t.aheadOf(v, p.used[to]); ahead > 0 {
			if v>>8&(1<<24-1) != o.step.signWith(to, o.step.data.out(to))>>8 {
				return 0, o.step.mismatch(to, Kind(v>>28&15))
			}
			return v >> (2 * uint(ahead-1) & 7) & (places - 1), nil
		}
		if err := o.step.wait(w, v); err != nil {
			return 0, err
		}
	}
}

// sendTo sends a message that fits a place to any member. data must not change until the operation
// has settled.
func (o *pairs) sendTo(to int, data []byte) error {
	t, p, s := o.step.t, o.channels(), &o.step.t.shared.shape
	place, err := o.admitted(to)
	if err != nil {
		return err
	}
	p.sent[to]++
	p.used[to]++
	if !o.step.health.paired.Load() {
		o.step.health.paired.Store(true)
	}
	return o.step.putWith(t.Member(to), t.off+s.places+place*s.place, data, t.off+s.arrivals+8*uint64(t.me),
		o.pairWord(to))
}

// pairWord says in the receiver's slot that the messages to it that were counted have arrived.
func (o *pairs) pairWord(to int) uint64 {
	return o.step.t.ticket(uint64(o.made.sent[to]))<<32 | o.step.signWith(to, o.step.data.out(to))
}

// arrived waits for the next message of a member.
func (o *pairs) arrived(from int) error {
	t, p := o.step.t, o.channels()
	w := word(t.mem, t.shared.shape.arrivals+8*uint64(from))
	for {
		v := atomic.LoadUint64(w)
		if ahead := t.aheadOf(v, p.got[from]); ahead > 0 {
			// Of several messages the word is the last one's, perhaps of the sender's next operation.
			if v&(1<<32-1) != o.step.signWith(from, o.step.data.in(from)) &&
				(ahead == 1 || v>>16&numberBits == o.step.number&numberBits) {
				return o.step.mismatch(from, Kind(v>>28&15))
			}
			p.got[from]++
			return nil
		}
		if err := o.step.wait(w, v); err != nil {
			return err
		}
	}
}

// receiveFrom waits for the next message of a member, which was expected, and returns its memory,
// valid until consumedPlace is called.
func (o *pairs) receiveFrom(from int) ([]byte, error) {
	t, p, s := o.step.t, o.channels(), &o.step.t.shared.shape
	if err := o.arrived(from); err != nil {
		return nil, err
	}
	at := s.places + uint64(p.order[p.taken%places])*s.place
	return t.mem[at : at+s.place], nil
}

// consumedPlace ends the use of a message's memory.
func (o *pairs) consumedPlace() error {
	p := o.made
	p.busy &^= 1 << p.order[p.taken%places]
	p.taken++
	return o.grant()
}

// noMember is the other member of half a swap.
const noMember = -1

// swap sends out to one member and receives in from another, which it has expected; one of them may
// be noMember. All members do so at once: as each sends one message and then receives one, none
// waits for one that waits for it.
func (o *pairs) swap(to int, out []byte, from int, in []byte) error {
	place := int(o.step.t.shared.shape.place)
	sends, takes := 0, 0
	if to != noMember {
		sends = o.messages(len(out))
	}
	if from != noMember {
		takes = o.messages(len(in))
	}
	for ; sends > 0 || takes > 0; sends, takes = sends-1, takes-1 {
		if sends > 0 {
			n := min(len(out), place)
			if err := o.sendTo(to, out[:n]); err != nil {
				return err
			}
			out = out[n:]
		}
		if takes > 0 {
			b, err := o.receiveFrom(from)
			if err != nil {
				return err
			}
			in = in[copy(in, b):]
			if err := o.consumedPlace(); err != nil {
				return err
			}
		}
	}
	return nil
}

// comparePairs finds a message or a grant of a pair that belongs to another operation with this
// one's number, or to an earlier one, which has ended here without it.
func (o *pairs) compare() error {
	t := o.step.t
	if o.made == nil && t.n > 64 {
		return nil // the time is not worth it
	}
	p, s := o.channels(), &t.shared.shape
	for i := range t.n {
		v := atomic.LoadUint64(word(t.mem, s.arrivals+8*uint64(i)))
		if t.aheadOf(v, p.got[i]) > 0 && o.step.begun(v) &&
			(!o.step.numbers(v) || o.step.data == nil || v&(1<<32-1) != o.step.signWith(i, o.step.data.in(i))) {
			return o.step.mismatch(i, Kind(v>>28&15))
		}
		v = atomic.LoadUint64(word(t.mem, s.grants+8*uint64(i)))
		if t.aheadOf(v, p.used[i]) > 0 && o.step.begun(v) &&
			(!o.step.numbers(v) || o.step.data == nil || v>>8&(1<<24-1) != o.step.signWith(i, o.step.data.out(i))>>8) {
			return o.step.mismatch(i, Kind(v>>28&15))
		}
	}
	return nil
}

// numbers reports whether a word has this operation's number, and begun whether it has that or an
// earlier one's.
func (o *step) numbers(w uint64) bool { return w>>16&numberBits == o.number&numberBits }
func (o *step) begun(w uint64) bool   { return (o.number-w>>16)&numberBits <= numberBits/2 }
