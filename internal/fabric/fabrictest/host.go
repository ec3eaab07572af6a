package fabrictest

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"
)

// Host runs what a check does. A simulated network has one of its own, in which time is
// virtual and the functions are tasks of the simulation.
type Host interface {
	// Main runs a check, which may end with FailNow. The error is that it could not be run to its
	// end.
	Main(check func()) error
	// Concurrently runs f once per index, all at the same time, until all have returned.
	Concurrently(n int, f func(i int))
	// WithTimeout is context.WithTimeout.
	WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Sleep is time.Sleep.
	Sleep(d time.Duration)
	// Yield lets the others go on for a moment.
	Yield()
}

// Goroutines is the host of networks that are real: goroutines, in real time.
func Goroutines() Host { return goroutines{} }

type goroutines struct{}

func (goroutines) Main(check func()) error { check(); return nil }
func (goroutines) Sleep(d time.Duration)   { time.Sleep(d) }
func (goroutines) Yield()                  { runtime.Gosched() }

func (goroutines) Concurrently(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

func (goroutines) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(parent, d)
}

// together runs f once per index, all at the same time. The first error ends the others' context.
func together(ctx context.Context, h Host, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, n)
	h.Concurrently(n, func(i int) {
		if errs[i] = f(ctx, i); errs[i] != nil {
			cancel()
		}
	})
	return errors.Join(errs...)
}
