package coll_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// What members do not agree on breaks the team, and all learn of it.
func TestMismatchedDataIsReported(t *testing.T) {
	ints := func(n int) []int64 { return make([]int64, n) }
	type do = func(ctx context.Context, t *coll.Team) error
	allReduce := func(n int) do {
		return func(ctx context.Context, t *coll.Team) error { return coll.AllReduce(ctx, t, ints(n), coll.Sum) }
	}
	reduce := func(n, root int) do {
		return func(ctx context.Context, t *coll.Team) error { return coll.Reduce(ctx, t, root, ints(n), coll.Sum) }
	}
	allToAll := func(n int) do {
		return func(ctx context.Context, t *coll.Team) error {
			return coll.AllToAll(ctx, t, ints(n*t.Size()), ints(n*t.Size()))
		}
	}
	allGather := func(n int) do {
		return func(ctx context.Context, t *coll.Team) error {
			return coll.AllGather(ctx, t, ints(n*t.Size()), ints(n))
		}
	}
	allToAllV := func(n int) do {
		return func(ctx context.Context, t *coll.Team) error {
			counts, sum := make([]int, t.Size()), 0
			for i := range counts {
				counts[i] = 10
				if i != t.Rank() {
					counts[i] = n
				}
				sum += counts[i]
			}
			return coll.AllToAllV(ctx, t, ints(sum), counts, ints(sum), counts)
		}
	}
	scatter := func(n, root int) do {
		return func(ctx context.Context, t *coll.Team) error {
			return coll.Scatter(ctx, t, root, ints(n), ints(n*t.Size()))
		}
	}
	gatherV := func(n, m int) do {
		return func(ctx context.Context, t *coll.Team) error {
			counts := make([]int, t.Size())
			for i := range counts {
				counts[i] = n
			}
			counts[0] = m
			return coll.GatherV(ctx, t, 0, ints(m+n*(t.Size()-1)), counts, ints(m))
		}
	}
	for name, ops := range map[string][2]do{
		"short lengths":                               {allReduce(1), allReduce(2)},
		"long lengths":                                {allReduce(1000), allReduce(1001)},
		"short and long":                              {allReduce(1), allReduce(1000)},
		"none and some":                               {allReduce(0), allReduce(5)},
		"none and many":                               {allReduce(1000), allReduce(0)},
		"all-gathers on both sides of a message":      {allGather(15), allGather(1000)},
		"all-gathers of short and long":               {allGather(1), allGather(1000)},
		"long all-gathers":                            {allGather(1000), allGather(1001)},
		"an empty all-gather":                         {allGather(0), allGather(1000)},
		"an all-gather and an all-to-all":             {allGather(1000), allToAll(1000)},
		"an all-gather and an all-to-all with counts": {allGather(1000), allToAllV(1000)},
		"types": {allReduce(1000), func(ctx context.Context, t *coll.Team) error {
			return coll.AllReduce(ctx, t, make([]float64, 1000), coll.Sum)
		}},
		"operations":                {allReduce(1000), allToAll(1000)},
		"a reduction and a scan":    {allReduce(10), func(ctx context.Context, t *coll.Team) error { return coll.Scan(ctx, t, ints(10), coll.Sum) }},
		"a reduction and a barrier": {allReduce(1000), func(ctx context.Context, t *coll.Team) error { return t.Barrier(ctx) }},
		"roots":                     {reduce(1000, 0), reduce(1000, 1)},
		"blocks":                    {allToAll(1000), allToAll(999)},
		"short blocks":              {allToAll(1), allToAll(2)},
		"counts":                    {allToAllV(1000), allToAllV(500)},
		"counts of short blocks":    {allToAllV(3), allToAllV(0)},
		"blocks with and without V": {allToAll(1000), allToAllV(1000)},
		"roots that send":           {scatter(1000, 0), scatter(1000, 1)},
		"what root expects":         {gatherV(1000, 1000), gatherV(1000, 999)},
		"an all-gather of two kinds": {func(ctx context.Context, t *coll.Team) error {
			return coll.AllGather(ctx, t, ints(4*t.Size()), ints(4))
		}, func(ctx context.Context, t *coll.Team) error {
			_, err := t.AllGather(ctx, make([]byte, 32))
			return err
		}},
		"lengths of exclusive scans":  {func(ctx context.Context, t *coll.Team) error { return coll.ExScan(ctx, t, ints(10), coll.Sum) }, func(ctx context.Context, t *coll.Team) error { return coll.ExScan(ctx, t, ints(900), coll.Sum) }},
		"a reduction with too little": {reduce(1000, 0), reduce(10, 0)},
	} {
		run := func(n int) program {
			return func(ctx context.Context, e env.Env, all *coll.Team) error {
				op, err := ops[0], error(nil)
				if e.Rank() == n-1 {
					op = ops[1]
				}
				if n%2 == 1 { // later operations do not ask again who is near
					err = allReduce(1000)(ctx, all) // others may be ahead already
				}
				if err == nil {
					err = op(ctx, all)
				}
				if err == nil { // it needed nothing of who is elsewhere: the next one says so
					err = all.Barrier(ctx)
				}
				var b *coll.BrokenError
				if !errors.As(err, &b) || b.Reason != coll.Mismatched {
					return fmt.Errorf("%s at %d of %d ranks: %w", name, e.Rank(), n, err)
				}
				return nil
			}
		}
		least := 2
		if name == "roots that send" { // two would wait for each other, and send nothing
			least = 3
		}
		for n := least; n <= 7; n++ {
			onSim(t, sim.Config{Ranks: n, Seed: uint64(n)}, small, nil, run(n))
		}
		for n := least; n <= 3; n++ {
			onSHM(t, n, small, run(n))
		}
	}
}

// What one rank can see to be wrong is its error alone, and the team goes on.
func TestMistakesOfOneRankBreakNothing(t *testing.T) {
	type pointer struct {
		n int
		s []string
	}
	ints := func(n int) []int { return make([]int, n) }
	sums := func(dst, src []pointer) { dst[0] = pointer{src[0].n, src[0].s} }
	onSim(t, sim.Config{Ranks: 2, Seed: 1}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		overlapping := ints(6)
		for want, err := range map[string]error{
			"T.s ([]string) holds a pointer": coll.AllReduce(ctx, all, make([]pointer, 1), sums),
			"is nil":                         coll.AllReduce[int](ctx, all, ints(1), nil),
			"rank":                           coll.Reduce(ctx, all, 2, ints(1), coll.Sum),
			"rank -1":                        coll.Scatter(ctx, all, -1, ints(1), ints(2)),
			"a multiple of the 2 members":    coll.AllToAll(ctx, all, ints(3), ints(3)),
			"the same number":                coll.AllToAll(ctx, all, ints(2), ints(4)),
			"want 3 of each":                 coll.AllGather(ctx, all, ints(5), ints(3)),
			"overlap":                        coll.AllToAll(ctx, all, overlapping[:4], overlapping[2:]),
			"1 counts of dst":                coll.AllToAllV(ctx, all, ints(1), []int{1}, ints(2), []int{1, 1}),
			"is -1":                          coll.AllToAllV(ctx, all, ints(2), []int{3, -1}, ints(2), []int{1, 1}),
			"3 elements, and it has 2":       coll.AllToAllV(ctx, all, ints(2), []int{1, 1}, ints(2), []int{1, 2}),
			"counts of src":                  coll.ScatterV(ctx, all, e.Rank(), ints(1), ints(2), nil),
			"dst of root":                    coll.Gather(ctx, all, e.Rank(), ints(3), ints(1)),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("got %w, want %q", err, want)
			}
		}
		if err := coll.StartReduce(ctx, all, 7, ints(1), coll.Sum).Wait(ctx); !errors.As(err, new(*fabric.RankError)) {
			return fmt.Errorf("got %w, want a rank error", err)
		}
		return allData(ctx, e, all)
	})
}

// A rank that a message of a pair finds dead may be known to be by nobody else.
func TestADeathThatAPairFindsIsTold(t *testing.T) {
	for seed := range uint64(10) {
		onSim(t, sim.Config{Ranks: 8, Seed: seed, RetryTimeout: time.Millisecond}, ways[1], func(w *envtest.World) { w.Cut(0, 3) },
			func(ctx context.Context, e env.Env, all *coll.Team) error {
				err := coll.AllToAll(ctx, all, make([]int, 8*500), make([]int, 8*500))
				if err == nil { // it had all that it needed
					err = all.Barrier(ctx)
				}
				var b *coll.BrokenError
				cut := e.Rank() == 0 || e.Rank() == 3 // who is taken for dead learns it from Shrink
				if !errors.As(err, &b) || !cut && (b.Reason != coll.Died || b.Rank != 0 && b.Rank != 3) {
					return fmt.Errorf("rank %d got %w", e.Rank(), err)
				}
				if _, err := all.Shrink(ctx); err != nil && !errors.Is(err, coll.ErrExcluded) {
					return err
				}
				return nil
			})
	}
}

// A panic in the program's function is the operation's error, here and as the cause of what others
// get.
func TestAPanicBreaksTheTeam(t *testing.T) {
	cause := errors.New("what went wrong")
	for _, length := range []int{1, 100, 3000} {
		for _, c := range ways {
			onSim(t, sim.Config{Ranks: 4, Seed: 1}, c, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
				err := coll.AllReduce(ctx, all, make([]int, length), func(dst, src []int) {
					if e.Rank() == 3 {
						panic(cause)
					}
					coll.Sum(dst, src)
				})
				if err == nil {
					err = all.Barrier(ctx)
				}
				var b *coll.BrokenError
				if !errors.As(err, &b) || b.Rank != 3 || b.Op != coll.KindAllReduce || b.Reason != coll.Abandoned {
					return fmt.Errorf("%d elements at %d: %w", length, e.Rank(), err)
				}
				if p := (*coll.PanicError)(nil); e.Rank() == 3 && (!errors.As(err, &p) || p.Value != cause || !errors.Is(err, cause)) {
					return fmt.Errorf("not the panic: %w", err)
				}
				return nil
			})
		}
	}
}

// A function that ends its goroutine, as testing.T.Fatal does, leaves nobody waiting.
func TestAFunctionThatExitsEndsAPending(t *testing.T) {
	for _, length := range []int{1, 3000} {
		onSHM(t, 2, small, func(ctx context.Context, e env.Env, all *coll.Team) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			p := coll.StartAllReduce(ctx, all, make([]int, length), func(dst, src []int) { runtime.Goexit() })
			if err := p.Wait(ctx); !errors.Is(err, coll.ErrBroken) || ctx.Err() != nil {
				return fmt.Errorf("got %w, want the error of a broken team", err)
			}
			return nil
		})
	}
}

// Elements without bytes are counted like others.
func TestElementsWithoutBytesAreCounted(t *testing.T) {
	onSim(t, sim.Config{Ranks: 3, Seed: 1}, small, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		type none = struct{}
		me, counts := all.Rank(), []int{2, 0, 1}
		return errors.Join(
			coll.ScatterV(ctx, all, 1, make([]none, counts[me]), make([]none, 3), counts),
			coll.GatherV(ctx, all, 2, make([]none, 3), counts, make([]none, counts[me])),
			coll.AllToAllV(ctx, all, make([]none, 3), []int{1, 1, 1}, make([]none, 3), []int{1, 1, 1}),
			coll.AllReduce(ctx, all, make([]none, 3), func(dst, src []none) {}))
	})
}
