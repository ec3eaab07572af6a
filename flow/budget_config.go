package flow

import (
	"fmt"
	"math"
	"time"

	"github.com/ibconduit/conduit/internal/park"
)

// The parts of a budget that are set apart when its configuration leaves them open.
const (
	smallShare       = 16      // of the floor: the bytes for small claims
	unscheduledShare = 16      // of the floor: the bytes for payloads that come unasked
	setApart         = 2       // both together at most this share of the floor
	smallMax         = 4 << 10 // bytes: a page, which passes the queue
)

// Parker lets one goroutine wait for another; am.Parker is one. A Park that polls meanwhile lets
// the rank's communication go on.
type Parker = park.Parker

// BudgetConfig are the parameters of a Budget. Either Limit or Adapt must be given.
type BudgetConfig struct {
	// Limit is M_C, the bytes of transient memory: 1 to 2^62. With Adapt it is 0.
	Limit int64
	// Adapt has Observe change the limit; nil: it changes by SetLimit only.
	Adapt *AdaptConfig

	// Messages is how many fetches and payloads may hold bytes at once, but for small ones. The
	// paper's tokens are these. 0: any number.
	Messages int
	// Small is how many bytes of the limit only claims of at most SmallMax bytes may use, and that
	// without waiting behind larger ones. 0: 1/16 of the floor. -1: none.
	Small int64
	// SmallMax is the largest such claim in bytes. 0: 4 KiB, or Small if that is less.
	SmallMax int64
	// Unscheduled is how many bytes of the limit are for payloads that peers may send unasked, all
	// peers together; each gets the same part. 0: 1/16 of the floor if there are Peers. -1: none.
	Unscheduled int64

	// Reserve is how many bytes beyond the limit serve owners that wait for a set while they hold
	// another. 0: none, such a wait is an ErrHoldAndWait. -1: as many as the largest set.
	Reserve int64
	// StallAfter is for how long the first in the queue may wait before Watch reports it. 0: 10 s.
	StallAfter time.Duration
	// Decided is called with each change of the limit by Observe; it must not call the Budget. nil:
	// not.
	Decided func(Decision)

	// Now is the time since an arbitrary origin. nil: the system's monotonic clock.
	Now func() time.Duration
	// NewParker returns an unused Parker. nil: one of a channel.
	NewParker func() Parker
}

// AdaptConfig are the parameters of a limit that follows the machine's memory. The limit is never
// below Floor and, unless Floor is above it, never above the memory that is left.
type AdaptConfig struct {
	// Floor is the least limit in bytes: the parts set apart and the largest set. 0: 1/8 of the first
	// ceiling.
	Floor int64
	// Ceiling is the largest limit in bytes. 0: the memory that is left.
	Ceiling int64
	// Headroom is how many bytes of the memory are left to the kernel and to others. 0: 1/16 of the
	// tightest bound, and at most 100 MB, as in the paper.
	Headroom int64
	// Step is by how much the limit grows at a time. 0: 1/16 of the first ceiling.
	Step int64
	// Target is the share of time, 0 to 1, that tasks may be stalled for want of memory. 0: 0.01.
	Target float64
	// Faults is how many major faults a second mean pressure where the kernel does not account for
	// stalls. 0: 20.
	Faults float64
	// Interval is how often Observe is to be called. 0: 100 ms.
	Interval time.Duration
	// Window is over what time the peak of the application's own memory is taken. 0: 2 s.
	Window time.Duration
	// Settle is for how long a decrease is given to show before another, and before an increase: four
	// times as long before another if Headroom is free again. 0: 500 ms.
	Settle time.Duration
}

// Surroundings are facts about the machine and the job of a budget, which are not chosen. The zero
// value knows nothing.
type Surroundings struct {
	// Memory is the state of the machine's memory at the start. A static limit above it is refused; an
	// adaptive one begins with what it leaves.
	Memory Reading
	// Peers is how many ranks may send payloads here; 0: none sends unasked.
	Peers int
}

// budgetConfig is both.
type budgetConfig struct {
	BudgetConfig
	Surroundings
}

var processStart = time.Now()

func (c budgetConfig) withDefaults() (budgetConfig, error) {
	if c.Now == nil {
		c.Now = func() time.Duration { return time.Since(processStart) }
	}
	if c.NewParker == nil {
		c.NewParker = park.New
	}
	if c.StallAfter == 0 {
		c.StallAfter = 10 * time.Second
	}
	floor := c.Limit
	switch {
	case c.StallAfter < 0 || c.Peers < 0 || c.Messages < 0:
		return c, fmt.Errorf("flow: a budget with StallAfter %v, %d peers and %d messages: choose at least 0",
			c.StallAfter, c.Peers, c.Messages)
	case c.Adapt != nil && c.Limit != 0:
		return c, fmt.Errorf("flow: a limit of %s that is also to adapt: give it as Adapt.Ceiling", bytesText(c.Limit))
	case c.Adapt != nil:
		a, err := c.Adapt.withDefaults(c.Memory)
		if err != nil {
			return c, err
		}
		c.Adapt, floor = &a, a.Floor
	case c.Limit < 1 || c.Limit > math.MaxInt64/2:
		return c, fmt.Errorf("flow: a budget of %d bytes: choose a Limit from 1 to 2^62, or Adapt", c.Limit)
	}
	c, err := c.setApart(floor)
	if err == nil {
		err = c.exceeds(floor)
	}
	return c, err
}

// exceeds is the error of a limit that with the reserve is above the memory.
func (c *budgetConfig) exceeds(limit int64) error {
	bound, known := c.Memory.smallest()
	if !known || limit <= bound.Limit-c.Reserve {
		return nil
	}
	what := "a budget of " + bytesText(limit)
	if c.Reserve > 0 {
		what += " and a reserve of " + bytesText(c.Reserve)
	}
	return fmt.Errorf("flow: %s, but %s has %s, of which %s are used: choose at most %s, or Adapt",
		what, bound.Source, bytesText(bound.Limit), bytesText(bound.Used),
		bytesText(max(bound.Limit-bound.Used-c.Reserve, 0)))
}

// setApart fills in the parts of the limit with uses of their own.
func (c budgetConfig) setApart(floor int64) (budgetConfig, error) {
	if c.Small == 0 {
		c.Small = floor / smallShare
	}
	if c.Unscheduled == 0 && c.Peers > 0 {
		c.Unscheduled = floor / unscheduledShare
	}
	if c.Small == -1 {
		c.Small, c.SmallMax = 0, 0
	}
	if c.Unscheduled == -1 || c.Peers == 0 && c.Unscheduled == 0 {
		c.Unscheduled = 0
	}
	if c.SmallMax == 0 {
		c.SmallMax = min(smallMax, c.Small)
	}
	switch {
	case c.Small < 0 || c.Unscheduled < 0 || c.SmallMax < 0 || c.Reserve < -1 || c.Reserve > math.MaxInt64/2:
		return c, fmt.Errorf("flow: bytes out of range (Small %d, SmallMax %d, Unscheduled %d, Reserve %d): choose 0 to 2^62",
			c.Small, c.SmallMax, c.Unscheduled, c.Reserve)
	case c.SmallMax > c.Small:
		one, all := twoTexts(c.SmallMax, c.Small)
		return c, fmt.Errorf("flow: small claims of up to %s, but %s for them together: raise Small", one, all)
	case c.Unscheduled > 0 && c.Peers == 0:
		return c, fmt.Errorf("flow: %s for payloads that come unasked, but no Peers", bytesText(c.Unscheduled))
	case c.Small > floor/setApart || c.Unscheduled > floor/setApart-c.Small:
		return c, fmt.Errorf("flow: %s for small claims and %s for payloads that come unasked, "+
			"of a budget that may have only %s: at most half of it together",
			bytesText(c.Small), bytesText(c.Unscheduled), bytesText(floor))
	}
	if c.Reserve == -1 {
		c.Reserve = floor - c.Small - c.Unscheduled
	}
	return c, nil
}

// first is the ceiling that a first reading leaves.
func (a *AdaptConfig) first(r Reading) (ceiling int64, known bool) {
	bound, known := r.tightest()
	if !known {
		return a.Ceiling, a.Ceiling > 0
	}
	left := bound.Limit - bound.Used - a.Headroom - r.GoGrowth
	if a.Ceiling > 0 {
		left = min(left, a.Ceiling)
	}
	return left, true
}

func (a AdaptConfig) withDefaults(r Reading) (AdaptConfig, error) {
	bound, known := r.tightest()
	if a.Headroom == 0 && known {
		a.Headroom = min(bound.Limit/16, 100e6)
	}
	setDefault(&a.Target, 0.01)
	setDefault(&a.Faults, 20)
	setDefault(&a.Interval, 100*time.Millisecond)
	setDefault(&a.Window, 2*time.Second)
	setDefault(&a.Settle, 500*time.Millisecond)
	ceiling, any := a.first(r)
	if !any {
		return a, fmt.Errorf("flow: an adaptive budget, but nothing is known of the memory: " +
			"set Adapt.Ceiling, or a static Limit")
	}
	setDefault(&a.Floor, max(ceiling/8, 1))
	setDefault(&a.Step, max(ceiling/16, 1))
	switch {
	case min(a.Floor, a.Ceiling, a.Headroom, a.Step) < 0 || max(a.Floor, a.Ceiling, a.Headroom, a.Step) > math.MaxInt64/2:
		return a, fmt.Errorf("flow: bytes out of range (Floor %d, Ceiling %d, Headroom %d, Step %d): choose 0 to 2^62",
			a.Floor, a.Ceiling, a.Headroom, a.Step)
	case !(a.Target > 0 && a.Target < 1) || !(a.Faults > 0):
		return a, fmt.Errorf("flow: a Target of %v and %v Faults a second: choose a share between 0 and 1, and a rate above 0",
			a.Target, a.Faults)
	case a.Interval < 0 || a.Window < a.Interval || a.Settle < 0:
		return a, fmt.Errorf("flow: times out of range (Interval %v, Window %v, Settle %v): "+
			"a window has at least one interval", a.Interval, a.Window, a.Settle)
	case a.Floor > ceiling && known:
		return a, fmt.Errorf("flow: a floor of %s, but %s has %s, of which %s are used, %s are headroom, "+
			"and Go's heap will take %s: that leaves %s",
			bytesText(a.Floor), bound.Source, bytesText(bound.Limit), bytesText(bound.Used), bytesText(a.Headroom),
			bytesText(r.GoGrowth), bytesText(max(ceiling, 0)))
	case a.Floor > ceiling:
		low, high := twoTexts(a.Floor, ceiling)
		return a, fmt.Errorf("flow: a floor of %s above the ceiling of %s", low, high)
	}
	return a, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
