package coll_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// Who gives up says which members it waited for, and where those were last; not the others that
// waited with it.
func TestWhoGivesUpNamesWhomItWaitedFor(t *testing.T) {
	const late, never = 1, 5
	const ranks = 6
	waits := func(ctx context.Context, e env.Env, all *coll.Team) error {
		half, err := all.Split(ctx, 0, 0)
		if err != nil {
			return err
		}
		if e.Rank() == never {
			e.Host().Sleep(2 * time.Second)
			return nil
		}
		if err := half.Broadcast(ctx, 0, make([]byte, 8)); e.Rank() != late && err != nil {
			return err
		}
		if e.Rank() == late {
			e.Host().Sleep(2 * time.Second)
			return nil
		}
		if e.Rank() != 0 {
			_ = half.Barrier(ctx)
			return nil
		}
		limited, cancel := e.Host().WithTimeout(ctx, time.Second)
		defer cancel()
		err = half.Barrier(limited)
		if err == nil || !strings.HasSuffix(err.Error(), "; it waited for rank 1, last in its broadcast, number 1; rank 5, in no operation of the team yet") {
			return fmt.Errorf("%w", err)
		}
		return nil
	}
	onSim(t, sim.Config{Ranks: ranks, Seed: 1}, small, nil, waits)
	onSHM(t, ranks, small, waits)
}
