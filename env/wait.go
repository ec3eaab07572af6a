package env

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/spin"
)

// WaitWord is Env.WaitWord where ranks are processes in real time.
func WaitWord(ctx context.Context, s *spin.Sharing, word *uint64, c fabric.Cond, value uint64, stop func() error) error {
	w := spin.Waiter{Sharing: s}
	defer func() { w.Done(c.Holds(atomic.LoadUint64(word), value)) }()
	for !c.Holds(atomic.LoadUint64(word), value) {
		if !w.Pause() {
			continue
		}
		if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
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

// Goroutines is the Host of processes in real time.
type Goroutines struct{ am.Goroutines }

var origin = time.Now()

// Now is the time since the process began.
func (Goroutines) Now() time.Duration { return time.Since(origin) }

// WithTimeout is context.WithTimeout.
func (Goroutines) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return withTimeout(parent, d)
}
