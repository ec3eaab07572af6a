//go:build !race && !debug

package coll_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
)

// What runs often allocates nothing, on no member.
func TestShortOperationsAllocateNothing(t *testing.T) {
	const runs = 100
	for _, n := range []int{2, 3} {
		onSHM(t, n, coll.Config{}, func(ctx context.Context, e env.Env, all *coll.Team) (failed error) {
			buf := make([]byte, 100_000)
			one, to, from := make([]float64, 1), make([]int64, n), make([]int64, n)
			for _, c := range []struct {
				name string
				once func() error
			}{
				{"barrier", func() error { return all.Barrier(ctx) }},
				{"named barrier", func() error { return all.NamedBarrier(ctx, "step") }},
				{"broadcast of 8 bytes", func() error { return all.Broadcast(ctx, 0, buf[:8]) }},
				{"broadcast of 100,000 bytes", func() error { return all.Broadcast(ctx, n-1, buf) }},
				{"all-reduce of 8 bytes", func() error { return coll.AllReduce(ctx, all, one, coll.Sum) }},
				{"all-to-all of 8 bytes", func() error { return coll.AllToAll(ctx, all, to, from) }},
			} {
				once := func() {
					if err := c.once(); err != nil && failed == nil {
						failed = err
					}
				}
				if all.Rank() > 0 { // as often as AllocsPerRun does
					for range runs + 1 {
						once()
					}
				} else if allocs := testing.AllocsPerRun(runs, once); allocs != 0 && failed == nil {
					failed = fmt.Errorf("%d members, %s: %v allocations", n, c.name, allocs)
				}
			}
			return failed
		})
	}
}
