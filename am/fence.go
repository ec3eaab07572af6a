package am

import (
	"context"
	"errors"
)

// Fencer orders a program's memory accesses with its messages: requests and replies, and handlers.
// A job has one if it keeps copies of other ranks' memory, or writes to it that were not sent yet.
type Fencer interface {
	// Request is called before a request is sent through v, when it was found to be in order, on the
	// goroutine that sends it. A Long is to write n bytes at off of the rank's segment; else n is 0.
	// With an error nothing is sent. For a request that must not wait ctx is [NoWait].
	Request(ctx context.Context, v Via, rank int, off uint64, n int) error
	// Reply is called when a call through v to a rank has ended, by the goroutine that learns of it,
	// before; err is how it ended.
	Reply(v Via, rank int, err error)
	// Handler is called when a handler, or a function of a Receiver, begins which a message of a rank
	// has called for, and when it has ended. It must not block.
	Handler(from int)
}

// ErrNotReleased is what a request with [NoWait] returns where the Fencer would have to wait for
// writes of the Via that it goes through.
var ErrNotReleased = errors.New("am: writes of the worker are not complete yet")

// NoWait is a context for posts, Prepare and Commit that must not wait: they make no progress, and
// return what they would wait for, one of ErrNoBuffer, ErrNotConnected, ErrNoCredit, ErrQueueFull,
// ErrNotReleased, unwrapped. A Long must not be larger than Endpoint.MaxMedium then: it is copied.
// Calls wait, so they fail with it.
var NoWait = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotReleased)
	return ctx
}()

// fenceHandler is called when a handler, or a function of a Receiver, begins and has ended.
func fenceHandler(cfg *Config, from int) {
	if cfg.Fencer != nil {
		cfg.Fencer.Handler(from)
	}
}

// order has the Fencer know of a request that is to be sent.
func (h *Handler) order(ctx context.Context, op string, v Via, l *Endpoint, rank int, p *Payload) error {
	off, n := uint64(0), 0
	if p.cat == long {
		off, n = p.off, len(p.bytes)
	}
	err := l.core.cfg.Fencer.Request(ctx, v, rank, off, n)
	if ctx == NoWait && errors.Is(err, ErrNotReleased) {
		return ErrNotReleased // unwrapped, as the other obstacles
	}
	return h.failed(op, rank, err)
}

// ordered has the Fencer know, before its caller does, that a call has ended.
func (l *Endpoint) ordered(v Via, rank int, err error) {
	if l.core.cfg.Fencer != nil {
		l.core.cfg.Fencer.Reply(v, rank, err)
	}
}
