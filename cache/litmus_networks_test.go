package cache_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
)

// representative are the litmus tests that run on real networks, each setup with other seeds.
var representative = []int{1, 3, 5, 6, 9, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 30, 31, 33, 34, 36, 37, 42, 43, 44, 45, 46, 49}

// TestLitmusOverSharedMemory runs litmus tests on ranks that are goroutines.
func TestLitmusOverSharedMemory(t *testing.T) { litmusOn(t, 4, envtest.SHM) }

type network func(t testing.TB, n int, f func(ctx context.Context, e env.Env) error, specs ...env.Spec)

// litmusOn runs them with some seeds in each setup.
func litmusOn(t *testing.T, seeds uint64, on network) {
	if testing.Short() {
		seeds = 1
	}
	for _, number := range representative {
		l := &litmusTests[number-1]
		t.Run(fmt.Sprintf("%02d", number), func(t *testing.T) {
			// One job has all trials, one after the other.
			var trials []*trial
			ranks, size := 0, uint64(0)
			for i, s := range setups {
				for seed := range seeds {
					x := newTrial(l, s, *seedAt+seed+5*uint64(i), true)
					trials, ranks, size = append(trials, x), max(ranks, len(x.ranks)), max(size, x.bytes)
				}
			}
			on(t, ranks, func(ctx context.Context, e env.Env) error {
				for _, x := range trials {
					if e.Rank() >= len(x.ranks) {
						continue
					}
					if err := x.main(ctx, e); err != nil {
						return fmt.Errorf("%v: %w", x, err)
					}
				}
				return nil
			}, env.Spec{Name: region, Size: size})
		})
	}
}
