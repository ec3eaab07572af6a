package fabric

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/spin"
)

// WaitWord is Lane.WaitWord where what writes the word needs no progress of the waiter. It spins,
// then yields, then sleeps, as w does.
func WaitWord(ctx context.Context, w *spin.Waiter, word *uint64, c Cond, value uint64, stop func() error) error {
	defer func() { w.Done(c.Holds(atomic.LoadUint64(word), value)) }()
	for !c.Holds(atomic.LoadUint64(word), value) {
		if !w.Pause() {
			continue
		}
		if end, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(end) {
			// The runtime may be late with the context's timer where a goroutine never schedules.
			runtime.Gosched()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if stop != nil {
			if err := stop(); err != nil {
				return err
			}
		}
	}
	return nil
}
