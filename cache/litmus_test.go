package cache_test

import (
	"cmp"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

var (
	seeds  = flag.Int("seeds", 0, "of each litmus test in each setup, in simulated worlds (default 24; a tenth where parttest.Of says so)")
	seedAt = flag.Uint64("seed", 0, "the first one, also of the model")
)

// region is the memory that the tests use: a segment has nothing else.
const region = "test"

// litmus is a small program, and what it may read.
type litmus struct {
	number int
	name   string
	ranks  int              // of the world
	size   func(*trial) int // instead of ranks
	far    bool             // the data is at the last rank, which has no thread
	sim    bool             // it needs a simulated world
	costs  int              // fewer than 1000 seeds are divided by it; 0: 1
	f      func(x *trial)
}

// litmusTests are all of them, by number.
var litmusTests = func() (all []litmus) {
	for _, part := range [][]litmus{orderTests, ownTests, sharedTests, edgeTests, crowdTests, lifeTests} {
		all = append(all, part...)
	}
	return all
}()

// TestLitmus runs each litmus test in simulated worlds, in each setup, with many seeds. A seed
// chooses place, lanes and the data's rank as well as the world: 16 seeds are all combinations.
// `go test ./cache -run Litmus/07 -seeds 1000 -timeout 0` runs more.
func TestLitmus(t *testing.T) {
	for i := range litmusTests {
		l := &litmusTests[i]
		t.Run(fmt.Sprintf("%02d", l.number), func(t *testing.T) {
			n := cmp.Or(*seeds, parttest.Of(24))
			if n < 1000 {
				n = max(1, n/max(1, l.costs))
			}
			for i, s := range setups {
				if l.costs > 1 && parttest.Of(100) < 100 && i%4 != 0 {
					continue
				}
				for seed := *seedAt; seed < *seedAt+uint64(n); seed++ {
					x := newTrial(l, s, seed, false)
					if err := x.onSim(); err != nil {
						t.Fatalf("%v:\n%v", x, err)
					}
				}
			}
		})
	}
}

func TestLitmusTestsAreNumbered(t *testing.T) {
	for i, l := range litmusTests {
		if l.number != i+1 {
			t.Errorf("litmus %d (%s) is at place %d", l.number, l.name, i+1)
		}
	}
}

// onSim runs the trial in a simulated world.
func (x *trial) onSim() error {
	cfg := sim.Config{Ranks: len(x.ranks), Seed: x.seed, MaxTime: 10 * time.Second, MaxEvents: 5e6, RetryTimeout: 200 * time.Microsecond}
	cfg.Jitter = time.Duration(x.rng.IntN(4000)) - 1
	cfg.Depth = []int{64, 4, 1}[x.rng.IntN(3)]
	w, err := envtest.NewWorld(cfg, env.Spec{Name: region, Size: x.bytes})
	if err != nil {
		return err
	}
	x.kill = w.Kill
	for _, d := range x.delays {
		if d[0] != d[1] {
			w.Delay(d[0], d[1], 20*time.Microsecond)
		}
	}
	return w.Run(x.main)
}
