//go:build linux && cgo && (amd64 || arm64)

package amtest_test

import (
	"os"
	"testing"

	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/fabric/ibv"
	"github.com/ibconduit/conduit/internal/racetest"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/segment"
)

func newIbv(rank, size int, m *segment.Mapping, device string, cfg ibv.MessageConfig) (fabric.Messenger, error) {
	return ibv.New(ibv.Config{Rank: rank, Size: size, Segment: m, Device: device, GIDIndex: -1, Lanes: 1, Messages: cfg})
}

func init() {
	networks["ibv"] = func(rank, size int, m *segment.Mapping) (fabric.Messenger, error) {
		return newIbv(rank, size, m, os.Getenv(rdmatest.EnvDevice), ibv.MessageConfig{})
	}
}

func TestConformanceOverVerbs(t *testing.T) {
	device := rdmatest.Device(t)
	for _, c := range []struct {
		name   string
		cfg    ibv.MessageConfig
		rounds int
	}{
		{"Default", ibv.MessageConfig{}, 40},
		{"OneConnection", ibv.MessageConfig{Connections: 1}, 10}, // nearly every message makes one and closes another
	} {
		if racetest.Enabled {
			c.rounds = 5
		}
		t.Run(c.name, func(t *testing.T) {
			g := &group{make: func(_ fabrictest.T, rank, size int, m *segment.Mapping) (fabric.Messenger, error) {
				return newIbv(rank, size, m, device, c.cfg)
			}}
			amtest.Run(t, amtest.Options{New: g.ranks, Kill: g.kill, Limit: 2 * watchdogLimit, Rounds: c.rounds})
		})
	}
}

func verbsProcesses(t *testing.T, size, victim int) {
	t.Setenv(rdmatest.EnvDevice, rdmatest.Device(t))
	runJob(t, "ibv", size, victim)
}

func TestProcessesOverVerbsGetEveryAnswer(t *testing.T) { verbsProcesses(t, 3, -1) }

func TestAKilledProcessEndsItsCallsOverVerbs(t *testing.T) { verbsProcesses(t, 4, 2) }

func BenchmarkVerbs(b *testing.B) { benchmark(b, verbsGroup(b)) }

// With Soft-RoCE what the device does is in it: it works in the system calls of who posts.
func BenchmarkVerbsSteps(b *testing.B) { steps(b, verbsGroup(b)) }

func verbsGroup(b *testing.B) *group { return verbsGroupOn(rdmatest.Device(b)) }

func verbsGroupOn(device string) *group {
	return &group{make: func(_ fabrictest.T, rank, size int, m *segment.Mapping) (fabric.Messenger, error) {
		return newIbv(rank, size, m, device, ibv.MessageConfig{})
	}}
}
