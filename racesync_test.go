package conduit

import (
	"context"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
)

// A handler may read what its rank wrote before a barrier that the sender was in: with -race that
// is no data race, though nothing but the network orders the two.
func TestHandlersSeeWhatWasBeforeABarrier(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		state := 0
		table := am.NewTable()
		read := table.Handle("read", func(c *am.Call) { _ = c.Reply(uint64(state)) })
		cfg.Handlers = table
		runLocal(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
			for i := range 10 {
				if j.Rank() == 1 {
					state = i
				}
				if err := j.Barrier(ctx); err != nil {
					return err
				}
				if j.Rank() == 1 {
					time.Sleep(5 * time.Millisecond) // the handler runs by itself
				} else if r, err := read.Call(ctx, w, 1); err != nil {
					return err
				} else if r.Arg(0) != uint64(i) {
					t.Errorf("round %d: the handler read %d", i, r.Arg(0))
				}
				if err := j.Barrier(ctx); err != nil { // before the next store
					return err
				}
			}
			return nil
		}))
	})
}
