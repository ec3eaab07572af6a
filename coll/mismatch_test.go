package coll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/racetest"
)

// mismatch is an operation that some of the members do while others do another one.
type mismatch struct {
	name string
	do   func(ctx context.Context, t *coll.Team) error
}

// anyMismatch is one of a random kind, with random arguments that are right for a team of n.
func anyMismatch(rng *rand.Rand, n int) mismatch {
	size := []int{0, 1, 3, 60, 700, 3001}[rng.IntN(6)]
	root := rng.IntN(n)
	counts := make([]int, n)
	for i := range counts {
		counts[i] = rng.IntN(3) * size
	}
	ints := func(n int) []int32 { return make([]int32, n) }
	var q mismatch
	kind := rng.IntN(13)
	switch kind {
	case 0:
		q.do = func(ctx context.Context, t *coll.Team) error { return t.Barrier(ctx) }
	case 1:
		q.do = func(ctx context.Context, t *coll.Team) error { return t.NamedBarrier(ctx, fmt.Sprint(size)) }
	case 2:
		q.do = func(ctx context.Context, t *coll.Team) error { return t.Broadcast(ctx, root, make([]byte, size)) }
	case 3:
		q.do = func(ctx context.Context, t *coll.Team) error {
			_, err := t.AllGather(ctx, make([]byte, size))
			return err
		}
	case 4:
		q.do = func(ctx context.Context, t *coll.Team) error {
			_, err := t.Split(ctx, 0, 0)
			return err
		}
	case 5:
		q.do = func(ctx context.Context, t *coll.Team) error { return coll.AllReduce(ctx, t, ints(size), coll.Sum) }
	case 6:
		q.do = func(ctx context.Context, t *coll.Team) error { return coll.Reduce(ctx, t, root, ints(size), coll.Sum) }
	case 7:
		q.do = func(ctx context.Context, t *coll.Team) error { return coll.Scan(ctx, t, ints(size), coll.Sum) }
	case 8:
		q.do = func(ctx context.Context, t *coll.Team) error { return coll.ExScan(ctx, t, ints(size), coll.Sum) }
	case 9:
		q.do = func(ctx context.Context, t *coll.Team) error {
			return coll.AllToAll(ctx, t, ints(n*size), ints(n*size))
		}
	case 10:
		q.do = func(ctx context.Context, t *coll.Team) error { return coll.AllGather(ctx, t, ints(n*size), ints(size)) }
	case 11:
		q.do = func(ctx context.Context, t *coll.Team) error {
			return coll.Scatter(ctx, t, root, ints(size), ints(n*size))
		}
	case 12:
		q.do = func(ctx context.Context, t *coll.Team) error {
			return coll.Gather(ctx, t, root, ints(n*size), ints(size))
		}
	}
	switch kind {
	case 0, 3, 4: // with whatever length
		size, root = 0, 0
	case 2: // a length that differs is the error of one rank
		size = 0
	case 6, 11, 12:
	default:
		root = 0
	}
	q.name = fmt.Sprintf("kind %d, size %d, root %d", kind, size, root)
	return q
}

// Whatever some members do that the others do not, all learn of it, also where all wait for a
// message of the others and nobody sends one.
func TestAnyMismatchIsReported(t *testing.T) {
	seeds := uint64(2000)
	if testing.Short() || racetest.Enabled {
		seeds = 200
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 2 + rng.IntN(8)
		a, b := anyMismatch(rng, n), anyMismatch(rng, n)
		if a.name == b.name {
			continue
		}
		c := ways[rng.IntN(len(ways))]
		before := anyMismatch(rng, n)
		has := make([]bool, n)
		for some := 0; some == 0 || some == n; {
			some = 0
			for i := range has {
				if has[i] = rng.IntN(3) == 0; has[i] {
					some++
				}
			}
		}
		onSim(t, sim.Config{Ranks: n, Seed: seed}, c, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
			if err := before.do(ctx, all); err != nil {
				var broken *coll.BrokenError // others are ahead
				if errors.As(err, &broken) && broken.Reason == coll.Mismatched {
					return nil
				}
				return fmt.Errorf("seed %d: before: %s: %w", seed, before.name, err)
			}
			q := a
			if has[e.Rank()] {
				q = b
			}
			limited, cancel := e.Host().WithTimeout(ctx, time.Second)
			defer cancel()
			err := q.do(limited, all)
			if err == nil {
				err = all.Barrier(limited)
			}
			var broken *coll.BrokenError
			if !errors.As(err, &broken) || broken.Reason != coll.Mismatched {
				return fmt.Errorf("seed %d: %d ranks: %s against %s: rank %d got %w", seed, n, a.name, b.name, e.Rank(), err)
			}
			return nil
		})
	}
}

// Who has waited long, and said so, takes that back when it has ended, also where its context has
// ended by then and another operation sends: else 2^20 operations later it would be a mismatch.
func TestANoticeIsTakenBack(t *testing.T) {
	const late = 50 * time.Millisecond
	var w *envtest.World
	const number = 2 // of the reduction, behind the Split
	heard := false
	onSim(t, sim.Config{Ranks: 2, Seed: 1, MaxTime: 10 * time.Second}, small, func(world *envtest.World) { w = world },
		func(ctx context.Context, e env.Env, all *coll.Team) error {
			other, err := all.Split(ctx, 0, 0)
			if err != nil {
				return err
			}
			sum := []int64{1}
			if e.Rank() == 0 {
				e.Host().Sleep(late)
				for _, k := range coll.Notices(all) {
					heard = heard || k == number
				}
				buf := make([]byte, 900)
				err := errors.Join(coll.AllReduce(ctx, all, sum, coll.Sum), other.Broadcast(ctx, 1, buf))
				e.Host().Sleep(4 * late)
				for r, k := range coll.Notices(all) {
					if k == number {
						err = errors.Join(err, fmt.Errorf("rail %d still has a notice of operation %d", r, k))
					}
				}
				return err
			}
			limited, cancel := context.WithCancel(ctx)
			defer cancel()
			var sent *coll.Pending
			err = coll.AllReduce(limited, all, sum, func(dst, src []int64) {
				w.Delay(0, 1, late)
				sent = other.StartBroadcast(ctx, 1, make([]byte, 900))
				e.Host().Sleep(late / 10) // it waits for the network now, with the lanes
				cancel()
				coll.Sum(dst, src)
			})
			if err == nil {
				err = sent.Wait(ctx)
			}
			e.Host().Sleep(8 * late)
			return err
		})
	if !heard {
		t.Error("nobody notified")
	}
}
