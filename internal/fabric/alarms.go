package fabric

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Never is later than all times of an endpoint's clock.
const Never = time.Duration(math.MaxInt64)

// Alarms are for networks: the times that [Endpoint.After] has set. The zero value has none. Any
// goroutine may use it.
type Alarms struct {
	mu sync.Mutex
	at []time.Duration // sorted
}

// Add sets an alarm. It reports whether that is the first.
func (a *Alarms) Add(now, at time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.at) > 1 && a.at[1] <= now { // one that is due is enough, where nothing takes them
		a.at = slices.Delete(a.at, 0, 1)
	}
	i, found := slices.BinarySearch(a.at, at)
	if !found {
		a.at = slices.Insert(a.at, i, at)
	}
	return i == 0
}

// Take removes the alarms that are due, and returns when the next one is, or Never.
func (a *Alarms) Take(now time.Duration) (due bool, next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := 0
	for k < len(a.at) && a.at[k] <= now {
		k++
	}
	if a.at = slices.Delete(a.at, 0, k); len(a.at) > 0 {
		return k > 0, a.at[0]
	}
	return k > 0, Never
}

// Clear removes all.
func (a *Alarms) Clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = nil
}
