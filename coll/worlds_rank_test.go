package coll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
)

// hurt reports whether there is a reason why the team breaks. That may lie in the team that was
// split.
func (x *stay) hurt() bool {
	return x != nil && (len(x.g.gaveUp) > 0 || slices.ContainsFunc(x.g.members, x.dead) || x.from.hurt())
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
