package coll_test

import (
	"context"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/racetest"
)

// defaultLong is Config.Long's default.
const defaultLong = 4 << 10

// On a network of 100 Gbit/s with 1.5 us one way, which a simulation has by default, a tree takes
// less time below the default of Config.Long, and shares above it, in virtual time.
// `go test -v -run LongIsWhere ./coll` prints the table.
func TestLongIsWhereSharesBecomeFaster(t *testing.T) {
	members := []int{2, 3, 4, 8, 16}
	if testing.Short() || racetest.Enabled {
		members = members[:3]
	}
	for _, n := range members {
		for _, share := range []int{defaultLong / 4, defaultLong, 4 * defaultLong} {
			c := coll.Config{Slots: 1, Short: 1, Long: 1 << 30}
			tree := reductionTime(t, n, n*share, c)
			c.Long = 1
			shares := reductionTime(t, n, n*share, c)
			t.Logf("%2d members, shares of %5d bytes: tree %v, shares %v", n, share, tree, shares)
			if share != defaultLong && (tree < shares) != (share < defaultLong) {
				t.Errorf("%d members, shares of %d bytes: a tree takes %v, shares %v", n, share, tree, shares)
			}
			c.Long = 0
			if chosen := reductionTime(t, n, n*share, c); share < defaultLong && chosen != tree || share >= defaultLong && chosen != shares {
				t.Errorf("%d members, shares of %d bytes: by default it takes %v, a tree %v, shares %v", n, share, chosen, tree, shares)
			}
		}
	}
}

// reductionTime is the virtual time of an AllReduce of some bytes, of which each of 20 follows the
// one before it.
func reductionTime(t *testing.T, n, size int, c coll.Config) time.Duration {
	t.Helper()
	const rounds = 20
	var took time.Duration
	onSim(t, sim.Config{Ranks: n, Seed: 1, Jitter: -1}, c, nil, func(ctx context.Context, e env.Env, all *coll.Team) error {
		buf := make([]int64, size/8)
		if err := coll.AllReduce(ctx, all, buf, coll.Sum); err != nil { // it agrees on ways
			return err
		}
		if err := all.Barrier(ctx); err != nil {
			return err
		}
		begin := e.Host().Now()
		for range rounds {
			if err := coll.AllReduce(ctx, all, buf, coll.Sum); err != nil {
				return err
			}
		}
		if err := all.Barrier(ctx); err != nil {
			return err
		}
		if e.Rank() == 0 {
			took = (e.Host().Now() - begin) / rounds
		}
		return nil
	})
	return took
}
