package conduit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// connections returns how many connections of messages a rank has seen opened over verbs, and how
// many it closed.
func connections(j *Job) (opened, closed uint64) {
	s := j.MessageStats()[FabricIBV].Network
	return s.Connects + s.Accepts, s.Disconnects
}

// becomes waits for what happens without a message.
func becomes(ctx context.Context, j *Job, what string, done func() bool) error {
	for !done() {
		if ctx.Err() != nil {
			opened, closed := connections(j)
			return fmt.Errorf("%s: %d connections were opened and %d closed", what, opened, closed)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func TestConnectAllConnectsFromTheStart(t *testing.T) {
	const ranks = 4
	dev := rdmatest.Device(t)
	for _, all := range []bool{true, false} {
		cfg := Config{Fabric: FabricIBV, Device: dev, SegmentSize: 1 << 20, MessageEndpoints: 2, Handlers: handlerTable("h"), ConnectAll: all}
		runLocal(t, ranks, cfg, func(ctx context.Context, j *Job) error {
			if !all {
				if opened, _ := connections(j); opened != 0 {
					return fmt.Errorf("rank %d has opened %d connections without a message", j.Rank(), opened)
				}
				return nil
			}
			return becomes(ctx, j, "both endpoints to all others", func() bool { opened, _ := connections(j); return opened == 2*(ranks-1) })
		})
	}
}

func TestIdleConnectionsAboveTheLimitAreClosed(t *testing.T) {
	const ranks = 4
	table := am.NewTable()
	double := table.Handle("double", func(c *am.Call) { _ = c.Reply(2 * c.Arg(0)) })
	cfg := Config{Fabric: FabricIBV, Device: rdmatest.Device(t), SegmentSize: 1 << 20, MessageEndpoints: 1, Handlers: table, MaxConnections: 1}
	runLocal(t, ranks, cfg, func(ctx context.Context, j *Job) error {
		for range 3 {
			for to := range ranks {
				if r, err := double.Call(ctx, j, to, uint64(to)); err != nil || r.Arg(0) != 2*uint64(to) {
					return fmt.Errorf("call to rank %d: %v, %w", to, r.Arg(0), err)
				}
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
		}
		return becomes(ctx, j, "one at most stays open", func() bool { opened, closed := connections(j); return opened-closed <= 1 })
	})
}
