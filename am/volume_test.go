package am_test

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

var (
	messagesFlag = flag.Uint64("messages", 0, "simulated messages of TestRandomWorldsKeepTheirBooks (default 200000; a tenth where parttest.Of says so)")
	seedFlag     = flag.Uint64("seed", 1, "its first seed")
	traceFlag    = flag.Bool("events", false, "print the traces of its worlds")
	ranksFlag    = flag.Int("ranks", 0, "ranks of TestThousandsOfRanksRandomAllToAll (default 2000; a tenth where parttest.Of says so)")
)

// randomWorld is a job of a random shape: from plenty to one buffer of a kind, with and without
// losses, slow ranks and deaths.
func randomWorld(seed uint64) traffic {
	rng := rand.New(rand.NewPCG(seed, 1))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	x := traffic{posts: true, stall: 40 * time.Second, calls: pick(200, 1000, 4000)}
	x.cfg = sim.Config{Seed: seed, Ranks: pick(2, 3, 8, 20), SegmentSize: 1024, Queue: pick(0, 1, 2, 8), HandshakeTries: 60}
	x.endpoint = am.Config{Credits: pick(2, 8, 64), Replies: pick(1, 4, 32), Spares: pick(-1, 1, 8), Sends: pick(1, 4, 32), ReplySends: pick(1, 8)}
	if rng.IntN(3) == 0 {
		x.cfg.Notes = sim.Notes{Loss: 0.3, Dup: 0.3}
	}
	if rng.IntN(4) == 0 {
		x.cfg.Jitter = 50 * time.Microsecond
	}
	if rng.IntN(4) == 0 {
		x.cfg.Connections = 1 + rng.IntN(3)
		x.calls /= 10
	}
	if rng.IntN(4) == 0 {
		x.slow = []int{0}
	}
	if rng.IntN(4) == 0 && x.cfg.Ranks > 2 {
		x.kill = []int{1}
	}
	x.workers, x.serve, x.fickle = pick(1, 1, 2, 5), rng.IntN(4) == 0, rng.IntN(2) == 0
	x.late = time.Duration(pick(0, 0, 30, 3000)) * time.Microsecond
	return x
}

// Many worlds, until they have sent as many messages as asked for (go test ./am -run RandomWorlds
// -messages 100000000 -timeout 0).
func TestRandomWorldsKeepTheirBooks(t *testing.T) {
	want := cmp.Or(*messagesFlag, uint64(parttest.Of(200_000)))
	done, died, seed, from := uint64(0), int64(0), *seedFlag, time.Now()
	for ; done < want && !t.Failed(); seed++ {
		x := randomWorld(seed)
		if *traceFlag {
			x.cfg.Trace = os.Stdout
		}
		o := x.run(t)
		o.allEnded(t)
		o.noneMetNoBuffer(t)
		o.booksAgree(t)
		done, died = done+o.messages, died+o.died
	}
	t.Logf("%d messages in worlds of seeds %d to %d, %.0f a second; %d requests found their rank dead", done, *seedFlag, seed-1, float64(done)/time.Since(from).Seconds(), died)
}

// Unless they stand behind -args.
func TestGoTestKeepsNoFlagOfThisPackageToItself(t *testing.T) {
	flag.VisitAll(func(f *flag.Flag) {
		if flag.Lookup("test."+f.Name) != nil {
			t.Errorf("go test takes -%s for its own", f.Name)
		}
	})
}
