//go:build !race && !debug

package conduit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
)

func TestMessagesThroughAWorkerAllocateNothing(t *testing.T) {
	table := am.NewTable()
	double := table.Handle("double", func(c *am.Call) { _ = c.Reply(2 * c.Arg(0)) })
	fabrics(t, func(t *testing.T, cfg Config) {
		runs := 2000
		if cfg.Fabric == FabricIBV {
			runs = 300
		}
		cfg.Handlers, cfg.MessageEndpoints = table, 1
		cfg.Messages.SpinFor = time.Minute // waking a sleeper allocates
		cfg.Messages.AttendAfter = -1      // the attendant sleeps in the network, and leads where a busy processor keeps others from it
		done := make(chan struct{})
		runLocal(t, 2, cfg, func(ctx context.Context, j *Job) error {
			if j.Rank() == 1 {
				return serveUntil(ctx, j, done)
			}
			defer close(done)
			return withWorker(j, func(w *Worker) error {
				for name, fn := range map[string]func() error{
					"call": func() error { _, err := double.Call(ctx, w, 1, 21); return err },
					"post": func() error { return double.Post(ctx, w, 1, 21) },
				} {
					var first error
					if n := testing.AllocsPerRun(runs, func() { first = errors.Join(first, fn()) }); n != 0 || first != nil {
						return fmt.Errorf("%s: %v allocations, %w", name, n, first)
					}
				}
				return nil
			})
		})
	})
}
