package am

import "github.com/ibconduit/conduit/internal/fabric"

// Payload is what a message carries beside its arguments. The zero value is nothing.
type Payload struct {
	cat   category
	bytes []byte
	off   uint64
	into  []byte
}

// Medium carries bytes that the handler is lent while it runs, at most Endpoint.MaxMedium.
func Medium(b []byte) Payload { return Payload{cat: medium, bytes: b} }

// Long carries bytes to an offset of the target's segment, where they are before the handler
// runs: at most 2^31-1, which one write over verbs carries.
func Long(off uint64, b []byte) Payload { return Payload{cat: long, bytes: b, off: off} }

// Into returns p for a call that brings memory for its reply: where that is a Medium no longer than
// b, it is copied there, and Reply.Data is the beginning of b; a longer one gets memory of its own.
// b is the call's until it ends. Posts do not look at it.
func (p Payload) Into(b []byte) Payload {
	p.into = b
	return p
}

// Reply is what a call came back with. Its zero value is the reply of a handler that made none.
type Reply struct {
	// Data is the payload: the caller's own of a Medium (see [Payload.Into]), a part of this rank's
	// segment of a Long.
	Data []byte
	n    uint8
	args [MaxArgs]uint64
}

// Len is the number of arguments.
func (r *Reply) Len() int { return int(r.n) }

// Arg returns argument i, and 0 for one that the reply does not have.
func (r *Reply) Arg(i int) uint64 {
	if uint(i) >= uint(r.n) {
		return 0
	}
	return r.args[i]
}

// Args are all arguments.
func (r *Reply) Args() []uint64 { return r.args[:r.n] }

// set fills in a zero reply. A Medium is copied, to into if that has room.
func (r *Reply) set(h *head, payload, into []byte) {
	r.n = h.nargs
	copy(r.args[:], h.args[:h.nargs])
	switch {
	case h.cat == medium && len(into) > 0 && len(payload) <= len(into):
		r.Data = into[:len(payload):len(payload)]
		copy(r.Data, payload)
	case h.cat == medium:
		r.Data = append([]byte{}, payload...)
	case h.cat == long:
		r.Data = payload
	}
}

// reset makes a reply zero again.
func (r *Reply) reset() {
	clear(r.args[:r.n])
	r.n, r.Data = 0, nil
}

const maxLong = 1<<31 - 1 // what one write over verbs carries (IBTA vol 1 §9.7.4: 2^31 bytes)

func (c *core) checkParts(rank int, p *Payload, args []uint64) error {
	switch {
	case len(args) > MaxArgs:
		return &SizeError{"arguments of a message", len(args), MaxArgs, "send the others as payload"}
	case p.cat == medium && len(p.bytes) > c.cfg.MaxMedium:
		return &SizeError{"a Medium payload in bytes", len(p.bytes), c.cfg.MaxMedium,
			"use a Long message, or a larger Config.MaxMedium"}
	case len(p.bytes) > maxLong:
		return &SizeError{"a Long payload in bytes", len(p.bytes), maxLong, "send it in parts"}
	case p.cat == long && c.cfg.SegmentSize != nil:
		return fabric.CheckRange("write", rank, p.off, uint64(len(p.bytes)), c.cfg.SegmentSize(rank))
	}
	return nil
}
