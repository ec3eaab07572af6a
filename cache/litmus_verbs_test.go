//go:build linux && cgo

package cache_test

import (
	"context"
	"testing"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/ibv"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/segment"
)

// TestLitmusOverVerbs runs litmus tests on a device.
func TestLitmusOverVerbs(t *testing.T) {
	device := rdmatest.Device(t)
	litmusOn(t, 2, func(t testing.TB, n int, f func(ctx context.Context, e env.Env) error, specs ...env.Spec) {
		envtest.On(t, n, func(rank int, m *segment.Mapping) (fabric.Network, error) {
			return ibv.New(ibv.Config{Rank: rank, Size: n, Segment: m, Device: device, GIDIndex: -1})
		}, f, specs...)
	})
}
