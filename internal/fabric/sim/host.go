package sim

import (
	"context"
	"time"
)

// Host runs, in a world, a test suite that takes its host as an interface, such as package
// fabrictest. W may be set as late as the suite's factory runs.
type Host struct{ W *World }

// Main runs a function as a task, until all tasks have ended.
func (h *Host) Main(f func()) error {
	return h.W.Do(func(context.Context) error { f(); return nil })
}

// Concurrently runs f once per index, each as a task, until all have returned.
func (h *Host) Concurrently(n int, f func(i int)) {
	all, left := h.W.NewParker(), n
	for i := range n {
		h.W.Go("concurrently", func(context.Context) error {
			f(i)
			if left--; left == 0 {
				all.Unpark()
			}
			return nil
		})
	}
	if n > 0 {
		_ = all.Park(context.Background()) // fails only when the world has ended
	}
}

// WithTimeout is World.WithTimeout.
func (h *Host) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return h.W.WithTimeout(parent, d)
}

// Sleep lets virtual time pass.
func (h *Host) Sleep(d time.Duration) { _ = h.W.Sleep(context.Background(), d) }

// Yield lets a microsecond pass.
func (h *Host) Yield() { h.Sleep(time.Microsecond) }
