package cache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// scattered is n words in no order, none of them in a line with another but by chance.
func scattered(n int) (offs []uint64) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range n {
		offs = append(offs, rng.Uint64N(regionSize/8-1)*8)
	}
	return offs
}

func TestGetsWithoutLocalityPassTheCacheBy(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{Pages: 2}, func(ctx context.Context, x *fixture) error {
		if _, err := walk(ctx, x, scattered(1000)); err != nil {
			return err
		}
		s, before := x.Stats(), x.counters()
		if s.GetsDirect < 500 {
			return fmt.Errorf("after 1000 gets: %+v", s)
		}
		if _, err := walk(ctx, x, scattered(2000)); err != nil {
			return err
		}
		after := x.counters()
		if n, b := after.Gets-before.Gets, after.GetBytes-before.GetBytes; n > 2000 || b > 2000*8*103/100 {
			return fmt.Errorf("2000 gets of 8 bytes are %d of %d", n, b)
		}
		// Locality is back.
		if _, err := walk(ctx, x, sequence(0, 8, 5000)); err != nil {
			return err
		}
		before = x.counters()
		if _, err := walk(ctx, x, sequence(0, 8, 5000)); err != nil {
			return err
		}
		if n := x.counters().Gets - before.Gets; n > 1500 {
			return fmt.Errorf("5000 gets in a row are %d of the network", n)
		}
		return nil
	})
}

// Columns of a matrix whose lines are used again after all rows have been.
func TestColumnsStayCached(t *testing.T) {
	onSim(t, sim.Config{}, cache.Config{NoReadahead: true}, func(ctx context.Context, x *fixture) error {
		const rows, row = 200, 200 // bytes of a row
		for column := range 24 {
			if _, err := walk(ctx, x, sequence(8*column, row, rows)); err != nil {
				return err
			}
		}
		if n := x.counters().Gets; n > 24*rows/2 {
			return fmt.Errorf("%d gets are %d of the network", 24*rows, n)
		}
		return nil
	})
}
