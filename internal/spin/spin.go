// Package spin paces a loop that waits for memory another processor writes.
//
// A waiter first spins, then lets other goroutines run, then gives the core to
// other processes, and at last sleeps, for an eighth of the time it has waited
// but never for less than a millisecond: a shorter time.Sleep comes back about a
// millisecond late anyway. Where processors are short it gives way at once.
package spin

import (
	"runtime"
	"time"
)

// Waiter paces one wait. The zero value is ready; Reset starts another wait.
type Waiter struct {
	// Crowded says that more spinners share the cores than there are cores, so that
	// spinning only takes time from what it waits for.
	Crowded bool

	n     uint32
	start time.Time
}

const (
	spins    = 2048                  // turns of the caller's loop before the clock is read
	yieldFor = 20 * time.Microsecond // how long goroutines are yielded to
	schedFor = 2 * time.Millisecond  // how long processes are yielded to
	sleepMin = time.Millisecond
	sleepMax = 10 * time.Millisecond
)

// Pause gives way a little more each time. It reports true when enough time
// has passed since the last true that the caller should look at its context.
func (w *Waiter) Pause() bool {
	w.n++
	if !w.Crowded && w.n%spins != 0 {
		return false
	}
	if w.start.IsZero() {
		w.start = time.Now()
	}
	waited := time.Since(w.start)
	switch {
	case waited < yieldFor && !w.Crowded:
		runtime.Gosched()
	case waited < schedFor:
		if w.Crowded {
			runtime.Gosched() // ranks may be goroutines of one process
		}
		// sched_yield(2): under Soft-RoCE and in crowded jobs the peer needs this very core.
		yieldCore()
	default:
		time.Sleep(min(max(waited/8, sleepMin), sleepMax))
	}
	return true
}

// Reset prepares the Waiter for another wait.
func (w *Waiter) Reset() { w.n, w.start = 0, time.Time{} }
