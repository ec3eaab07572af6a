package coll_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/racetest"
)

// bounded is the Env of a rank whose job has a budget.
type bounded struct {
	env.Env
	b *flow.Budget
}

func (b bounded) Budget() env.Budget { return b.b }

// withLimit runs a program with a budget of so many bytes on each rank, and checks its accounts.
func withLimit(limit int64, f func(ctx context.Context, e bounded) error) func(context.Context, env.Env) error {
	return func(ctx context.Context, e env.Env) error {
		b, err := flow.NewBudget(flow.BudgetConfig{Limit: limit, Small: -1, Now: e.Host().Now,
			NewParker: func() flow.Parker { return e.Host().NewParker() }}, flow.Surroundings{})
		if err != nil {
			return err
		}
		if err := f(ctx, bounded{e, b}); err != nil {
			return err
		}
		if s := b.Stats(); s.Peak > limit || s.Acquired != 0 || s.Waiting != 0 {
			err = fmt.Errorf("a budget of %d bytes had up to %d outside, and has %d, %d claims wait", limit, s.Peak, s.Acquired, s.Waiting)
		}
		return errors.Join(err, b.Check())
	}
}

// giant is an element that fits no message of small.
type giant [600]int64

func addGiants(dst, src []giant) {
	for i := range dst {
		coll.Sum(dst[i][:], src[i][:])
	}
}

const giantBytes = 8 * int64(len(giant{}))

// giants are reductions of elements for which the budget has to have memory.
func giants(ctx context.Context, t *coll.Team, root int) error {
	n := int64(t.Size())
	me := int64(t.Rank())
	mine := func() []giant {
		v := make([]giant, 2)
		for i := range v {
			for j := range v[i] {
				v[i][j] = me + int64(i+j)
			}
		}
		return v
	}
	check := func(what string, v []giant, members int64) error {
		for i := range v {
			for j, got := range v[i] {
				if want := members*(members-1)/2 + members*int64(i+j); got != want {
					return fmt.Errorf("%s at %d of %d: element %d, %d is %d, want %d", what, me, n, i, j, got, want)
				}
			}
		}
		return nil
	}
	sum, one, upTo := mine(), mine(), mine()
	if err := coll.AllReduce(ctx, t, sum, addGiants); err != nil {
		return err
	}
	if err := coll.Reduce(ctx, t, root, one, addGiants); err != nil {
		return err
	}
	if err := coll.Scan(ctx, t, upTo, addGiants); err != nil {
		return err
	}
	err := errors.Join(check("all-reduce", sum, n), check("scan", upTo, me+1))
	if t.Rank() == root {
		err = errors.Join(err, check("reduce", one, n))
	}
	return err
}

// With memory for one reduction at a time, or two, or all; and while the program has all of it.
func TestCollectivesKeepTheBudget(t *testing.T) {
	for n := 1; n <= 8; n++ {
		if (testing.Short() || racetest.Enabled) && n%3 != 2 {
			continue
		}
		for _, limit := range []int64{2 * giantBytes, 5 * giantBytes, 1 << 30} {
			w := newWorld(t, sim.Config{Ranks: n, Seed: uint64(n)}, ways[1])
			err := w.Run(withLimit(limit, func(ctx context.Context, e bounded) error {
				return with(ways[1], func(ctx context.Context, e env.Env, all *coll.Team) error {
					if err := errors.Join(allData(ctx, e, all), giants(ctx, all, n/2)); err != nil {
						return err
					}
					b := e.(bounded).b
					if err := b.Acquire(ctx, limit); err != nil {
						return err
					}
					defer b.Release(limit)
					return allData(ctx, e, all)
				})(ctx, e)
			}))
			if err != nil {
				t.Errorf("%d ranks, a budget of %d bytes: %v", n, limit, err)
			}
		}
	}
}

// Two teams with the same members, in orders of their own, each have an operation that needs most
// of the budget, at the same time.
func TestTwoTeamsShareATightBudget(t *testing.T) {
	for n := 2; n <= 8; n++ {
		for seed := range uint64(8) {
			cfg := small
			cfg.Slots = 3
			w := newWorld(t, sim.Config{Ranks: n, Seed: seed, Jitter: 20 * time.Microsecond, MaxTime: 10 * time.Second}, cfg)
			err := w.Run(withLimit(2*giantBytes, func(ctx context.Context, e bounded) error {
				return with(cfg, func(ctx context.Context, e env.Env, all *coll.Team) error {
					up, err := all.Split(ctx, 0, e.Rank())
					if err != nil {
						return err
					}
					down, err := all.Split(ctx, 0, -e.Rank())
					if err != nil {
						return err
					}
					if e.Rank()%2 == 1 { // who comes first differs
						up, down = down, up
					}
					ended, second := e.Host().NewParker(), error(nil)
					over := false
					e.Host().Go("second team", func() {
						second = giants(ctx, down, n/2)
						over = true
						ended.Unpark()
					})
					err = giants(ctx, up, n/2)
					for !over {
						if err := ended.Park(ctx); err != nil {
							return err
						}
					}
					return errors.Join(err, second)
				})(ctx, e)
			}))
			if err != nil {
				t.Fatalf("%d ranks, seed %d: %v", n, seed, err)
			}
		}
	}
}

// While rank 0 does the operations of two teams at once, the others do them one after the other. So
// rank 0, which reduces, waits in the first for programs that wait in the second for memory there.
func TestMemoryIsTakenWhenAllHaveBegun(t *testing.T) {
	cfg := small
	cfg.Slots = 3
	for _, c := range []struct {
		name  string
		key   int // of the teams, times the rank: who reduces has to be rank 0
		start func(ctx context.Context, t *coll.Team) *coll.Pending
	}{
		{"all-reduce", 1, func(ctx context.Context, t *coll.Team) *coll.Pending {
			return coll.StartAllReduce(ctx, t, make([]giant, 2), addGiants)
		}},
		{"reduce", 1, func(ctx context.Context, t *coll.Team) *coll.Pending {
			return coll.StartReduce(ctx, t, 0, make([]giant, 2), addGiants)
		}},
		{"scan", -1, func(ctx context.Context, t *coll.Team) *coll.Pending {
			return coll.StartScan(ctx, t, make([]giant, 2), addGiants)
		}},
		{"exclusive scan", -1, func(ctx context.Context, t *coll.Team) *coll.Pending {
			return coll.StartExScan(ctx, t, make([]giant, 2), addGiants)
		}},
	} {
		for n := 2; n <= 4; n++ {
			w := newWorld(t, sim.Config{Ranks: n, Seed: uint64(n), MaxTime: 10 * time.Second}, cfg)
			err := w.Run(withLimit(2*giantBytes, func(ctx context.Context, e bounded) error {
				return with(cfg, func(ctx context.Context, e env.Env, all *coll.Team) error {
					a, err := all.Split(ctx, 0, c.key*e.Rank())
					if err != nil {
						return err
					}
					b, err := all.Split(ctx, 0, c.key*e.Rank())
					if err != nil {
						return err
					}
					if e.Rank() > 0 {
						return errors.Join(c.start(ctx, b).Wait(ctx), c.start(ctx, a).Wait(ctx))
					}
					first := c.start(ctx, a)
					e.Host().Sleep(time.Millisecond)
					return errors.Join(c.start(ctx, b).Wait(ctx), first.Wait(ctx))
				})(ctx, e)
			}))
			if err != nil {
				t.Errorf("%s of %d ranks: %v", c.name, n, err)
			}
		}
	}
}

// The member that reduces waits for memory of its program's when another gives the operation up or
// dies, or when it gives up a later one itself.
func TestTheWaitForMemoryEndsWithTheTeam(t *testing.T) {
	const n, limit = 3, 2 * giantBytes
	reduce := func(ctx context.Context, t *coll.Team) *coll.Pending {
		return coll.StartAllReduce(ctx, t, make([]giant, 2), addGiants)
	}
	scan := func(ctx context.Context, t *coll.Team) *coll.Pending {
		return coll.StartScan(ctx, t, make([]giant, 2), addGiants)
	}
	for _, c := range []struct {
		name        string
		start       func(ctx context.Context, t *coll.Team) *coll.Pending
		waiter, who int
		reason      coll.Reason
	}{
		{"all-reduce, another gives up", reduce, 0, 1, coll.Abandoned},
		{"all-reduce, another dies", reduce, 0, 2, coll.Died},
		{"all-reduce, a later one is given up", reduce, 0, 0, coll.Abandoned},
		{"scan, another gives up", scan, n - 1, 1, coll.Abandoned},
	} {
		var scarce atomic.Pointer[flow.Budget] // the waiter's
		waits := func(kill func()) func(context.Context, env.Env) error {
			return withLimit(limit, func(ctx context.Context, e bounded) error {
				return with(small, func(ctx context.Context, _ env.Env, all *coll.Team) error {
					if err := e.b.Acquire(ctx, limit); err != nil {
						return err
					}
					defer e.b.Release(limit)
					if e.Rank() == c.waiter {
						scarce.Store(e.b)
					}
					if err := all.Barrier(ctx); err != nil {
						return err
					}
					long, cancel := e.Host().WithTimeout(ctx, 10*time.Second)
					defer cancel()
					given, giveUp := context.WithCancel(long)
					defer giveUp()
					if e.Rank() == c.who {
						e.Host().Go("reason", func() {
							for long.Err() == nil && scarce.Load().Stats().Waiting == 0 {
								e.Host().Sleep(100 * time.Microsecond)
							}
							if c.reason == coll.Died {
								kill()
							} else {
								giveUp()
							}
						})
					}
					var p *coll.Pending
					if e.Rank() == c.who && c.who != c.waiter {
						p = c.start(given, all)
					} else {
						p = c.start(long, all)
						all.StartBarrier(given)
					}
					return errors.Join(broken(p.Wait(ctx), c.reason, c.who, coll.KindNone, 0), long.Err())
				})(ctx, e)
			})
		}
		w := newWorld(t, sim.Config{Ranks: n, Seed: 1, MaxTime: 20 * time.Second}, small)
		if err := w.Run(waits(func() { w.Kill(c.who) })); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.reason != coll.Died {
			spec, err := coll.Spec(n, small)
			if err != nil {
				t.Fatal(err)
			}
			envtest.SHM(t, n, waits(nil), spec)
		}
	}
}

// late is a budget whose memory comes when nobody waits for it any more.
type late struct {
	ledger
	host env.Host
}

func (l *late) Acquire(ctx context.Context, n int64) error {
	if err := l.host.NewParker().Park(ctx); err == nil {
		return errors.New("nobody has ended the wait")
	}
	return l.ledger.Acquire(ctx, n)
}

type unpunctual struct {
	env.Env
	l *late
}

func (u unpunctual) Budget() env.Budget { return u.l }

func TestMemoryThatComesTooLateGoesBack(t *testing.T) {
	w := newWorld(t, sim.Config{Ranks: 2, Seed: 1}, small)
	if err := w.Run(func(ctx context.Context, e env.Env) error {
		l := &late{host: e.Host()}
		return with(small, func(ctx context.Context, _ env.Env, all *coll.Team) error {
			if e.Rank() == 1 {
				var cancel func()
				ctx, cancel = e.Host().WithTimeout(ctx, time.Millisecond)
				defer cancel()
			}
			err := broken(coll.AllReduce(ctx, all, make([]giant, 1), addGiants), coll.Abandoned, 1, coll.KindAllReduce, 1)
			if e.Rank() == 0 && (l.most != 2*giantBytes || l.now != 0) {
				err = errors.Join(err, fmt.Errorf("up to %d bytes came, and %d are outside", l.most, l.now))
			}
			return err
		})(ctx, unpunctual{e, l})
	}); err != nil {
		t.Error(err)
	}
}

// Where there is room for nothing a rank has one place for messages, with more room more, up to
// four: in a simulation, and over shared memory where ranks must not read each other's.
func TestThePaceFollowsTheBudget(t *testing.T) {
	const n, block = 5, 3000
	cfg := ways[1]
	place := cfg.SlotBytes * 4 / 8
	for _, c := range []struct {
		name    string
		limit   int
		held    bool
		touched int
	}{{"ample", 1 << 20, false, 4}, {"middling", 2 * place, false, 3}, {"tight", 4 * place, true, 1}} {
		exchange := withLimit(int64(c.limit), func(ctx context.Context, e bounded) error {
			if c.held {
				if err := e.b.Acquire(ctx, int64(c.limit)); err != nil {
					return err
				}
				defer e.b.Release(int64(c.limit))
			}
			return with(cfg, func(ctx context.Context, e env.Env, all *coll.Team) error {
				src, dst := make([]byte, n*block), make([]byte, n*block)
				for i := range src {
					src[i] = byte(1 + e.Rank())
				}
				if err := coll.AllToAll(ctx, all, dst, src); err != nil {
					return err
				}
				for i, v := range dst {
					if int(v) != 1+i/block {
						return fmt.Errorf("byte %d is %d", i, v)
					}
				}
				used, places := 0, coll.Places(all)
				for p := range places {
					if !bytes.Equal(places[p], make([]byte, place)) {
						used++
					}
				}
				if used != c.touched {
					return fmt.Errorf("%s: %d of %d places were used, want %d", c.name, used, len(places), c.touched)
				}
				return nil
			})(ctx, e)
		})
		if err := newWorld(t, sim.Config{Ranks: n, Seed: 1}, cfg).Run(exchange); err != nil {
			t.Error(err)
		}
		spec, err := coll.Spec(n, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var puts atomic.Int64
		envtest.SHM(t, n, func(ctx context.Context, e env.Env) error {
			return exchange(ctx, hosts{e, func(rank int) int { return rank }, &puts})
		}, spec)
	}
}

// BenchmarkBudget is long all-to-all in a simulation, whose instructions tell what a budget costs:
// `perf stat -e instructions:u` of each, or valgrind, as times tell nothing.
func BenchmarkBudget(b *testing.B) {
	for _, name := range []string{"none", "ample"} {
		b.Run(name, func(b *testing.B) {
			const n, block = 4, 64 << 10
			spec, err := coll.Spec(n, coll.Config{})
			if err != nil {
				b.Fatal(err)
			}
			w, err := envtest.NewWorld(sim.Config{Ranks: n, Seed: 1}, spec)
			if err != nil {
				b.Fatal(err)
			}
			work := with(coll.Config{}, func(ctx context.Context, e env.Env, all *coll.Team) error {
				src, dst := make([]byte, n*block), make([]byte, n*block)
				for range b.N {
					if err := coll.AllToAll(ctx, all, dst, src); err != nil {
						return err
					}
				}
				return nil
			})
			if name == "ample" {
				err = w.Run(withLimit(1<<30, func(ctx context.Context, e bounded) error { return work(ctx, e) }))
			} else {
				err = w.Run(work)
			}
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
