package softroce

import (
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/hack/softroce/internal/lan"
)

// Cut stops every frame between two guests, those under way included. Their links stay up, as with
// a switch that fails.
func (c *Cluster) Cut(a, b int) error { return c.fault(a, b, func(f *lan.Faults) { f.Cut = true }) }

// Restore undoes Cut, Drop and Delay between two guests.
func (c *Cluster) Restore(a, b int) error {
	return c.fault(a, b, func(f *lan.Faults) { *f = lan.Faults{} })
}

// Drop loses a fraction (0 to 1) of the frames between two guests, in each direction, drawn from
// Config.Seed.
func (c *Cluster) Drop(a, b int, fraction float64) error {
	if !(fraction >= 0 && fraction <= 1) {
		return fmt.Errorf("softroce: loss %v is not a fraction between 0 and 1", fraction)
	}
	return c.fault(a, b, func(f *lan.Faults) { f.Loss = fraction })
}

// Delay adds a time to the way of each frame between two guests, in each direction. Order is kept.
func (c *Cluster) Delay(a, b int, d time.Duration) error {
	if d < 0 || d > time.Minute {
		return fmt.Errorf("softroce: delay %v is not between 0 and 1 minute", d)
	}
	return c.fault(a, b, func(f *lan.Faults) { f.Delay = d })
}

func (c *Cluster) fault(a, b int, change func(*lan.Faults)) error {
	if c.lan == nil {
		return errors.New("softroce: a single guest has no links; set Config.Hosts")
	}
	return c.lan.Set(a, b, change)
}

// Link is the state and the counters of the link between two guests, one direction.
type Link struct {
	Cut   bool
	Loss  float64
	Delay time.Duration

	Sent     uint64 // frames handed to the receiver
	Dropped  uint64 // lost to Drop
	CutOff   uint64 // lost to Cut
	Overflow uint64 // lost because the receiver did not keep up, or was gone
}

// Link returns the direction from one guest to another; zero if there is no such link.
func (c *Cluster) Link(from, to int) Link {
	if c.lan == nil || from < 0 || to < 0 || from >= len(c.hosts) || to >= len(c.hosts) {
		return Link{}
	}
	s, f := c.lan.Stats(from, to)
	return Link{Cut: f.Cut, Loss: f.Loss, Delay: f.Delay, Sent: s.Sent, Dropped: s.Dropped, CutOff: s.Cut, Overflow: s.Overflow}
}

// Kill ends guest i at once, like a failure of its power supply, and returns when it has ended.
func (c *Cluster) Kill(i int) error {
	if i < 0 || i >= len(c.hosts) {
		return fmt.Errorf("softroce: no VM %d among %d", i, len(c.hosts))
	}
	c.hosts[i].kill()
	return nil
}
