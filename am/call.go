package am

import (
	"context"
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// Call sends a request and waits for its reply.
func (h *Handler) Call(ctx context.Context, v Via, rank int, args ...uint64) (r Reply, err error) {
	err = h.call(ctx, v, rank, &Payload{}, args, &r)
	return r, err
}

// CallWith is Call with a payload. If something else than its reply ends a call with a Long (ctx, a
// *StallError, ErrClosed), the network may read the payload until the endpoint is closed: Start's
// Pending can be waited for again.
func (h *Handler) CallWith(ctx context.Context, v Via, rank int, p Payload, args ...uint64) (r Reply, err error) {
	err = h.call(ctx, v, rank, &p, args, &r)
	return r, err
}

// Post sends a request that wants no reply. Without an error the message is the network's; if the
// rank dies before it arrives only later operations say so. With [NoWait] as its context it returns
// the obstacle in place of waiting.
func (h *Handler) Post(ctx context.Context, v Via, rank int, args ...uint64) error {
	return h.post(ctx, v, rank, &Payload{}, args)
}

// PostWith is Post with a payload, which may be reused when it returns: of a Long larger than
// Endpoint.MaxMedium it waits until the network has read it, which Config.StallAfter bounds and ctx
// does not, and which [NoWait] refuses. After a *StallError or ErrClosed the network may read that
// until the endpoint is closed.
func (h *Handler) PostWith(ctx context.Context, v Via, rank int, p Payload, args ...uint64) error {
	return h.post(ctx, v, rank, &p, args)
}

// TryPost is Post with [NoWait].
//
// Deprecated: Use Post with [NoWait].
func (h *Handler) TryPost(v Via, rank int, args ...uint64) error {
	return h.post(NoWait, v, rank, &Payload{}, args)
}

// TryPostWith is PostWith with [NoWait].
//
// Deprecated: Use PostWith with [NoWait].
func (h *Handler) TryPostWith(v Via, rank int, p Payload, args ...uint64) error {
	return h.post(NoWait, v, rank, &p, args)
}

// Start is Call that does not wait for the reply. ctx bounds the wait for credits and buffers. The
// payload of a Medium may be reused when it returns, one of a Long when the call has ended, or when
// the endpoint is closed where ErrClosed ended it.
func (h *Handler) Start(ctx context.Context, v Via, rank int, p Payload, args ...uint64) (*Pending, error) {
	l, err := h.admit(ctx, "call", v, rank, &p, args)
	if err != nil {
		return nil, err
	}
	w := l.core.newWaiter()
	if err := h.start(ctx, l, rank, &p, args, w); err != nil {
		return nil, err
	}
	return &Pending{l: l, w: w, v: v}, nil
}

// StartWait is Start and Wait in one, which needs no memory of its own when the reply comes. With
// an error after which the call is still in flight there is its Pending: Wait again, or forget it.
func (h *Handler) StartWait(ctx context.Context, v Via, rank int, args ...uint64) (r Reply, p *Pending, err error) {
	l, err := h.admit(ctx, "call", v, rank, &Payload{}, args)
	if err != nil {
		return r, nil, err
	}
	w := l.progress.waiter()
	if err = h.start(ctx, l, rank, &Payload{}, args, w); err == nil {
		if err := l.finish(ctx, w); err != nil && !w.over() {
			return r, &Pending{l: l, w: w, v: v}, h.failed("call", rank, err)
		}
		r, err = w.reply, w.err
	}
	l.progress.recycle(w)
	l.ordered(v, rank, err)
	return r, nil, err
}

// admit is at the head of every operation: it checks a request, and has the Fencer know of it.
func (h *Handler) admit(ctx context.Context, op string, v Via, rank int, p *Payload, args []uint64) (*Endpoint, error) {
	l := laneOf(v, rank)
	if l == nil {
		return nil, h.failed(op, rank, ErrNoEndpoint)
	}
	err := h.check(op, l, rank, p, args)
	if err == nil && l.core.cfg.Fencer != nil {
		err = h.order(ctx, op, v, l, rank, p)
	}
	return l, err
}

// check refuses a request that is not in order.
func (h *Handler) check(op string, l *Endpoint, rank int, p *Payload, args []uint64) error {
	if err := l.mayUse(op); err != nil {
		return err
	}
	if h.table != l.core.table {
		return fmt.Errorf("am: %s %q: the handler is of another table than the endpoint: register it in Config.Table", op,
			h.name)
	}
	if rank < 0 || rank >= l.core.peers.Len() {
		return &fabric.RankError{Op: op, Rank: rank, Size: l.core.peers.Len()}
	}
	if p.cat == short && len(p.bytes) == 0 && len(args) <= MaxArgs {
		return nil
	}
	return l.core.checkParts(rank, p, args)
}

// call fills in a zero reply.
func (h *Handler) call(ctx context.Context, v Via, rank int, p *Payload, args []uint64, r *Reply) error {
	l, err := h.admit(ctx, "call", v, rank, p, args)
	if err != nil {
		return err
	}
	w := l.progress.waiter()
	if err = h.start(ctx, l, rank, p, args, w); err != nil {
		l.progress.recycle(w)
	} else {
		err = h.conclude(ctx, l, rank, w, r)
	}
	l.ordered(v, rank, err)
	return err
}

// conclude waits for the reply and takes the waiter back.
func (h *Handler) conclude(ctx context.Context, l *Endpoint, rank int, w *waiter, r *Reply) error {
	err := l.finish(ctx, w)
	if err != nil {
		l.core.mu.Lock()
		if !l.core.calls.abandon(w) {
			err = nil // it ended meanwhile, after all
		}
		l.core.mu.Unlock()
		if err != nil {
			l.progress.recycle(w)
			return h.failed("call", rank, err)
		}
	}
	r.Data, r.n = w.reply.Data, w.reply.n
	copy(r.args[:], w.reply.Args())
	err = w.err
	l.progress.recycle(w)
	return err
}

// start sends the request of a call that was admitted.
func (h *Handler) start(ctx context.Context, l *Endpoint, rank int, p *Payload, args []uint64, w *waiter) error {
	if ctx.Err() != nil {
		return h.failed("call", rank, context.Cause(ctx))
	}
	o := outgoing{kind: request, cat: p.cat, handler: h.index, payload: p.bytes, off: p.off, wants: true, w: w}
	w.into = p.into
	o.at = l.progress.begin(w, "call", h, rank)
	if rank == l.core.cfg.Rank {
		return l.inbox.sendToSelf(&o, args)
	}
	if err := l.send(ctx, l.core.known(rank), &o, args, w); err != nil {
		return h.failed("call", rank, err)
	}
	return nil
}

// finish waits for the end of a call.
func (l *Endpoint) finish(ctx context.Context, w *waiter) error {
	for !w.over() {
		err := l.progress.await(ctx, w)
		if err == nil && !w.over() { // the watchdog has woken it
			err = l.progress.stalled(w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *Handler) post(ctx context.Context, v Via, rank int, p *Payload, args []uint64) error {
	l, err := h.admit(ctx, "post", v, rank, p, args)
	if err != nil {
		return err
	}
	o := outgoing{kind: request, cat: p.cat, handler: h.index, payload: p.bytes, off: p.off}
	if ctx == NoWait {
		if p.cat == long && len(p.bytes) > l.core.cfg.MaxMedium {
			return &SizeError{"bytes of a Long without waiting", len(p.bytes), l.core.cfg.MaxMedium, "use Post or Start"}
		}
		l.takeOver(&o)
		return h.postNow(l, rank, &o, args)
	}
	if ctx.Err() != nil {
		return h.failed("post", rank, context.Cause(ctx))
	}
	return h.postOut(ctx, l, rank, &o, args)
}

// postNow sends a post, or returns the obstacle.
func (h *Handler) postNow(l *Endpoint, rank int, o *outgoing, args []uint64) error {
	if rank == l.core.cfg.Rank {
		return l.inbox.sendToSelf(o, args)
	}
	return l.emitter.trySend(l.core.known(rank), o, args, nil)
}

func (h *Handler) postOut(ctx context.Context, l *Endpoint, rank int, o *outgoing, args []uint64) error {
	if rank == l.core.cfg.Rank {
		return l.inbox.sendToSelf(o, args)
	}
	peer := l.core.known(rank)
	large := o.cat == long && len(o.payload) > l.core.cfg.MaxMedium
	if !large {
		l.takeOver(o)
		err := l.emitter.trySend(peer, o, args, nil)
		if err == nil {
			return nil
		}
		if !passing(err) {
			return h.failed("post", rank, err)
		}
	}
	w := l.progress.waiter()
	l.progress.begin(w, "post", h, rank)
	if large {
		o.w = w
	}
	err := l.send(ctx, peer, o, args, w)
	if err == nil && large {
		l.progress.beginAgain(w)
		err = l.awaitRead(w)
	}
	l.progress.recycle(w)
	return h.failed("post", rank, err)
}

// awaitRead waits until the network has done with a payload, which its finite retries bound.
func (l *Endpoint) awaitRead(w *waiter) error {
	if err := l.finish(context.Background(), w); err != nil {
		l.core.mu.Lock()
		lost := l.core.calls.abandon(w)
		l.core.mu.Unlock()
		if lost {
			return err
		}
	}
	return w.err
}

// takeOver copies the payload of a Long, so that no goroutine waits until the network has read it.
func (l *Endpoint) takeOver(o *outgoing) {
	if o.cat == long && len(o.payload) > 0 {
		o.payload, o.own = append([]byte(nil), o.payload...), true
	}
}

// failed says which operation failed; nil stays nil, and what says it by itself stays as it is.
func (h *Handler) failed(op string, rank int, err error) error {
	if err == nil {
		return nil
	}
	if stall := (*StallError)(nil); errors.As(err, &stall) {
		return err
	}
	return &opError{op: op, handler: h.name, rank: rank, err: err}
}

// Pending is a call that was started. One goroutine at a time uses it.
type Pending struct {
	l *Endpoint
	w *waiter
	v Via
}

// Test reports whether the call has ended, and how. It makes no progress.
func (p *Pending) Test() (r Reply, done bool, err error) {
	if !p.w.over() {
		return Reply{}, false, nil
	}
	p.l.ordered(p.v, p.w.rank, p.w.err)
	return p.w.reply, true, p.w.err
}

// Wait waits for the end of the call. After an error of ctx, or a *StallError, the call is still in
// flight: Wait again, for as long again, or forget it. A call that has ended stays so: Wait returns
// the same at once, also when the endpoint is closed.
func (p *Pending) Wait(ctx context.Context) (Reply, error) {
	if err := p.l.mayUse("wait for a call"); err != nil {
		return Reply{}, err
	}
	lockrank.MustHoldNone("wait for a call")
	if !p.w.over() {
		p.l.progress.beginAgain(p.w)
	}
	if err := p.l.finish(ctx, p.w); err != nil && !p.w.over() {
		return Reply{}, p.w.h.failed("call", p.w.rank, err)
	}
	p.l.ordered(p.v, p.w.rank, p.w.err)
	return p.w.reply, p.w.err
}
