package am

import (
	"fmt"

	"github.com/ibconduit/conduit/fabric"
)

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

// Call is a request that arrived, while its handler runs. Nothing of it may be kept.
type Call struct {
	x       *inbox
	h       *Handler
	head    *head
	rank    int
	from    *peer // that is the rank; nil: this one
	payload []byte
	state   callState
	unfit   error          // of the last reply that the handler tried to make
	token   *DeferredReply // of Defer
}

type callState uint8

const (
	fresh callState = iota
	replied
	deferred
	over
)

// From is the rank that sent the request.
func (c *Call) From() int { return c.rank }

// Endpoint is where it arrived.
func (c *Call) Endpoint() *Endpoint { return c.x.self }

// Len is the number of arguments.
func (c *Call) Len() int { return int(c.head.nargs) }

// Arg returns argument i, and 0 for one that the request does not have.
func (c *Call) Arg(i int) uint64 {
	if uint(i) >= uint(c.head.nargs) {
		return 0
	}
	return c.head.args[i]
}

// Args are all arguments, lent.
func (c *Call) Args() []uint64 { return c.head.args[:c.head.nargs] }

// Payload are the bytes of a Medium, lent, or the part of the segment that a Long wrote.
func (c *Call) Payload() []byte { return c.payload }

// Offset is where in the segment a Long wrote, and whether it is one.
func (c *Call) Offset() (off uint64, ok bool) { return c.head.off, c.head.cat == long }

// Wanted reports whether the caller waits for a reply. To others a reply is dropped.
func (c *Call) Wanted() bool { return c.head.wants }

// Go has f run on a goroutine of its own, for which Quiesce, Drain and Close wait as for a function
// of a [Receiver]: it may send, call and wait. f must not panic.
func (c *Call) Go(f func()) {
	x := c.x // c is the next message's when the handler has returned
	x.mu.Lock()
	x.telling++
	x.mu.Unlock()
	x.cfg.Host.Go("of a handler", func() {
		defer func() {
			x.mu.Lock()
			x.telling--
			x.mu.Unlock()
		}()
		f()
	})
}

// Reply answers with arguments only. After an error the handler may reply with less; if it does
// not, the caller is told of the error.
func (c *Call) Reply(args ...uint64) error { return c.answer(&Payload{}, args) }

// ReplyWith answers with a payload, which may be reused at once.
func (c *Call) ReplyWith(p Payload, args ...uint64) error { return c.answer(&p, args) }

func (c *Call) answer(p *Payload, args []uint64) error {
	switch c.state {
	case replied:
		return ErrAnswered
	case deferred, over:
		return ErrOver
	}
	if p.cat != short || len(args) > MaxArgs {
		if c.unfit = c.x.checkParts(c.rank, p, args); c.unfit != nil {
			return c.unfit
		}
	}
	c.state = replied
	if !c.head.wants {
		c.x.stats.unwanted.Add(1)
		return nil
	}
	o := outgoing{kind: reply, cat: p.cat, token: c.head.token, payload: p.bytes, off: p.off}
	if c.from == nil || p.cat == long {
		return c.x.reply(c.rank, &o, args)
	}
	return c.x.replyTo(c.from, &o, args)
}

// replyForHandler is for one that returned without a reply: an empty one, or that its own did not
// fit.
func (c *Call) replyForHandler() error {
	if c.unfit == nil {
		return c.Reply()
	}
	c.state = replied
	return c.x.refuse(c.rank, c.head.token, TooLarge, c.unfit.Error())
}

const maxLong = 1<<31 - 1 // what one write over verbs carries (IBTA vol 1 §9.7.4: 2^31 bytes)

func (c *core) checkParts(rank int, p *Payload, args []uint64) error {
	switch {
	case len(args) > MaxArgs:
		return &SizeError{"arguments of a message", len(args), MaxArgs, "send the others as payload"}
	case p.cat == medium && len(p.bytes) > c.cfg.MaxMedium:
		return &SizeError{"a Medium payload in bytes", len(p.bytes), c.cfg.MaxMedium, "use a Long message, or a larger Config.MaxMedium"}
	case len(p.bytes) > maxLong:
		return &SizeError{"a Long payload in bytes", len(p.bytes), maxLong, "send it in parts"}
	case p.cat == long && c.cfg.SegmentSize != nil:
		return fabric.CheckRange("write", rank, p.off, uint64(len(p.bytes)), c.cfg.SegmentSize(rank))
	}
	return nil
}

// String names the request, for messages to people.
func (c *Call) String() string { return fmt.Sprintf("%q of rank %d", c.h.name, c.rank) }
