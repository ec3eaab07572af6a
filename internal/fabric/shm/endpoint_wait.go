package shm

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/owner"
)

const (
	// sleepMax bounds how long an endpoint sleeps before it looks by itself: a peer may be
	// stopped, or killed, between its message and the wake-up.
	sleepMax = 250 * time.Millisecond
	// sleepStuck is the time between two tries of a message that met no slot.
	sleepStuck = time.Millisecond
)

// sleepLimit is sleepMax, but for the test that no wake-up is lost.
var sleepLimit = sleepMax

// After has Wait end at a time.
func (ep *endpoint) After(at time.Duration) {
	if ep.alive.Load() {
		ep.alarms.Add(ep.Now(), at)
		ep.wakeIfAsleep() // Wait sets its timer anew
	}
}

// Wait sleeps until something happens that wakes.
func (ep *endpoint) Wait(ctx context.Context) error {
	if owner.Checked {
		if err := ep.guard.Enter(); err != nil {
			return fmt.Errorf("shm: wait: endpoint %w", err)
		}
		defer ep.guard.Exit()
	}
	for {
		if !ep.alive.Load() {
			return ep.usable("wait")
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		ep.arm(true)
		now := ep.Now()
		due, next := ep.alarms.Take(now)
		if due || ep.ready() {
			ep.arm(false)
			return ep.usable("wait")
		}
		limit, last := sleepLimit, false
		if ep.stuck.Load() > 0 {
			limit, last = sleepStuck, true
		}
		ep.timer.Reset(min(limit, next-now))
		var err error
		select {
		case <-ep.woken:
			last = true
		case <-ep.timer.C:
		case <-ctx.Done():
			err, last = context.Cause(ctx), true
		}
		ep.timer.Stop()
		ep.arm(false)
		if err == nil && !ep.alive.Load() {
			err = ep.usable("wait")
		}
		if last || err != nil {
			return err
		}
	}
}

// arm sets or clears the flags that this endpoint sleeps.
func (ep *endpoint) arm(on bool) {
	ep.asleep.Store(on)
	ep.polling.Lock()
	defer ep.polling.Unlock()
	if ep.alive.Load() {
		flag := uint32(0)
		if on {
			flag = 1
		}
		atomic.StoreUint32(&ep.region.head.armed, flag)
		ep.repairLocked()
	}
}

// ready reports whether Wait should end.
func (ep *endpoint) ready() bool {
	select {
	case <-ep.woken:
		return true
	default:
	}
	return ep.attention.Load() > 0 || ep.arrived()
}

// arrived reports whether Poll would find something in the region.
func (ep *endpoint) arrived() bool {
	ep.polling.Lock()
	defer ep.polling.Unlock()
	if !ep.alive.Load() {
		return true
	}
	for _, r := range []*receiver{&ep.receive, &ep.noted} {
		r.mu.Lock()
		found := r.head != r.next && ep.n.inspect(atomic.LoadUint64(&r.cell(r.head).word), r.head) != cellEmpty
		r.mu.Unlock()
		if found {
			return true
		}
	}
	return false
}
