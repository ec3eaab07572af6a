// Package park lets one goroutine wait for another.
package park

import "context"

// Parker lets one goroutine wait for another.
type Parker interface {
	// Park waits for Unpark, or for the end of ctx, and then returns its cause. It may end without
	// reason.
	Park(ctx context.Context) error
	// Unpark ends one Park, the present or the next one. It does not block.
	Unpark()
}

// Channel is the Parker of goroutines, made with room for one.
type Channel chan struct{}

// New returns an unused one.
func New() Parker { return make(Channel, 1) }

// Park waits for Unpark, or for the end of ctx.
func (p Channel) Park(ctx context.Context) error {
	select {
	case <-p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Unpark ends one Park.
func (p Channel) Unpark() {
	select {
	case p <- struct{}{}:
	default:
	}
}
