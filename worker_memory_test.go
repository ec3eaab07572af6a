package conduit

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
)

// quietNetwork reaches ranks that do not exist.
type quietNetwork struct{ fabric.Network }

func (quietNetwork) NewLane() (fabric.Lane, error) { return quietLane{}, nil }

type quietLane struct{ fabric.Lane }

func (quietLane) Mapped(int) []byte { return nil }
func (quietLane) Close() error      { return nil }

func TestAWorkerTakes16BytesARank(t *testing.T) {
	const few, many, workers = 1000, 10000, 8
	var before, after runtime.MemStats
	taken := func(size int) int64 {
		j := &Job{size: size, life: context.Background(), members: newMembership(nil), workers: newWorkers()}
		j.networks.all, j.networks.routes = []fabric.Network{quietNetwork{}}, make([]route, size)
		var open [workers]*Worker
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range open {
			w := &Worker{job: j, ctx: j.life, deaths: &j.members.deaths, generation: &j.members.generation}
			if err := w.open(); err != nil {
				t.Fatal(err)
			}
			open[i] = w
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		for _, w := range open {
			if err := w.giveBack(); err != nil {
				t.Fatal(err)
			}
		}
		return int64(after.HeapAlloc) - int64(before.HeapAlloc)
	}
	taken(few) // what is made once
	a := taken(few)
	if n := float64(taken(many)-a) / (many - few) / workers; n > 16.5 {
		t.Errorf("%.2f bytes for each rank", n)
	} else {
		t.Logf("%.2f bytes for each rank", n)
	}
}

// failingLane is a lane that lost an implicit operation.
type failingLane struct {
	fabric.Lane
	rank int
}

func (l failingLane) Flush(context.Context) error {
	return &OpError{Op: "put", Rank: l.rank, Err: ErrPeerDown}
}

func (l failingLane) Close() error {
	return &OpError{Op: "put", Rank: l.rank, Off: 4096 + 8, Err: ErrPeerDown}
}

// What a Close that could not flush lost has the program's offsets, too.
func TestCloseNamesOffsetsAsTheProgramDoes(t *testing.T) {
	w := &Worker{job: &Job{}, begin: 4096, lanes: []fabric.Lane{failingLane{rank: 1}, failingLane{rank: 2}}}
	if said := w.giveBack().Error(); strings.Count(said, "offset 8 of") != 2 {
		t.Error(said)
	}
}

func TestFlushReturnsTheErrorsOfAllLanes(t *testing.T) {
	w := &Worker{job: &Job{}, lanes: []fabric.Lane{failingLane{rank: 1}, failingLane{rank: 2}}}
	copy(w.byNet[:], w.lanes)
	said := w.flush(t.Context()).Error()
	for _, want := range []string{"rank 1", "rank 2"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q does not say what %s lost", said, want)
		}
	}
}
