package amtest

import (
	"context"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// SimHost is the host of an endpoint of a simulated rank.
func SimHost(r *sim.Rank) am.Host { return simHost{r} }

type simHost struct{ r *sim.Rank }

func (h simHost) Go(name string, f func()) {
	h.r.Go(name, func(context.Context) error { f(); return nil })
}
func (h simHost) NewParker() am.Parker  { return h.r.World().NewParker() }
func (h simHost) Sleep(d time.Duration) { _ = h.r.World().Sleep(context.Background(), d) } // fails only at the world's end
func (h simHost) Yield()                {}
