package am

import (
	"context"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Prepared is a Medium request whose payload the program writes where the device reads it. It ends
// with Commit, CommitCall or Cancel. One goroutine at a time uses it. An endpoint with prepared
// messages cannot be closed.
type Prepared struct {
	l    *Endpoint
	h    *Handler
	rank int
	size int
	buf  fabric.SendBuf
	over bool
	v    Via
}

// Prepare takes a send buffer for a payload of size bytes, and waits for it if need be; with
// [NoWait] it returns ErrNoBuffer then.
func (h *Handler) Prepare(ctx context.Context, v Via, rank, size int) (*Prepared, error) {
	if ctx != NoWait && ctx.Err() != nil {
		return nil, h.failed("prepare", rank, context.Cause(ctx))
	}
	l := laneOf(v, rank)
	if l == nil {
		return nil, h.failed("prepare", rank, ErrNoEndpoint)
	}
	if err := h.checkPrepare(l, rank, size); err != nil {
		return nil, err
	}
	var c claim
	err := l.reserve(l.core.known(rank), &c, l.core.acquirer.try)
	if err == ErrNoBuffer && ctx != NoWait {
		c.buf, err = h.awaitBuffer(ctx, l, rank)
	}
	if err != nil {
		return nil, err
	}
	return &Prepared{l: l, h: h, rank: rank, size: size, buf: c.buf, v: v}, nil
}

// awaitBuffer waits for a send buffer.
func (h *Handler) awaitBuffer(ctx context.Context, l *Endpoint, rank int) (fabric.SendBuf, error) {
	w := l.progress.waiter()
	defer l.progress.recycle(w)
	l.progress.begin(w, "prepare", h, rank)
	err := l.reserve(l.core.known(rank), &w.claim, l.core.acquirer.acquire)
	if err == ErrNoBuffer {
		if err = l.awaitClaim(ctx, w, request); err != nil {
			l.abandon(w)
		}
	}
	return w.claim.buf, h.failed("prepare", rank, err)
}

// TryPrepare is Prepare with [NoWait].
//
// Deprecated: Use Prepare with [NoWait].
func (h *Handler) TryPrepare(v Via, rank, size int) (*Prepared, error) {
	return h.Prepare(NoWait, v, rank, size)
}

func (h *Handler) checkPrepare(l *Endpoint, rank, size int) error {
	if err := h.check("prepare", l, rank, &Payload{}, nil); err != nil {
		return err
	}
	if l.core.cfg.Prepares == 0 {
		return &SizeError{"messages prepared at once", 1, 0,
			"Config.Prepares must be at least 1, and less than Config.Sends"}
	}
	if size < 0 || size > l.core.cfg.MaxMedium {
		return &SizeError{"a Medium payload in bytes", size, l.core.cfg.MaxMedium,
			"use a Long message, or a larger Config.MaxMedium"}
	}
	return nil
}

// reserve takes a send buffer for the program, in a way of the acquirer's. The buffer is counted
// before another goroutine can end the endpoint: Close takes its memory.
func (l *Endpoint) reserve(p *peer, c *claim, take func(*claim) bool) error {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if err := l.core.refusalLocked(request); err != nil {
		return err
	}
	*c = claim{p: p, needs: needsPrepare, w: c.w}
	if !take(c) {
		l.core.stats.noBuffer.Add(1)
		return ErrNoBuffer
	}
	return nil
}

// Bytes is where the payload goes, until the end of the Prepared.
func (p *Prepared) Bytes() []byte {
	if p.over {
		return nil
	}
	return p.buf.Data[headSize : headSize+p.size : headSize+p.size]
}

// Cancel gives the buffer back unused. It does nothing after the end.
func (p *Prepared) Cancel() {
	if p.over {
		return
	}
	l := p.l
	p.over = true
	l.core.mu.Lock()
	l.core.acquirer.cancel(p.buf)
	l.core.mu.Unlock()
}

// out is the message; its payload is in the buffer.
func (p *Prepared) out() outgoing {
	return outgoing{kind: request, cat: medium, handler: p.h.index, payload: p.Bytes(), buf: &p.buf}
}

// ready is admit, for a Prepared that must not have ended.
func (p *Prepared) ready(ctx context.Context, args []uint64) error {
	if p.over {
		return ErrOver
	}
	if ctx != NoWait && ctx.Err() != nil {
		return p.h.failed("commit", p.rank, context.Cause(ctx))
	}
	err := p.h.check("commit", p.l, p.rank, &Payload{}, args)
	if err == nil && p.l.core.cfg.Fencer != nil {
		err = p.h.order(ctx, "commit", p.v, p.l, p.rank, &Payload{})
	}
	return err
}

// Commit sends the message like Post. Whatever it returns, the Prepared has ended, but with
// [NoWait]: then it is unchanged after an error.
func (p *Prepared) Commit(ctx context.Context, args ...uint64) error {
	err := p.ready(ctx, args)
	if ctx == NoWait {
		return p.commitNow(err, args)
	}
	if err != nil {
		p.Cancel()
		return err
	}
	o := p.out()
	if err := p.first(&o, args); !passing(err) {
		return p.h.failed("post", p.rank, err)
	}
	return p.h.postOut(ctx, p.l, p.rank, &o, args)
}

// TryCommit is Commit with [NoWait].
//
// Deprecated: Use Commit with [NoWait].
func (p *Prepared) TryCommit(args ...uint64) error { return p.Commit(NoWait, args...) }

// commitNow sends the message unless there is an error, or returns the obstacle.
func (p *Prepared) commitNow(err error, args []uint64) error {
	if err != nil {
		return err
	}
	o := p.out()
	if err = p.h.postNow(p.l, p.rank, &o, args); err != nil {
		return err
	}
	if p.rank == p.l.core.cfg.Rank {
		p.Cancel() // the buffer was not needed
	}
	p.over = true
	return nil
}

// CommitCall sends the message and waits for the reply. Whatever it returns, the Prepared has
// ended.
func (p *Prepared) CommitCall(ctx context.Context, args ...uint64) (r Reply, err error) {
	if err := p.ready(ctx, args); err != nil {
		p.Cancel()
		return Reply{}, err
	}
	o := p.out()
	w := p.l.progress.waiter()
	o.wants, o.w = true, w
	o.at = p.l.progress.begin(w, "call", p.h, p.rank)
	err = p.first(&o, args)
	if passing(err) {
		err = p.l.send(ctx, p.l.core.known(p.rank), &o, args, w)
	}
	if err != nil {
		p.l.progress.recycle(w)
		return Reply{}, p.h.failed("call", p.rank, err)
	}
	err = p.h.conclude(ctx, p.l, p.rank, w, &r)
	p.l.ordered(p.v, p.rank, err)
	return r, err
}

// first tries to send the message out of its buffer, and ends the Prepared. A message that has to
// wait then queues like any other.
func (p *Prepared) first(o *outgoing, args []uint64) error {
	if p.rank == p.l.core.cfg.Rank {
		return p.toSelf(o, args)
	}
	o.commits = true
	err := p.l.emitter.trySend(p.l.core.known(p.rank), o, args, nil)
	o.commits = false
	if p.over = o.buf == nil || err == nil; !p.over { // refused, or the network has no room
		o.payload, o.buf = append([]byte(nil), o.payload...), nil
		p.Cancel()
	}
	return err
}

// toSelf is for this rank: the buffer is not needed.
func (p *Prepared) toSelf(o *outgoing, args []uint64) error {
	err := p.l.inbox.sendToSelf(o, args)
	p.Cancel()
	return err
}
