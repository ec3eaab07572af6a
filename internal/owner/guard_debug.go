//go:build debug

package owner

import "sync/atomic"

// Checked reports whether guards check.
const Checked = true

// Guard is held while a call is inside the object.
type Guard struct{ held atomic.Bool }

// Enter takes the guard, or fails with ErrConcurrent. After a failure Exit must
// not be called.
func (g *Guard) Enter() error {
	if !g.held.CompareAndSwap(false, true) {
		return ErrConcurrent
	}
	return nil
}

// Exit gives the guard back.
func (g *Guard) Exit() { g.held.Store(false) }
