package measure

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
)

// inbox counts the posts of one goroutine. One addition counts a message and adds up the numbers of
// all: number<<32 + 1. So one that is lost, or comes twice, shows.
type inbox struct {
	sum atomic.Uint64
	_   [56]byte // a line of its own
}

// inboxAfter is the sum of the messages 0 to n-1.
func inboxAfter(n uint64) uint64 { return (n*(n-1)/2)<<32 + n }

// everyPayload is how many Mediums there are to one that is compared byte by byte.
const everyPayload = 64

// onEcho answers a call with its payload and its number, inverted.
func (m *messages) onEcho(c *am.Call) {
	if p := c.Payload(); len(p) > 0 {
		_ = c.ReplyWith(am.Medium(p), ^c.Arg(0)) // an answer that is not sent is missed by the caller
		return
	}
	_ = c.Reply(^c.Arg(0))
}

// onTake counts a post: of goroutine Arg(0)>>32, message uint32(Arg(0)). With one argument 8 bytes
// and their head fit into a cache line.
func (m *messages) onTake(c *am.Call) {
	from, number, p, x := c.Arg(0)>>32, c.Arg(0)&math.MaxUint32, c.Payload(), m.posts.Load()
	if from >= uint64(len(x.inbox)) || len(p) != len(x.want) || number%everyPayload == 0 && !bytes.Equal(p, x.want) {
		x.wrong.Add(1)
		return
	}
	x.inbox[from].sum.Add(number<<32 + 1)
}

func (m *messages) onTaken(c *am.Call) {
	if from, x := c.Arg(0), m.posts.Load(); from < uint64(len(x.inbox)) {
		_ = c.Reply(x.inbox[from].sum.Load(), x.wrong.Load())
	}
}

func (m *messages) onOver(*am.Call) {
	m.ended.Add(1)
	select {
	case m.quit <- struct{}{}:
	default:
	}
}

// caller times round trips.
type caller struct {
	m        *messages
	endpoint *am.Endpoint
	peer     int
	payload  []byte // empty: a Short
	answer   []byte // memory for the echo of one
	number   uint64
	wrong    int64 // replies that were not what they should be
}

// repeat makes k calls, each answered before the next.
func (c *caller) repeat(ctx context.Context, k int) error {
	if len(c.payload) > 0 {
		return c.mediums(ctx, k)
	}
	for range k {
		r, err := c.m.echo.Call(ctx, c.endpoint, c.peer, c.number)
		if err != nil {
			return err
		}
		if r.Arg(0) != ^c.number {
			c.wrong++
		}
		c.number++
	}
	return nil
}

func (c *caller) mediums(ctx context.Context, k int) error {
	p := am.Medium(c.payload).Into(c.answer)
	for range k {
		r, err := c.m.echo.CallWith(ctx, c.endpoint, c.peer, p, c.number)
		if err != nil {
			return err
		}
		if r.Arg(0) != ^c.number || len(r.Data) != len(c.payload) || c.number%everyPayload == 0 &&
			!bytes.Equal(r.Data, c.payload) {
			c.wrong++
		}
		c.number++
	}
	return nil
}

// poster sends the posts of one goroutine.
type poster struct {
	m        *messages
	endpoint *am.Endpoint
	peer     int
	id       uint64
	payload  []byte
	number   uint64
}

// post sends n of them. What limits those in flight are the endpoint's credits and send buffers.
func (p *poster) post(ctx context.Context, n int) error {
	medium := am.Medium(p.payload)
	for range n {
		var err error
		arg := p.id<<32 | p.number&math.MaxUint32
		if len(p.payload) > 0 {
			err = p.m.take.PostWith(ctx, p.endpoint, p.peer, medium, arg)
		} else {
			err = p.m.take.Post(ctx, p.endpoint, p.peer, arg)
		}
		if err != nil {
			return err
		}
		p.number++
	}
	return nil
}

// drainTime bounds the wait for posts that were sent.
const drainTime = 30 * time.Second

// drain waits until the peer has handled every post.
func (p *poster) drain(ctx context.Context) error {
	for begin := now(); ; {
		r, err := p.m.taken.Call(ctx, p.endpoint, p.peer, p.id)
		if err != nil {
			return err
		}
		got, wrong := r.Arg(0), r.Arg(1)
		if got == inboxAfter(p.number) || wrong > 0 && uint64(uint32(got))+wrong >= p.number {
			return nil
		}
		if now()-begin > int64(drainTime) {
			return fmt.Errorf("%d posts were sent, the peer has handled %d of them and %d wrong ones within %v", p.number,
				uint32(got), wrong, drainTime)
		}
	}
}
