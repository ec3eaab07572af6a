package env

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"
)

type timeoutKey struct{}

// TestTimeoutsEndAsThoseOfContextDo looks before and after the Done channel was asked for.
func TestTimeoutsEndAsThoseOfContextDo(t *testing.T) {
	why := errors.New("the reason")
	for _, asked := range []bool{false, true} {
		parent, stop := context.WithCancelCause(context.WithValue(t.Context(), timeoutKey{}, 7))
		make := func(d time.Duration) (context.Context, context.CancelFunc) {
			ctx, cancel := withTimeout(parent, d)
			if at, ok := ctx.Deadline(); !ok || time.Until(at) > d || ctx.Value(timeoutKey{}) != 7 {
				t.Errorf("deadline %v, value %v", at, ctx.Value(timeoutKey{}))
			}
			if asked {
				ctx.Done()
			}
			return ctx, cancel
		}
		ended := func(ctx context.Context, err, cause error) {
			t.Helper()
			for i := 0; ctx.Err() == nil && i < 5000; i++ {
				time.Sleep(time.Millisecond)
			}
			if ctx.Err() != err || context.Cause(ctx) != cause {
				t.Errorf("asked %t: it ended with %v because of %v, want %v because of %v", asked, ctx.Err(), context.Cause(ctx), err, cause)
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
				t.Errorf("asked %t: Done is not closed", asked)
			}
		}
		late, cancel := make(time.Hour)
		if late.Err() != nil || context.Cause(late) != nil {
			t.Error("it has ended at once")
		}
		cancel()
		ended(late, context.Canceled, context.Canceled)
		short, cancel := make(time.Millisecond)
		ended(short, context.DeadlineExceeded, context.DeadlineExceeded)
		cancel()
		child, cancelChild := context.WithCancel(short)
		ended(child, context.DeadlineExceeded, context.DeadlineExceeded)
		cancelChild()
		long, cancel := make(time.Hour)
		grandchild, cancelChild := context.WithCancel(long)
		stop(why)
		ended(long, context.Canceled, why)
		ended(grandchild, context.Canceled, why)
		cancel()
		cancelChild()
	}
}

// The deadline of the parent holds where it comes first.
func TestATimeoutEndsWithItsParents(t *testing.T) {
	at := time.Now().Add(time.Minute)
	parent, stop := context.WithDeadline(t.Context(), at)
	defer stop()
	ctx, cancel := withTimeout(parent, time.Hour)
	defer cancel()
	if got, _ := ctx.Deadline(); !got.Equal(at) {
		t.Errorf("deadline %v, want %v", got, at)
	}
}

func TestATimeoutOfNothingHasEnded(t *testing.T) {
	for _, d := range []time.Duration{0, -1, math.MinInt64} {
		ctx, cancel := withTimeout(t.Context(), d)
		if err := ctx.Err(); err != context.DeadlineExceeded {
			t.Errorf("after %v it ended with %v", d, err)
		}
		cancel()
	}
}
