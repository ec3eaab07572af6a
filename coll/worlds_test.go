package coll_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/env/envtest"
	"github.com/ibconduit/conduit/fabric/sim"
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

// hurt reports whether there is a reason why the team breaks. That may lie in the team that was
// split.
func (x *stay) hurt() bool {
	return x != nil && (len(x.g.gaveUp) > 0 || slices.ContainsFunc(x.g.members, x.dead) || x.from.hurt())
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

func hash(s string) (h uint64) {
	for _, c := range s {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// stay is a rank's time in a team until it is freed or broken.
type stay struct {
	*visitor
	t      *coll.Team
	g      *grown
	name   string
	from   *stay // in the team that was split; nil: all
	level  int
	rng    *rand.Rand // the same on all members
	number int        // of operations begun
	lanes  env.Lanes
	subs   []func() error // wait for the subteams
	last   bool           // in the last operation, in which members leave
}

// work does the team's operations. err is a mistake, broken none.
func (x *stay) work(ctx context.Context) (broken bool, err error) {
	if x.lanes, err = x.e.NewLanes(); err != nil {
		return false, nil // dead
	}
	defer x.lanes.Close()
	for steps := 5 + x.rng.IntN(40); steps > 0 && err == nil && !broken; steps-- {
		if x.rng.IntN(12) == 0 && x.level < 3 {
			broken, err = x.split(ctx)
		} else {
			broken, err = x.step(ctx)
		}
	}
	for _, wait := range x.subs {
		err = errors.Join(err, wait())
	}
	if err != nil || broken {
		return broken, err
	}
	x.last = true
	if x.from == nil { // the team of all is not freed
		return x.do(coll.KindBarrier, func(ctx context.Context) error { return x.t.Barrier(ctx) }, nil, ctx)
	}
	return x.do(coll.KindFree, func(ctx context.Context) error { return x.t.Free(ctx) }, nil, ctx)
}

// step does one operation, or some at once.
func (x *stay) step(ctx context.Context) (broken bool, err error) {
	root, size := x.rng.IntN(x.t.Size()), sizes[x.rng.IntN(len(sizes)-2)]
	if x.rng.IntN(50) == 0 {
		size = sizes[len(sizes)-1]
	}
	id := int(x.rng.Int32())
	kind := x.rng.IntN(15)
	ops := interface {
		NamedBarrier(context.Context, string) error
		Broadcast(context.Context, int, []byte) error
		AllGather(context.Context, []byte) ([][]byte, error)
	}(x.t)
	on := coll.On(x.t)
	if x.rng.IntN(4) == 0 {
		ops, on = x.t.Through(x.lanes), x.t.Through(x.lanes)
	}
	switch {
	case kind < 4:
		return x.do(coll.KindBarrier, func(ctx context.Context) error { return ops.NamedBarrier(ctx, fmt.Sprint(id%3)) }, nil, ctx)
	case kind < 7:
		buf := x.source(size, id, root)
		return x.do(coll.KindBroadcast, func(ctx context.Context) error { return ops.Broadcast(ctx, root, buf) },
			func() error { return x.sent(buf, size, id, root) }, ctx)
	case kind < 9:
		var all [][]byte
		return x.do(coll.KindAllGather, func(ctx context.Context) (err error) {
			all, err = ops.AllGather(ctx, fill(size+x.t.Rank()%3, id, x.t.Rank()))
			return err
		}, func() error { return gathered(x.t, all, size, id) }, ctx)
	case kind < 14:
		op := x.data(on, size, id, root)
		return x.do(op.kind, op.do, op.check, ctx)
	}
	return x.several(ctx, id, size, root)
}

// data is any operation on data. Its checks know what all members give.
func (x *stay) data(on coll.On, size, id, root int) dataOp {
	ops := reductions
	if x.rng.IntN(2) == 0 {
		ops = exchanges
	}
	all := ops(on, x.t.Rank(), x.t.Size(), size/8*min(8, 1+x.rng.IntN(9)), id, root)
	return all[x.rng.IntN(len(all))]
}

func (x *stay) source(size, id, root int) []byte {
	if x.t.Rank() == root {
		return fill(size, id, root)
	}
	return make([]byte, size)
}

func (x *stay) sent(buf []byte, size, id, root int) error {
	if !bytes.Equal(buf, fill(size, id, root)) {
		return fmt.Errorf("%d bytes of root %d are wrong at %d", size, root, x.t.Rank())
	}
	copy(buf, fill(size, -id)) // it is the caller's again
	return nil
}

// several starts operations that run behind each other.
func (x *stay) several(ctx context.Context, id, size, root int) (broken bool, err error) {
	type started struct {
		p     *coll.Pending
		check func() error
	}
	var all []started
	for i := range 2 + x.rng.IntN(4) {
		x.begin()
		switch x.rng.IntN(5) {
		case 3, 4:
			op := x.data(x.t, size, id+i, root)
			all = append(all, started{op.start(ctx), op.check})
		case 0:
			all = append(all, started{x.t.StartBarrier(ctx), x.met(x.number)})
		case 1:
			buf := x.source(size, id+i, root)
			all = append(all, started{x.t.StartBroadcast(ctx, root, buf), func() error { return x.sent(buf, size, id+i, root) }})
		default:
			p := x.t.StartAllGather(ctx, fill(size+x.t.Rank()%3, id+i, x.t.Rank()))
			all = append(all, started{p, func() error { return gathered(x.t, p.Blobs(), size, id+i) }})
		}
	}
	from := x.number - len(all)
	for i, s := range all {
		err := s.p.Wait(context.Background())
		if x.dead(x.e.Rank()) {
			return true, nil
		}
		b, err := x.ended(from+i+1, err, s.check)
		if err != nil {
			return b, err
		}
		broken = broken || b
	}
	return broken, nil
}

func (x *stay) logf(format string, args ...any) {
	if *events {
		fmt.Printf("%v rank %d %s: %s\n", x.w.Now(), x.e.Rank(), x.name, fmt.Sprintf(format, args...))
	}
}

func (x *stay) begin() {
	x.number++
	x.g.came[x.t.Rank()] = x.number
}

// met is what a barrier promises.
func (x *stay) met(number int) func() error {
	return func() error {
		for i, n := range x.g.came {
			if n < number {
				return fmt.Errorf("barrier %d ended before rank %d came, which has begun %d", number, x.g.members[i], n)
			}
		}
		return nil
	}
}

// do does one operation, which a member may give up.
func (x *stay) do(kind coll.Kind, f func(context.Context) error, check func() error, ctx context.Context) (bool, error) {
	if x.visitor.rng.IntN(20) == 0 {
		x.e.Host().Sleep(time.Duration(x.visitor.rng.IntN(50_000)))
	}
	if x.rng.IntN(100) == 0 && x.abandons {
		if who := x.rng.IntN(x.t.Size()); who == x.t.Rank() {
			limited, cancel := x.e.Host().WithTimeout(ctx, 1+time.Duration(x.visitor.rng.IntN(30_000)))
			defer cancel()
			ctx = limited
			x.g.gaveUp = append(x.g.gaveUp, abandoned{x.e.Rank(), kind, x.number + 1})
			x.tally.abandoned++
		}
	}
	x.begin()
	if kind == coll.KindBarrier || kind == coll.KindFree {
		check = x.met(x.number)
	}
	x.logf("begins %v %d", kind, x.number)
	err := f(ctx)
	x.logf("ends %v %d: %v", kind, x.number, err)
	if x.dead(x.e.Rank()) {
		return true, nil
	}
	return x.ended(x.number, err, check)
}

// ended verifies the result of an operation, or that there is a reason why it failed.
func (x *stay) ended(number int, err error, check func() error) (broken bool, wrong error) {
	if err == nil {
		if err := check(); err != nil {
			return false, fmt.Errorf("%s: operation %d: %w", x.name, number, err)
		}
		if !x.g.done[number] {
			x.g.done[number] = true
			x.tally.verified++
		}
		return false, nil
	}
	var b *coll.BrokenError
	if !errors.As(err, &b) || !errors.Is(err, coll.ErrBroken) {
		return true, fmt.Errorf("%s: operation %d: not that the team is broken: %w", x.name, number, err)
	}
	switch b.Reason {
	case coll.Died:
		if slices.Contains(x.g.members, b.Rank) && x.dead(b.Rank) {
			return true, nil
		}
	case coll.Abandoned:
		// The Split failed at a member, after it had told the others that it would take part.
		if b.Op == coll.KindSplit && b.Number == 0 && x.from.hurt() {
			return true, nil
		}
		for _, a := range x.g.gaveUp {
			if a.rank == b.Rank && a.kind == b.Op && uint64(a.number)&coll.NumberMask == b.Number&coll.NumberMask {
				return true, nil
			}
		}
	case coll.Shrunk:
		if x.hurt() {
			return true, nil
		}
	}
	return true, fmt.Errorf("%s: operation %d: broken without that reason: %w; given up: %v", x.name, number, err, x.g.gaveUp)
}

// split makes teams, in which each rank goes on in a task of its own.
func (x *stay) split(ctx context.Context) (broken bool, err error) {
	colors := 1 + x.rng.IntN(3)
	salt := x.rng.Uint64()
	pick := rand.New(rand.NewPCG(salt, uint64(x.t.Rank())))
	color, key := pick.IntN(colors+1)-1, pick.IntN(5)
	if color < 0 {
		color = coll.Undefined
	}
	var sub *coll.Team
	var none error
	broken, err = x.do(coll.KindSplit, func(ctx context.Context) (err error) {
		sub, err = x.t.Split(ctx, color, key)
		if errors.Is(err, coll.ErrNoSlot) {
			none, err = err, nil
		}
		return err
	}, func() error {
		made, known := x.g.split[x.number]
		if known && made != (none == nil) {
			return fmt.Errorf("teams were made, %v, and not here: %v", made, none)
		}
		x.g.split[x.number] = none == nil
		if none == nil && (sub == nil) != (color == coll.Undefined) {
			return fmt.Errorf("color %d got the team %v", color, sub)
		}
		return nil
	}, ctx)
	if none != nil {
		x.tally.slotless++
	}
	if sub == nil {
		return broken, err
	}
	x.tally.splits++
	path := fmt.Sprintf("%s/%d:%d", x.name, x.number, color)
	ended, result := x.e.Host().NewParker(), error(nil)
	done := false
	x.e.Host().Go("subteam", func() {
		result = x.visitor.live(ctx, sub, path, x)
		done = true
		ended.Unpark()
	})
	x.subs = append(x.subs, func() error {
		for !done {
			if err := ended.Park(context.Background()); err != nil {
				return nil // dead
			}
		}
		return result
	})
	return broken, err
}
