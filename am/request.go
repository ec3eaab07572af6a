package am

import (
	"fmt"
)

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
	x.functions++
	x.mu.Unlock()
	x.cfg.Host.Go("of a handler", func() {
		defer func() {
			x.mu.Lock()
			x.functions--
			x.mu.Unlock()
		}()
		f()
	})
}

// Reply answers with arguments only. After an error the handler may reply with less; if it does
// not, the caller gets the error.
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
		return c.x.replier.reply(c.rank, &o, args)
	}
	return c.x.replier.replyTo(c.from, &o, args)
}

// replyForHandler is for one that returned without a reply: an empty one, or that its own did not
// fit.
func (c *Call) replyForHandler() error {
	if c.unfit == nil {
		return c.Reply()
	}
	c.state = replied
	return c.x.replier.refuse(c.rank, c.head.token, TooLarge, c.unfit.Error())
}

// String names the request, for messages to people.
func (c *Call) String() string { return fmt.Sprintf("%q of rank %d", c.h.name, c.rank) }
