package coll_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// broken returns an error unless err is a *BrokenError with this reason, rank and operation.
func broken(err error, reason coll.Reason, rank int, op coll.Kind, number uint64) error {
	var b *coll.BrokenError
	if !errors.As(err, &b) || !errors.Is(err, coll.ErrBroken) {
		return fmt.Errorf("%v, want that the team is broken", err)
	}
	if b.Reason != reason || b.Rank != rank || op != coll.KindNone && (b.Op != op || b.Number != number) {
		return fmt.Errorf("%+v (%w), want %v by rank %d in %v %d", b, err, reason, rank, op, number)
	}
	return nil
}

// A death breaks the teams that the rank is in and no other; those go on, and so do the survivors.
func TestADeathBreaksJustTheTeamsItIsIn(t *testing.T) {
	const dead = 3
	var w *envtest.World
	onSim(t, sim.Config{Ranks: 6, Seed: 1}, small, func(v *envtest.World) { w = v }, func(ctx context.Context, e env.Env, all *coll.Team) error {
		half, err := all.Split(ctx, e.Rank()/3, 0)
		if err != nil {
			return err
		}
		if err := all.Barrier(ctx); err != nil {
			return err
		}
		if e.Rank() == dead {
			e.Host().Sleep(100 * time.Microsecond) // the others have left the barrier
			w.At(0, func() { w.Kill(dead) })
			return w.NewParker().Park(ctx)
		}
		if err := broken(all.Barrier(ctx), coll.Died, dead, coll.KindNone, 0); err != nil {
			return err
		}
		if err := all.Barrier(ctx); !errors.Is(err, fabric.ErrPeerDown) {
			return fmt.Errorf("not that a rank is down: %w", err)
		}
		if e.Rank() < 3 {
			if err := everything(ctx, e, half); err != nil {
				return fmt.Errorf("a team without the dead rank: %w", err)
			}
		} else if err := broken(half.Barrier(ctx), coll.Died, dead, coll.KindNone, 0); err != nil {
			return err
		}
		live, err := all.Shrink(ctx)
		if err != nil {
			return err
		}
		if live.Size() != 5 || live.Member(3) != 4 || live.Index(dead) >= 0 {
			return fmt.Errorf("the team of the live ranks: %v", live)
		}
		return everything(ctx, e, live)
	})
}

// Whoever gives an operation up is named to all others, with the operation and its number, also to
// those who come later. Other teams go on.
func TestAnAbandonedOperationIsNamedToAll(t *testing.T) {
	for n := 2; n <= 9; n++ {
		begun := time.Duration(0)
		onSim(t, sim.Config{Ranks: n, Seed: uint64(n)}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
			other, err := all.Split(ctx, 0, -e.Rank())
			if err != nil {
				return err
			}
			var got error
			switch e.Rank() {
			case n - 1: // comes when all is over
				e.Host().Sleep(time.Second)
				got = all.Barrier(ctx)
			case 0:
				begun = e.Host().Now()
				limited, cancel := e.Host().WithTimeout(ctx, time.Millisecond)
				got = all.Barrier(limited)
				cancel()
				if !errors.Is(got, context.DeadlineExceeded) {
					return fmt.Errorf("not why it gave up: %w", got)
				}
			default:
				got = all.Barrier(ctx)
				if took := e.Host().Now() - begun; took > 50*time.Millisecond {
					return fmt.Errorf("learned of it after %v", took)
				}
			}
			if err := broken(got, coll.Abandoned, 0, coll.KindBarrier, 2); err != nil {
				return fmt.Errorf("at rank %d: %w", e.Rank(), err)
			}
			if err := other.Barrier(ctx); err != nil {
				return err
			}
			return other.Free(ctx)
		})
	}
}

// Members in different operations, or in the same with different roots or names, all learn of it.
func TestMismatchedOperationsAreReported(t *testing.T) {
	for name, ops := range map[string][2]func(ctx context.Context, t *coll.Team) error{
		"in a barrier": {
			func(ctx context.Context, t *coll.Team) error { return t.Barrier(ctx) },
			func(ctx context.Context, t *coll.Team) error { return t.Broadcast(ctx, 0, make([]byte, 8)) },
		},
		"number, root or name": {
			func(ctx context.Context, t *coll.Team) error { return t.NamedBarrier(ctx, "here") },
			func(ctx context.Context, t *coll.Team) error { return t.NamedBarrier(ctx, "there") },
		},
		"in a broadcast": {
			func(ctx context.Context, t *coll.Team) error { return t.Broadcast(ctx, 1, make([]byte, 8)) },
			func(ctx context.Context, t *coll.Team) error { return t.Broadcast(ctx, 2, make([]byte, 8)) },
		},
		"in an all-gather": {
			func(ctx context.Context, t *coll.Team) error { _, err := t.AllGather(ctx, nil); return err },
			func(ctx context.Context, t *coll.Team) error { return t.Barrier(ctx) },
		},
	} {
		for n := 3; n <= 8; n++ {
			found := 0
			onSim(t, sim.Config{Ranks: n, Seed: uint64(n)}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
				op := ops[0]
				if e.Rank() == n-1 {
					op = ops[1]
				}
				err := op(ctx, all)
				if err == nil { // it needed nothing of who is elsewhere: the next one says so
					err = all.Barrier(ctx)
				}
				var b *coll.BrokenError
				if !errors.As(err, &b) || b.Reason != coll.Mismatched {
					return fmt.Errorf("%s of %d ranks: rank %d got %w", name, n, e.Rank(), err)
				}
				if m := (*coll.MismatchError)(nil); errors.As(err, &m) {
					found++
					if strings.Contains(err.Error(), name) {
						found += 100
					}
				}
				return nil
			})
			if found < 100 {
				t.Errorf("%s of %d ranks: nobody says so", name, n)
			}
		}
	}
}

// Nobody leaves a barrier in which one member gave another name, and each says so.
func TestOtherNamesAreReportedOnEveryRank(t *testing.T) {
	for n := 2; n <= 17; n++ {
		for odd := range n {
			onSim(t, sim.Config{Ranks: n, Seed: uint64(odd)}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
				name := "here"
				if e.Rank() == odd {
					name = "there"
				}
				err := all.NamedBarrier(ctx, name)
				var b *coll.BrokenError
				if !errors.As(err, &b) || b.Reason != coll.Mismatched || b.Op != coll.KindBarrier || b.Number != 1 {
					return fmt.Errorf("%d of %d ranks gave another name: rank %d got %w", odd, n, e.Rank(), err)
				}
				return nil
			})
		}
	}
}

// Without a free slot all members get the same error, which has the remedy; a freed one is used
// again.
func TestWithoutASlotAllGetTheSameError(t *testing.T) {
	c := coll.Config{Slots: 3, SlotBytes: 4 << 10}
	errs := make([]string, 5)
	onSim(t, sim.Config{Ranks: 5, Seed: 1}, c, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		for range 50 {
			var teams []*coll.Team
			for range 2 {
				team, err := all.Split(ctx, 7, 0)
				if err != nil {
					return err
				}
				teams = append(teams, team)
			}
			team, err := all.Split(ctx, 7, 0)
			var none *coll.NoSlotError
			if team != nil || !errors.As(err, &none) || none.Slots != 3 || none.Color != 7 {
				return fmt.Errorf("got %v, %w", team, err)
			}
			errs[e.Rank()] = err.Error()
			if team, err := all.Split(ctx, coll.Undefined, 0); team != nil || err != nil {
				return fmt.Errorf("a Split that makes no team: %v, %w", team, err)
			}
			for _, team := range teams {
				if err := errors.Join(team.Barrier(ctx), team.Free(ctx)); err != nil {
					return err
				}
				if err := team.Barrier(ctx); err == nil || !strings.Contains(err.Error(), "was freed") {
					return fmt.Errorf("a freed team: %w", err)
				}
			}
		}
		return nil
	})
	for _, s := range errs {
		if s != errs[0] || !strings.Contains(s, "free teams that are not used any more") {
			t.Errorf("%q and %q", s, errs[0])
		}
	}
}

// Two Splits of one rank's teams at the same time do not give one slot to both.
func TestSplitsAtTheSameTimeTakeDifferentSlots(t *testing.T) {
	for seed := range uint64(30) {
		onSim(t, sim.Config{Ranks: 4, Seed: seed}, coll.Config{Slots: 6, SlotBytes: 4 << 10}, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
			rows, err := all.Split(ctx, e.Rank()/2, 0)
			if err != nil {
				return err
			}
			columns, err := all.Split(ctx, e.Rank()%2, 0)
			if err != nil {
				return err
			}
			made, errs, left := make([]*coll.Team, 3), make([]error, 3), 3
			done := e.Host().NewParker()
			for i, parent := range []*coll.Team{all, rows, columns} {
				e.Host().Go("split", func() {
					made[i], errs[i] = parent.Split(ctx, 0, 0)
					if errs[i] == nil {
						errs[i] = everything(ctx, e, made[i])
					}
					if left--; left == 0 {
						done.Unpark()
					}
				})
			}
			for left > 0 {
				if err := done.Park(ctx); err != nil {
					return err
				}
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			if a, b, c := made[0].Slot(), made[1].Slot(), made[2].Slot(); a == b || b == c || a == c {
				return fmt.Errorf("slots %d, %d and %d", a, b, c)
			}
			return nil
		})
	}
}

// Two ranks that cannot reach each other: one of them at least is dead for all, and learns that it
// is.
func TestWhoOneMemberLosesIsExcluded(t *testing.T) {
	cut := 0
	for seed := range uint64(20) {
		onSim(t, sim.Config{Ranks: 5, Seed: seed, RetryTimeout: time.Millisecond}, small, func(w *envtest.World) { w.Cut(0, 4) },
			func(ctx context.Context, e env.Env, all *coll.Team) error {
				if err := untilBroken(ctx, all); err != nil {
					return err
				}
				// Who was told by others that a rank is down takes it for dead itself.
				if down := (*fabric.PeerDownError)(nil); errors.As(all.Broken(), &down) && down.Rank != e.Rank() && e.Down(down.Rank) == nil {
					return fmt.Errorf("%w, and operations to it go on", all.Broken())
				}
				live, err := all.Shrink(ctx)
				switch {
				case errors.Is(err, coll.ErrExcluded):
					cut++
					return nil
				case err != nil:
					return err
				case live.Size() == 1: // no word of the others got through
					cut++
					return nil
				case e.Rank() == 0 || e.Rank() == 4: // who was found dead first
					return live.Barrier(ctx)
				case live.Index(1) < 0 || live.Index(2) < 0 || live.Index(3) < 0 || live.Size() == 5:
					return fmt.Errorf("%v is left", live)
				}
				return live.Barrier(ctx)
			})
	}
	if cut < 20 {
		t.Errorf("in 20 worlds %d ranks were cut off", cut)
	}
}

// untilBroken enters barriers until one fails.
func untilBroken(ctx context.Context, t *coll.Team) error {
	for {
		if err := t.Barrier(ctx); errors.Is(err, coll.ErrBroken) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// Members that give a broken team up keep nobody waiting, and their slot comes back.
func TestWhoLeavesABrokenTeamIsDoneWithout(t *testing.T) {
	c := coll.Config{Slots: 2, SlotBytes: 4 << 10}
	onSim(t, sim.Config{Ranks: 6, Seed: 1}, c, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		if err := all.Leave(ctx); err == nil {
			return errors.New("a team that is not broken was left")
		}
		for round := range 20 {
			team, err := all.Split(ctx, 0, 0)
			if err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			if e.Rank() == 0 {
				gone, cancel := e.Host().WithTimeout(ctx, time.Microsecond)
				err = team.Barrier(gone)
				cancel()
				if err == nil {
					return errors.New("it came in time")
				}
			} else {
				e.Host().Sleep(10 * time.Microsecond) // so that rank 0 waits
				if err := untilBroken(ctx, team); err != nil {
					return err
				}
			}
			if team.Broken() == nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			if e.Rank()%3 == 0 {
				err = team.Leave(ctx)
			} else if team, err = team.Shrink(ctx); err == nil {
				if team.Size() != 4 {
					return fmt.Errorf("%d of 4 are left", team.Size())
				}
				err = errors.Join(team.Barrier(ctx), team.Free(ctx))
			}
			if err = errors.Join(err, all.Barrier(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Several goroutines of each rank use several teams, in whatever order they get to it.
func TestManyTeamsAtOnceOverSharedMemory(t *testing.T) {
	c := coll.Config{Slots: 8, SlotBytes: 4 << 10}
	onSHM(t, 4, c, func(ctx context.Context, e env.Env, all *coll.Team) error {
		var teams []*coll.Team
		for i := range 6 {
			team, err := all.Split(ctx, e.Rank()%(1+i%2), i*e.Rank()%5)
			if err != nil {
				return err
			}
			teams = append(teams, team)
		}
		errs := make([]error, len(teams))
		var wait sync.WaitGroup
		for i := range teams {
			at := (i + e.Rank()) % len(teams)
			wait.Go(func() {
				if errs[at] = everything(ctx, e, teams[at]); errs[at] == nil {
					errs[at] = teams[at].Free(ctx)
				}
			})
		}
		wait.Wait()
		return errors.Join(errs...)
	})
}

// Operations that were started end in their order, and results are there when they have ended.
func TestPendingOperationsRunInTheirOrder(t *testing.T) {
	program := func(ctx context.Context, e env.Env, all *coll.Team) error {
		a, b := make([]byte, 300), make([]byte, 300)
		if all.Rank() == 0 {
			copy(a, fill(300, 1))
		}
		first := all.StartBroadcast(ctx, 0, a)
		if all.Rank() == 1 {
			copy(b, fill(300, 2))
		}
		second := all.StartBroadcast(ctx, 1, b)
		third := all.StartAllGather(ctx, fill(100+all.Rank()%3, 5, all.Rank()))
		if err := all.Barrier(ctx); err != nil { // behind them
			return err
		}
		for _, p := range []*coll.Pending{first, second, third} {
			// The barrier was begun when the one before it had let its turn go, which it does last.
			if err := p.Wait(ctx); err != nil {
				return err
			}
		}
		if string(a) != string(fill(300, 1)) || string(b) != string(fill(300, 2)) {
			return errors.New("wrong bytes")
		}
		return gathered(all, third.Blobs(), 100, 5)
	}
	for n := 2; n <= 9; n++ {
		onSim(t, sim.Config{Ranks: n, Seed: uint64(n)}, small, nil, program)
	}
	onSHM(t, 3, small, program)
}

// A started operation has its place: given up before it has begun it breaks the team all the same.
func TestAPendingThatIsGivenUpBreaksTheTeam(t *testing.T) {
	onSim(t, sim.Config{Ranks: 3, Seed: 1}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		if e.Rank() != 0 {
			e.Host().Sleep(5 * time.Millisecond)
			return broken(all.Barrier(ctx), coll.Abandoned, 0, coll.KindNone, 0)
		}
		gone, cancel := e.Host().WithTimeout(ctx, time.Millisecond)
		defer cancel()
		p, q := all.StartBarrier(gone), all.StartBarrier(gone)
		return errors.Join(broken(p.Wait(ctx), coll.Abandoned, 0, coll.KindNone, 0), broken(q.Wait(ctx), coll.Abandoned, 0, coll.KindNone, 0))
	})
}

// A job that closes ends what waits, and refuses what comes later.
func TestAClosingJobEndsOperations(t *testing.T) {
	onSim(t, sim.Config{Ranks: 2, Seed: 1}, small, func(w *envtest.World) {
		w.At(time.Millisecond, func() { w.Close(0) })
	}, func(ctx context.Context, e env.Env, all *coll.Team) error {
		if e.Rank() == 1 {
			e.Host().Sleep(2 * time.Millisecond)
			return broken(all.Barrier(ctx), coll.Abandoned, 0, coll.KindBarrier, 1)
		}
		if err := all.Barrier(ctx); !strings.Contains(err.Error(), "the job is closing") {
			return err
		}
		return nil
	})
}

func TestConfigurationsAreChecked(t *testing.T) {
	for want, c := range map[string]coll.Config{
		"Config.Slots is -1":    {Slots: -1},
		"Config.Slots is 5000":  {Slots: 5000},
		"Config.SlotBytes is 1": {SlotBytes: 1},
		"want 4 KiB to 64 MiB":  {SlotBytes: 1 << 30},
	} {
		if _, err := coll.Spec(4, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
	if _, err := coll.Spec(1<<20+1, coll.Config{}); err == nil {
		t.Error("more ranks than a word has room for")
	}
	e := newWorld(t, sim.Config{Ranks: 2}, small).Env(0)
	if _, err := coll.Open(e, coll.Config{Slots: 100}); err == nil || !strings.Contains(err.Error(), "lay out what Spec returns") {
		t.Errorf("a region that is too small: %v", err)
	}
}

// A Split that ends at some members and fails at another: who has the new team is told that the
// other has not.
func TestASplitThatFailsAtOneMemberIsTold(t *testing.T) {
	told := 0
	for limit := time.Microsecond; limit < 80*time.Microsecond; limit += time.Microsecond {
		onSim(t, sim.Config{Ranks: 5, Seed: uint64(limit), MaxTime: 10 * time.Second}, small, nil,
			func(ctx context.Context, e env.Env, all *coll.Team) error {
				limited, cancel := ctx, func() {}
				if e.Rank() == 0 {
					limited, cancel = e.Host().WithTimeout(ctx, limit)
				}
				made, err := all.Split(limited, 0, 0)
				cancel()
				if err != nil {
					return nil
				}
				if err := made.Barrier(ctx); err != nil {
					told++
					return broken(err, coll.Abandoned, 0, coll.KindNone, 0)
				}
				return nil
			})
	}
	if told == 0 {
		t.Error("no Split ended at some members only")
	}
}
