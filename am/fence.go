package am

import (
	"context"
	"errors"
)

// Fencer is told of what orders a program's memory accesses: requests and replies, and handlers. A
// job has one if it keeps copies of other ranks' memory, or writes to it that were not sent yet.
type Fencer interface {
	// Request is called before a request is sent through v, when it was found to be in order, on the
	// goroutine that sends it. A Long is to write n bytes at off of the rank's segment; else n is 0.
	// With an error nothing is sent. For a request that must not wait (TryPost, TryCommit) ctx has
	// ended already, with the cause ErrNotReleased.
	Request(ctx context.Context, v Via, rank int, off uint64, n int) error
	// Reply is called when a call through v to a rank has ended, by the goroutine that learns of it,
	// before; err is how it ended.
	Reply(v Via, rank int, err error)
	// Handler is called when a handler, or a function of a Receiver, begins which a message of a rank
	// has called for, and when it has ended. It must not block.
	Handler(from int)
}

// ErrNotReleased is what TryPost and TryCommit return where the Fencer would have to wait for
// writes of the Via that they go through.
var ErrNotReleased = errors.New("am: writes of the worker are not complete yet")

// atOnce is the context of a Fencer that must not wait.
var atOnce = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotReleased)
	return ctx
}()

// fences reports whether a Fencer is to learn of requests through v.
func (l *Endpoint) fences(v Via) bool {
	if l.core.cfg.Fencer == nil {
		return false
	}
	_, has := v.(told)
	return !has
}

// told is an endpoint whose Fencer has learned of a request.
type told struct{ l *Endpoint }

func (v told) Endpoint(int) *Endpoint { return v.l }

// fenceHandler is called when a handler, or a function of a Receiver, begins and has ended.
func fenceHandler(cfg *Config, from int) {
	if cfg.Fencer != nil {
		cfg.Fencer.Handler(from)
	}
}

// before checks a request and has the Fencer know of it.
func (h *Handler) before(ctx context.Context, op string, v Via, l *Endpoint, rank int, p *Payload, args []uint64) error {
	if err := h.check(op, l, rank, p, args); err != nil {
		return err
	}
	off, n := uint64(0), 0
	if p.cat == long {
		off, n = p.off, len(p.bytes)
	}
	switch err := l.core.cfg.Fencer.Request(ctx, v, rank, off, n); {
	case err == nil:
		return nil
	case ctx == atOnce && errors.Is(err, ErrNotReleased):
		return ErrNotReleased // unwrapped, as the other obstacles
	default:
		return h.failed(op, rank, err)
	}
}
