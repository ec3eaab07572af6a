package amtest

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/fabric/sim"
)

// goroutines runs the checks of networks that are real.
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

// SimHost is the host of a lane of a simulated rank.
func SimHost(r *sim.Rank) am.Host { return simHost{r} }

type simHost struct{ r *sim.Rank }

func (h simHost) Go(name string, f func()) {
	h.r.Go(name, func(context.Context) error { f(); return nil })
}
func (h simHost) NewParker() am.Parker  { return h.r.World().NewParker() }
func (h simHost) Sleep(d time.Duration) { _ = h.r.World().Sleep(context.Background(), d) } // fails only at the world's end
func (h simHost) Yield()                {}
