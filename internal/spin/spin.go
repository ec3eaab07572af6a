// Package spin paces a loop that waits for memory another processor writes.
//
// A waiter first spins, then lets other goroutines run and gives the core to other processes, and
// at last sleeps, for an eighth of the time it has waited but never for less than a millisecond: a
// shorter time.Sleep comes back about a millisecond late anyway. When it gives the core away is
// learned (Sharing). Where processors are short it gives way at once.
package spin

import (
	"time"
)

// Waiter paces one wait after the other.
type Waiter struct {
	Sharing *Sharing

	n     uint32
	start time.Time
	last  time.Duration // when the last yield ended, since start
	gave  time.Duration // how long the yield of the last turn took; 0: it did not yield
}

const (
	clockEvery = 64                    // turns of the caller's loop between looks at the clock
	schedFor   = 10 * time.Millisecond // how long processes are yielded to
	sleepMin   = time.Millisecond
	sleepMax   = 10 * time.Millisecond
)

// Pause gives way a little more each time. It reports true when enough time
// has passed since the last true that the caller should look at its context.
func (w *Waiter) Pause() bool {
	w.n++
	crowded := w.Sharing.Crowded()
	if !crowded && w.n%clockEvery != 0 {
		return false
	}
	if w.start.IsZero() {
		w.start = time.Now()
	}
	waited := time.Since(w.start)
	if w.gave > 0 {
		w.Sharing.Learn(w.gave, false)
		w.gave = 0
	}
	after := w.Sharing.After()
	switch {
	case waited >= schedFor:
		time.Sleep(min(max(waited/8, sleepMin), sleepMax))
	case waited-w.last < after:
		return false
	default:
		w.gave = w.Sharing.Yield(waited)
		w.last = time.Since(w.start)
	}
	return true
}

// Done ends a wait: the awaited data have come, or the caller gives up.
func (w *Waiter) Done(there bool) {
	if w.gave > 0 {
		w.Sharing.Learn(w.gave, there)
	}
	w.n, w.start, w.last, w.gave = 0, time.Time{}, 0, 0
}
