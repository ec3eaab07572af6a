package am

import (
	"context"

	"github.com/ibconduit/conduit/fabric"
)

// Prepared is a Medium request whose payload the program writes where the device reads it. It ends with
// Commit, CommitCall or Cancel, or a TryCommit without an error. One goroutine at a time uses it. A lane with
// prepared messages cannot be closed.
type Prepared struct {
	l    *Endpoint
	h    *Handler
	rank int
	size int
	buf  fabric.SendBuf
	over bool
}

// Prepare takes a send buffer for a payload of size bytes, and waits for it if need be.
func (h *Handler) Prepare(ctx context.Context, v Via, rank, size int) (*Prepared, error) {
	l := laneOf(v, rank)
	if ctx.Err() != nil {
		return nil, h.failed("prepare", rank, context.Cause(ctx))
	}
	p, err := h.tryPrepare(l, rank, size)
	if err != ErrNoBuffer {
		return p, err
	}
	peer, w := l.known(rank), l.waiter()
	l.begin(w, "prepare", h, rank)
	b, err := l.waitBuffer(ctx, w)
	l.unqueue(peer, w)
	l.recycle(w)
	if err != nil {
		return nil, h.failed("prepare", rank, err)
	}
	return h.prepared(l, rank, size, b), nil
}

// waitBuffer waits in the queue for a send buffer.
func (l *Endpoint) waitBuffer(ctx context.Context, w *waiter) (fabric.SendBuf, error) {
	for {
		l.join(&l.waiting, w, atLane)
		l.arm(l.port.Now() + retryAfter)
		b, err := l.reservePrepared(w)
		if err != ErrNoBuffer {
			return b, err
		}
		if err := l.stalled(w); err != nil {
			return fabric.SendBuf{}, err
		}
		if err := l.await(ctx, w); err != nil {
			return fabric.SendBuf{}, err
		}
	}
}

// TryPrepare is Prepare that returns ErrNoBuffer instead of waiting.
func (h *Handler) TryPrepare(v Via, rank, size int) (*Prepared, error) {
	return h.tryPrepare(laneOf(v, rank), rank, size)
}

func (h *Handler) tryPrepare(l *Endpoint, rank, size int) (*Prepared, error) {
	if l == nil {
		return nil, h.failed("prepare", rank, ErrNoEndpoint)
	}
	if err := h.check("prepare", l, rank, Payload{}, nil); err != nil {
		return nil, err
	}
	if size < 0 || size > l.cfg.MaxMedium {
		return nil, &SizeError{"a Medium payload in bytes", size, l.cfg.MaxMedium, "use a Long message, or a larger Config.MaxMedium"}
	}
	b, err := l.reservePrepared(nil)
	if err != nil {
		return nil, err
	}
	return h.prepared(l, rank, size, b), nil
}

// reservePrepared is reserve for the program. The buffer is counted before anybody can end the lane: Close takes its memory.
func (l *Endpoint) reservePrepared(w *waiter) (fabric.SendBuf, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refusal(request); err != nil {
		return fabric.SendBuf{}, err
	}
	b, err := l.reserve(w)
	if err == nil {
		l.prepared.Add(1)
	}
	return b, err
}

func (h *Handler) prepared(l *Endpoint, rank, size int, b fabric.SendBuf) *Prepared {
	return &Prepared{l: l, h: h, rank: rank, size: size, buf: b}
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
	l.mu.Lock()
	l.port.Release(p.buf)
	l.prepared.Add(-1)
	l.waiting.wake(l)
	l.mu.Unlock()
}

// out is the message; its payload is in the buffer.
func (p *Prepared) out() outgoing {
	return outgoing{kind: request, cat: medium, handler: p.h.index, payload: p.Bytes(), buf: &p.buf}
}

// ready is check, for a Prepared that must not have ended.
func (p *Prepared) ready(ctx context.Context, args []uint64) error {
	if p.over {
		return ErrOver
	}
	if ctx.Err() != nil {
		return p.h.failed("commit", p.rank, context.Cause(ctx))
	}
	return p.h.check("commit", p.l, p.rank, Payload{}, args)
}

// Commit sends the message like Post. Whatever it returns, the Prepared has ended.
func (p *Prepared) Commit(ctx context.Context, args ...uint64) error {
	if err := p.ready(ctx, args); err != nil {
		p.Cancel()
		return err
	}
	o := p.out()
	if err := p.first(&o, args, nil); !passing(err) {
		return p.h.failed("post", p.rank, err)
	}
	return p.h.postOut(ctx, p.l, p.rank, &o, args)
}

// TryCommit sends the message like TryPost. After an error the Prepared is what it was.
func (p *Prepared) TryCommit(args ...uint64) error {
	if err := p.ready(context.Background(), args); err != nil {
		return err
	}
	o := p.out()
	o.keeps = true
	if p.rank == p.l.cfg.Rank {
		err := p.l.here(&o, args)
		if err == nil {
			p.Cancel() // the buffer was not needed
		}
		return err
	}
	err := p.l.attempt(p.l.known(p.rank), &o, args, nil)
	p.over = err == nil
	return err
}

// CommitCall sends the message and waits for the reply. Whatever it returns, the Prepared has ended.
func (p *Prepared) CommitCall(ctx context.Context, args ...uint64) (r Reply, err error) {
	if err := p.ready(ctx, args); err != nil {
		p.Cancel()
		return Reply{}, err
	}
	o := p.out()
	w := p.l.waiter()
	o.wants, o.w = true, w
	o.at = p.l.begin(w, "call", p.h, p.rank)
	err = p.first(&o, args, w)
	if passing(err) {
		err = p.l.send(ctx, p.l.known(p.rank), &o, args, w)
	}
	if err != nil {
		p.l.recycle(w)
		return Reply{}, p.h.failed("call", p.rank, err)
	}
	err = p.h.conclude(ctx, p.l, p.rank, w, &r)
	return r, err
}

// first tries to send the message out of its buffer, and ends the Prepared. If that has to wait, the payload moves to memory and
// the buffer goes back: those in front who wait for a buffer would never get this one, nor this one its turn.
func (p *Prepared) first(o *outgoing, args []uint64, w *waiter) error {
	if p.rank == p.l.cfg.Rank {
		return p.here(o, args)
	}
	err := p.l.attempt(p.l.known(p.rank), o, args, w)
	if err == nil {
		p.over = true
		return nil
	}
	if passing(err) {
		o.payload, o.buf = append([]byte(nil), o.payload...), nil
	}
	p.Cancel()
	return err
}

// here is for this rank: the buffer is not needed.
func (p *Prepared) here(o *outgoing, args []uint64) error {
	err := p.l.here(o, args)
	p.Cancel()
	return err
}
