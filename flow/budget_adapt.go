package flow

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Reading is what probes found out about memory, in bytes. Package internal/pressure makes it. The
// zero value knows nothing.
type Reading struct {
	// Bounds are the limits that this process's memory is subject to, those that count for it alone
	// before the machine's.
	Bounds []MemoryBound
	// GoGrowth is by how much Go's heap will grow before it is collected, within its own limit.
	GoGrowth int64
	// Made is memory that the budget is for when the bounds are read: held and made, or
	// kept for the next fetches. It is part of what they count as used. 0: not known; then it is the
	// memory held and made when Observe is called, perhaps less.
	Made int64
	// Pinned is memory that cannot be swapped or given back. It is part of what bounds count as used.
	Pinned int64

	// Stalled is for how long in all tasks have been stalled for want of memory, of the narrowest
	// group that the kernel accounts for; StalledBy names it, "" when none is.
	Stalled   time.Duration
	StalledBy string
	// LimitHits is how often in all memory was reclaimed because a limit of the process's groups was
	// reached.
	LimitHits uint64
	// MajorFaults is how often in all this process has waited for a page from a disk; -1: not known.
	MajorFaults int64
}

// MemoryBound is one limit.
type MemoryBound struct {
	Source string // "memory.high of /job", "MemAvailable"
	Limit  int64
	Used   int64 // without clean page cache
}

// tightest is the bound that leaves least.
func (r *Reading) tightest() (b MemoryBound, known bool) {
	return least(r.Bounds, func(b MemoryBound) int64 { return b.Limit - b.Used })
}

// smallest is the bound with the least memory, used or not.
func (r *Reading) smallest() (b MemoryBound, known bool) {
	return least(r.Bounds, func(b MemoryBound) int64 { return b.Limit })
}

func least(bounds []MemoryBound, by func(MemoryBound) int64) (first MemoryBound, known bool) {
	if len(bounds) == 0 {
		return first, false
	}
	return slices.MinFunc(bounds, func(x, y MemoryBound) int { return cmp.Compare(by(x), by(y)) }), true
}

// Cause is why Observe changed the limit.
type Cause uint8

// The causes.
const (
	CauseStalled Cause = iota + 1 // tasks were stalled for more than Target of the time
	CauseFaults                   // more major faults than Faults
	CauseLimit                    // a group's limit was reached with less than Headroom left
	CauseRoom                     // the memory leaves less than the limit
	CauseCalm                     // no pressure, and claims waited
)

func (c Cause) String() string {
	return [...]string{"none", "stalled", "faults", "limit reached", "room", "calm"}[c]
}

// Decision is a change of the limit.
type Decision struct {
	At       time.Duration // by BudgetConfig.Now
	From, To int64         // in bytes
	Cause    Cause
	Stalled  float64 // share of the time since the reading before; -1: not known
	Faults   float64 // major faults a second since then; -1: not known
	Ceiling  int64   // as much as the memory leaves; MaxInt64: not known
	Held     int64   // at the time
	Peak     int64   // since the reading before
	Pinned   int64
	Bound    string // the tightest
	AtFloor  bool   // the floor kept it from being lower
}

func (d Decision) String() string {
	s := fmt.Sprintf("limit %s -> %s (%v", bytesText(d.From), bytesText(d.To), d.Cause)
	if d.AtFloor {
		s += ", at the floor"
	}
	s += fmt.Sprintf("): held %s, at most %s", bytesText(d.Held), bytesText(d.Peak))
	if d.Bound != "" {
		s += fmt.Sprintf(", %s leaves %s", d.Bound, bytesText(d.Ceiling))
	}
	if d.Stalled >= 0 {
		s += fmt.Sprintf(", stalled %.1f %%", 100*d.Stalled)
	}
	if d.Faults >= 0 {
		s += fmt.Sprintf(", %.0f major faults/s", d.Faults)
	}
	return s + fmt.Sprintf(", pinned %s", bytesText(d.Pinned))
}

// maxDecisions is how many of the last are kept.
const maxDecisions = 256

// controller is additive increase, multiplicative decrease of the limit, below a ceiling that the
// memory itself sets: M - M_A, where M_A is used and not transient, at its peak over a
// window. The ceiling acts before the kernel does: memory.high stalls tasks, and without swap
// cannot hold them back at all (Chris Down, "Control Group v2: linux memory management", 2019).
// Pressure means that the ceiling was wrong: memory that is used counts as free if it is page
// cache, and may be the program's text all the same.
type controller struct {
	cfg    AdaptConfig
	log    []Decision
	window []slack
	last   Reading
	read   bool          // last is there
	at     time.Duration // of last
	lower  time.Duration // from when on pressure lowers the limit again
	free   time.Duration // from when on it does although memory is free
	raise  time.Duration // from when on the limit may grow again
}

// slack is the memory that the tightest bound left for transient memory at a time.
type slack struct {
	at    time.Duration
	bytes int64
	bound string
}

// budgetState is a budget when a reading is made.
type budgetState struct {
	now    time.Duration
	limit  int64
	held   int64
	made   int64 // memory that there is, of the bytes held
	peak   int64 // held since the reading before
	waited bool  // claims had to
}

func newController(cfg AdaptConfig) *controller { return &controller{cfg: cfg} }

func (c *controller) decide(s budgetState, r Reading) Decision {
	d := Decision{At: s.now, From: s.limit, To: s.limit, Held: s.held, Peak: s.peak, Pinned: r.Pinned,
		Stalled: -1, Faults: -1}
	d.Ceiling, d.Bound = c.ceiling(s, r)
	pressure := c.pressure(s, r, &d)
	switch {
	case pressure != 0 && s.now >= c.lower && (s.now >= c.free || c.short(r)):
		// Memory in use made the pressure, not a limit that no claim came near to.
		d.To, d.Cause = min(s.limit, max(s.peak, c.cfg.Floor))/2, pressure
		c.lower, c.free = s.now+c.cfg.Settle, s.now+freeSettles*c.cfg.Settle
	case pressure != 0:
	case s.waited && s.now >= c.raise:
		d.To, d.Cause = s.limit+c.cfg.Step, CauseCalm
	}
	if pressure != 0 {
		c.raise = s.now + c.cfg.Settle
	}
	if d.To > d.Ceiling {
		d.To = d.Ceiling
		if d.To < d.From {
			d.Cause = CauseRoom
		}
	}
	if d.To < c.cfg.Floor {
		d.To, d.AtFloor = c.cfg.Floor, true
	}
	c.last, c.at, c.read = r, s.now, true
	return d
}

// freeSettles is how many times Settle lie between two decreases when memory is free after the
// first: swapped pages come back then, which stalls tasks too, and less does not help.
const freeSettles = 4

// short reports whether less than Headroom is left, as far as is known.
func (c *controller) short(r Reading) bool {
	b, known := r.tightest()
	return !known || b.Limit-b.Used < c.cfg.Headroom
}

// ceiling is the most that the limit may be, at its lowest over the window.
func (c *controller) ceiling(s budgetState, r Reading) (bytes int64, bound string) {
	if b, known := r.tightest(); known {
		// Memory that is made is perhaps not touched yet; no more of it than is used can be.
		left := b.Limit - max(b.Used-max(s.made, r.Made), 0) - c.cfg.Headroom - r.GoGrowth
		c.window = append(c.window, slack{s.now, left, b.Source})
	}
	for len(c.window) > 0 && c.window[0].at < s.now-c.cfg.Window {
		c.window = c.window[1:]
	}
	bytes = math.MaxInt64
	for _, w := range c.window {
		if w.bytes < bytes {
			bytes, bound = w.bytes, w.bound
		}
	}
	if c.cfg.Ceiling > 0 && c.cfg.Ceiling < bytes {
		bytes, bound = c.cfg.Ceiling, "the configured ceiling"
	}
	return bytes, bound
}

// pressure compares with the reading before. The first kind that is known counts: stalls, then
// faults; a limit that was hit does in addition.
func (c *controller) pressure(s budgetState, r Reading, d *Decision) Cause {
	seconds := (s.now - c.at).Seconds()
	if !c.read || seconds <= 0 {
		return 0
	}
	stalls := r.StalledBy != "" && r.StalledBy == c.last.StalledBy && r.Stalled >= c.last.Stalled
	if stalls {
		d.Stalled = (r.Stalled - c.last.Stalled).Seconds() / seconds
	}
	if r.MajorFaults >= c.last.MajorFaults && c.last.MajorFaults >= 0 {
		d.Faults = float64(r.MajorFaults-c.last.MajorFaults) / seconds
	}
	switch {
	case d.Stalled > c.cfg.Target:
		return CauseStalled
	case !stalls && d.Faults > c.cfg.Faults:
		return CauseFaults
	case r.LimitHits > c.last.LimitHits && len(r.Bounds) > 0 && c.short(r):
		// With more left the hits were page cache, which is reclaimed without harm.
		return CauseLimit
	}
	return 0
}

// record keeps a decision.
func (c *controller) record(d Decision) {
	if len(c.log) == maxDecisions {
		copy(c.log, c.log[1:])
		c.log = c.log[:maxDecisions-1]
	}
	c.log = append(c.log, d)
}
