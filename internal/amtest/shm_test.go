package amtest_test

import (
	"testing"

	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/fabric/shm"
	"github.com/ibconduit/conduit/segment"
)

func newShm(rank, size int, m *segment.Mapping, job string) (fabric.Messenger, error) {
	return shm.New(shm.Config{Rank: rank, Size: size, Segment: m, Job: job})
}

func init() {
	networks["shm"] = func(rank, size int, m *segment.Mapping) (fabric.Messenger, error) {
		return newShm(rank, size, m, "processes")
	}
}

func TestConformanceOverSharedMemory(t *testing.T) {
	g := &group{make: func(t fabrictest.T, rank, size int, m *segment.Mapping) (fabric.Messenger, error) {
		return newShm(rank, size, m, t.Name())
	}}
	amtest.Run(t, amtest.Options{New: g.ranks, Kill: g.kill, Limit: watchdogLimit})
}

func TestProcessesOverSharedMemoryGetEveryAnswer(t *testing.T) { runJob(t, "shm", 3, -1) }

func TestAKilledProcessEndsItsCallsOverSHM(t *testing.T) { runJob(t, "shm", 4, 2) }

func BenchmarkSharedMemory(b *testing.B) {
	benchmark(b, &group{make: func(t fabrictest.T, rank, size int, m *segment.Mapping) (fabric.Messenger, error) {
		return newShm(rank, size, m, t.Name())
	}})
}
