package coll_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// The counter in a generation comes round, and the team is as good as any.
func TestGenerationsComeRound(t *testing.T) {
	onSim(t, sim.Config{Ranks: 2, Seed: 1, MaxTime: time.Hour}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		for i := range 4100 {
			next, err := all.Shrink(ctx)
			if err != nil {
				return fmt.Errorf("the Shrink %d: %w", i, err)
			}
			if err := next.Barrier(ctx); err != nil {
				return fmt.Errorf("the barrier behind Shrink %d: %w", i, err)
			}
			all = next
		}
		return nil
	})
}

// Shrink of a team that was freed does nothing to the team that has its slot.
func TestShrinkOfAFreedTeamTouchesNothing(t *testing.T) {
	onSim(t, sim.Config{Ranks: 2, Seed: 1}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		team, err := all.Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		if err := team.Free(ctx); err != nil {
			return err
		}
		puts := all.Counters().Puts
		if next, err := team.Shrink(ctx); next != nil || !errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("got %v, %w", next, err)
		}
		if now := all.Counters().Puts; now != puts || team.Broken() != nil {
			return fmt.Errorf("%d puts into the slot, and the team is broken: %v", now-puts, team.Broken())
		}
		return all.Barrier(ctx)
	})
}

// A Split that one member gives up costs the others no slot: whether they have the new team,
// decline it, or do not know it.
func TestAnAbandonedSplitCostsNoSlot(t *testing.T) {
	made, none := 0, 0 // worlds in which some have the new team, and in which nobody has
	for limit := 100 * time.Nanosecond; limit < 20*time.Microsecond; limit += 100 * time.Nanosecond {
		c := coll.Config{Slots: 2, SlotBytes: 4 << 10}
		onSim(t, sim.Config{Ranks: 3, Seed: uint64(limit), MaxTime: 10 * time.Second}, c, nil,
			func(ctx context.Context, e env.Env, all *coll.Team) error {
				limited, cancel := ctx, func() {}
				if e.Rank() == 0 {
					limited, cancel = e.Host().WithTimeout(ctx, limit)
				}
				team, err := all.Split(limited, 0, 0)
				cancel()
				failed := []byte{0}
				if err != nil {
					failed[0] = 1
				}
				if all, err = all.Shrink(ctx); err != nil {
					return err
				}
				fails, err := all.AllGather(ctx, failed)
				if err != nil {
					return err
				}
				switch n := fails[0][0] + fails[1][0] + fails[2][0]; {
				case n == 0:
					return team.Free(ctx)
				case n == 3:
					none++
				default:
					made++
				}
				if team != nil {
					if err := errors.Join(untilBroken(ctx, team), team.Leave(ctx)); err != nil {
						return err
					}
				}
				if err := all.Barrier(ctx); err != nil {
					return err
				}
				if team, err = all.Split(ctx, 0, 0); err != nil {
					return err
				}
				return team.Free(ctx)
			})
	}
	if made == 0 || none == 0 {
		t.Errorf("in %d worlds the team was made at some members, in %d at none", made/3, none/3)
	}
}

// What went through lanes of the caller, and is late, does not reach the team that has the slot
// next.
func TestNothingLateReachesTheNextTeam(t *testing.T) {
	const late = 50 * time.Millisecond
	var w *envtest.World
	onSim(t, sim.Config{Ranks: 2, Seed: 1, MaxTime: time.Second}, small, func(world *envtest.World) { w = world },
		func(ctx context.Context, e env.Env, all *coll.Team) error {
			if e.Rank() == 0 {
				lanes, err := e.NewLanes()
				if err != nil {
					return err
				}
				defer lanes.Close()
				w.Delay(0, 1, late)
				if err := all.Through(lanes).Broadcast(ctx, 0, []byte("old")); err != nil {
					return err
				}
				w.Delay(0, 1, 0)
			} else {
				_ = untilBroken(ctx, all)
			}
			next, err := all.Shrink(ctx)
			if err != nil {
				return err
			}
			if e.Rank() == 1 {
				e.Host().Sleep(2 * late)
			}
			buf := []byte("new")
			if e.Rank() == 1 {
				clear(buf)
			}
			if err := next.Broadcast(ctx, 0, buf); err != nil || string(buf) != "new" {
				return fmt.Errorf("got %q, %w", buf, err)
			}
			return next.Barrier(ctx)
		})
}

// A member that lives and that one other has lost only waits, and sends nothing: it learns from the
// rest that it is dead for all, before they cut it off, whatever team it waits in.
func TestWhoIsTakenForDeadIsTold(t *testing.T) {
	const n, lost, finder, late = 6, 3, 0, 5 // no rail between lost and finder
	onSim(t, sim.Config{Ranks: n, Seed: 1, RetryTimeout: time.Millisecond}, ways[1], nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		color := 0
		if e.Rank() == finder {
			color = coll.Undefined
		}
		rest, err := all.Split(ctx, color, 0)
		if err != nil {
			return err
		}
		// Behind an exchange of pairs who finds a death tells all.
		if err := coll.AllToAll(ctx, all, make([]byte, n*3000), make([]byte, n*3000)); err != nil {
			return err
		}
		limited, cancel := e.Host().WithTimeout(ctx, time.Second)
		defer cancel()
		var other *coll.Pending
		switch e.Rank() {
		case finder:
			e.Host().Go("loss", func() {
				e.Host().Sleep(100 * time.Millisecond) // lost has notified, which would find the death
				e.SetDown(lost, errors.New("its network failed"))
			})
		case lost:
			other = rest.StartBarrier(limited)
		case late:
			e.Host().Sleep(200 * time.Millisecond)
		}
		if err := broken(all.Barrier(limited), coll.Died, lost, coll.KindNone, 0); err != nil {
			return err
		}
		live, err := all.Shrink(limited)
		switch {
		case e.Rank() == lost && !errors.Is(err, coll.ErrExcluded):
			return fmt.Errorf("the lost rank got %v, %w", live, err)
		case e.Rank() == lost:
			return broken(other.Wait(ctx), coll.Died, lost, coll.KindNone, 0)
		case err != nil:
			return err
		case e.Down(lost) == nil || live.Size() != n-1:
			return fmt.Errorf("%v is left, and the lost rank is down: %w", live, e.Down(lost))
		}
		return nil
	})
}

// Who has left a barrier may shrink the team while others are still in it: there it fails, and who
// did so is named. All go on together.
func TestAShrinkEndsABarrierThatOthersAreIn(t *testing.T) {
	var w *envtest.World
	onSim(t, sim.Config{Ranks: 3, Seed: 1}, small, func(v *envtest.World) { w = v }, func(ctx context.Context, e env.Env, all *coll.Team) error {
		if err := all.Barrier(ctx); err != nil {
			return err
		}
		if e.Rank() == 0 {
			// Rank 2 waits for rank 1, and rank 1 for rank 2. Rank 0 waits for neither of these messages.
			w.Delay(1, 2, time.Millisecond)
		}
		e.Host().Sleep(100 * time.Microsecond)
		switch err := all.Barrier(ctx); {
		case e.Rank() == 0 && err != nil:
			return err
		case e.Rank() != 0:
			if err := broken(err, coll.Shrunk, 0, coll.KindShrink, 0); err != nil {
				return err
			}
		}
		next, err := all.Shrink(ctx)
		if err != nil {
			return err
		}
		if next.Size() != 3 {
			return fmt.Errorf("%d members go on, want 3", next.Size())
		}
		return everything(ctx, e, next)
	})
}

// Nobody reports the death, and all that the dead rank was sent has arrived.
func TestShrinkFindsADeathThatNobodyReports(t *testing.T) {
	const dead = 2
	var w *envtest.World
	onSim(t, sim.Config{Ranks: 4, Seed: 1}, small, func(v *envtest.World) { w = v }, func(ctx context.Context, e env.Env, all *coll.Team) error {
		if e.Rank() == dead {
			e.Host().Sleep(10 * time.Millisecond) // the others are in Shrink
			w.At(0, func() { w.World.Kill(dead) })
			return w.NewParker().Park(ctx)
		}
		live, err := all.Shrink(ctx)
		if err != nil {
			return err
		}
		if live.Size() != 3 || live.Index(dead) >= 0 {
			return fmt.Errorf("the team of the live ranks: %v", live)
		}
		return everything(ctx, e, live)
	})
}
