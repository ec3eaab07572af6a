package coll_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

var (
	collectives = flag.Int("collectives", 0, "operations of the random worlds (default 50000; a tenth where parttest.Of says so)")
	firstSeed   = flag.Uint64("seed", 1, "of the first random world")
	events      = flag.Bool("events", false, "print what the ranks do")
)

// TestRandomWorlds runs random trees of teams, in which members die, give operations up, and go on
// with what is left. Each world is one seed; its time and its events have limits, so that nothing
// waits for ever. `go test ./coll -run RandomWorlds -collectives 1000000 -timeout 0` runs more.
func TestRandomWorlds(t *testing.T) {
	want := cmp.Or(*collectives, parttest.Of(50_000))
	var sum tally
	seed := *firstSeed
	for ; sum.verified < want; seed++ {
		f := newForest(seed)
		err := f.run()
		if err != nil {
			t.Fatalf("seed %d (%v): %v", seed, f, err)
		}
		sum.add(f.tally)
	}
	t.Logf("seeds %d to %d: %+v", *firstSeed, seed-1, sum)
	if want < 5000 {
		return // not all of it happens
	}
	for what, n := range map[string]int{"splits": sum.splits, "broken teams": sum.broken, "rebuilt teams": sum.rebuilt,
		"killed ranks": sum.killed, "abandoned operations": sum.abandoned, "teams given up": sum.givenUp, "splits without a slot": sum.slotless} {
		if n == 0 {
			t.Errorf("there were no %s", what)
		}
	}
}

// tally counts what happened. An operation of a team counts once.
type tally struct {
	worlds, verified, splits, freed, broken, rebuilt, killed, abandoned, slotless, givenUp int
}

func (a *tally) add(b tally) {
	a.worlds++
	a.verified += b.verified
	a.splits += b.splits
	a.freed += b.freed
	a.broken += b.broken
	a.rebuilt += b.rebuilt
	a.killed += b.killed
	a.abandoned += b.abandoned
	a.slotless += b.slotless
	a.givenUp += b.givenUp
}

// forest is one world, and what is known of it from outside.
type forest struct {
	seed     uint64
	n        int
	kills    int
	abandons bool
	cfg      coll.Config
	w        *envtest.World
	teams    map[string]*grown
	tally    tally
}

func (f *forest) String() string {
	return fmt.Sprintf("%d ranks, %d die, abandons %v, %d slots of %d bytes", f.n, f.kills, f.abandons, f.cfg.Slots, f.cfg.SlotBytes)
}

// grown is a team, by its path in the tree.
type grown struct {
	members []int
	came    []int // how many operations each member has begun
	done    map[int]bool
	gaveUp  []abandoned
	here    map[int]bool // ranks of the job that have the team
	left    []int        // and gave it up
	split   map[int]bool // operations that made teams: they did for all or for none
}

type abandoned struct {
	rank   int // of the job
	kind   coll.Kind
	number int
}

func newForest(seed uint64) *forest {
	rng := rand.New(rand.NewPCG(seed, 1))
	f := &forest{seed: seed, n: 1 + rng.IntN(17), teams: map[string]*grown{}}
	f.cfg = coll.Config{Slots: []int{1, 2, 3, 4, 8}[rng.IntN(5)], SlotBytes: 4 << 10 << rng.IntN(3)}
	f.cfg.Short, f.cfg.Long = 1<<rng.IntN(12), 1<<rng.IntN(10)
	if rng.IntN(3) > 0 {
		f.kills = rng.IntN(1 + f.n/2)
	}
	f.abandons = rng.IntN(2) == 0
	return f
}

func (f *forest) run() error {
	rng := rand.New(rand.NewPCG(f.seed, 2))
	spec, err := coll.Spec(f.n, f.cfg)
	if err != nil {
		return err
	}
	f.w, err = envtest.NewWorld(sim.Config{Ranks: f.n, Seed: f.seed, Jitter: time.Duration(rng.IntN(20_000)),
		MaxTime: 30 * time.Second, MaxEvents: 20e6, RetryTimeout: 5 * time.Millisecond}, spec)
	if err != nil {
		return err
	}
	for range rng.IntN(4) {
		if a, b := rng.IntN(f.n), rng.IntN(f.n); a != b {
			f.w.Delay(a, b, time.Duration(rng.IntN(200_000)))
		}
	}
	for range f.kills {
		victim := rng.IntN(f.n)
		f.w.At(time.Duration(rng.IntN(6_000_000)), func() {
			if !f.w.Rank(victim).Dead() {
				f.tally.killed++
				f.w.Kill(victim)
			}
		})
	}
	return f.w.Run(with(f.cfg, func(ctx context.Context, e env.Env, all *coll.Team) error {
		v := &visitor{forest: f, e: e, rng: rand.New(rand.NewPCG(f.seed, uint64(100+e.Rank())))}
		return v.live(ctx, all, "all", nil)
	}))
}

func (f *forest) dead(rank int) bool { return f.w.Rank(rank).Dead() }

// team is what is known of a team. All members must know it by the same list.
func (f *forest) team(path string, t *coll.Team) (*grown, error) {
	members := make([]int, t.Size())
	for i := range members {
		members[i] = t.Member(i)
	}
	g := f.teams[path]
	if g == nil {
		g = &grown{members: members, came: make([]int, len(members)), done: map[int]bool{}, here: map[int]bool{}, split: map[int]bool{}}
		f.teams[path] = g
	}
	if !slices.Equal(g.members, members) {
		return nil, fmt.Errorf("%s has the members %v here and %v elsewhere", path, members, g.members)
	}
	return g, nil
}

// visitor is a rank that takes part.
type visitor struct {
	*forest
	e   env.Env
	rng *rand.Rand // of this rank alone
}

// live goes through a team's life, and those of the teams that it becomes.
func (v *visitor) live(ctx context.Context, t *coll.Team, path string, from *stay) error {
	for phase := 0; ; phase++ {
		name := fmt.Sprintf("%s.%d", path, phase)
		g, err := v.team(name, t)
		if err != nil {
			return err
		}
		g.here[v.e.Rank()] = true
		x := &stay{visitor: v, t: t, g: g, name: name, from: from, rng: rand.New(rand.NewPCG(v.seed, hash(name)))}
		if from != nil {
			x.level = from.level + 1
		}
		broken, err := x.work(ctx)
		if err != nil || v.dead(v.e.Rank()) {
			return err
		}
		if !broken {
			v.tally.freed++
			return nil
		}
		v.tally.broken++
		// Others may have freed it in the last operation, and go on with nothing.
		if x.last || v.rng.IntN(10) == 0 {
			x.logf("gives up")
			g.left = append(g.left, v.e.Rank())
			if err := t.Leave(ctx); err != nil && !v.dead(v.e.Rank()) {
				return fmt.Errorf("%s: %w", name, err)
			}
			v.tally.givenUp++
			return nil
		}
		x.logf("shrinks")
		limited, cancel := v.e.Host().WithTimeout(ctx, time.Second)
		next, err := t.Shrink(limited)
		cancel()
		switch {
		case v.dead(v.e.Rank()):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		}
		x.logf("has shrunk to %d members", next.Size())
		v.tally.rebuilt++
		if next.Member(next.Rank()) != v.e.Rank() {
			return fmt.Errorf("%s: rank %d is %d in its new team, which is rank %d", name, v.e.Rank(), next.Rank(), next.Member(next.Rank()))
		}
		for _, m := range g.members {
			if g.here[m] && !v.dead(m) && !slices.Contains(g.left, m) && next.Index(m) < 0 {
				return fmt.Errorf("%s: rank %d lives and is not in the new team", name, m)
			}
		}
		t = next
	}
}
