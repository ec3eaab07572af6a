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

// Workers with one connection each reach every rank, at once.
func TestWorkersConnectOnDemand(t *testing.T) {
	const ranks, workers, rounds = 5, 2, 12
	cfg := Config{Fabric: FabricIBV, Device: rdmatest.Device(t), SegmentSize: 1 << 20, Workers: workers, EagerPeers: -1, MaxConnections: 1}
	runLocal(t, ranks, cfg, func(ctx context.Context, j *Job) error {
		open := make([]*Worker, workers)
		for i := range open {
			w, err := j.NewWorker()
			if err != nil {
				return err
			}
			defer w.Close()
			open[i] = w
		}
		for round := range rounds {
			for i, w := range open {
				to := (j.Rank() + i + round) % ranks
				mine := At[uint64](to, uint64(8+8*(j.Rank()*workers+i)))
				if err := Put(w, mine, uint64(round)); err != nil {
					return err
				}
				if got, err := Get(w, mine); err != nil || got != uint64(round) {
					return fmt.Errorf("round %d: rank %d has %d, %w", round, to, got, err)
				}
				if _, err := FetchAdd(w, At[uint64](to, 0), 1); err != nil {
					return err
				}
			}
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		sum := uint64(0)
		for r := range ranks {
			n, err := Get(open[0], At[uint64](r, 0))
			if err != nil {
				return err
			}
			sum += n
		}
		if sum != ranks*workers*rounds {
			return fmt.Errorf("%d additions of %d", sum, ranks*workers*rounds)
		}
		return j.Barrier(ctx)
	})
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
