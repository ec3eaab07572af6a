package softroce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

// portTo is the name of guest i's card that leads to guest j.
func (c *Cluster) portTo(i, j int) string {
	list := ports(i, c.cfg.Hosts)
	if j > i {
		j--
	}
	return list[j].Name
}

// Link is the state and the counters of the link between two guests, one direction. The sender's
// kernel (tc netem) makes the faults and counts.
type Link struct {
	Cut   bool
	Loss  float64
	Delay time.Duration

	Sent uint64 // frames
	Lost uint64 // to Drop and Cut
}

// linkTime bounds what a guest takes for a change of a link.
const linkTime = time.Minute

// Cut stops every frame between two guests but those that Delay holds. Their links stay up, as
// with a switch that fails.
func (c *Cluster) Cut(a, b int) error { return c.fault(a, b, func(l *Link) { l.Cut = true }) }

// Restore undoes Cut, Drop and Delay between two guests.
func (c *Cluster) Restore(a, b int) error {
	return c.fault(a, b, func(l *Link) { l.Cut, l.Loss, l.Delay = false, 0, 0 })
}

// Drop loses a fraction (0 to 1) of the frames between two guests, in each direction.
func (c *Cluster) Drop(a, b int, fraction float64) error {
	if !(fraction >= 0 && fraction <= 1) {
		return fmt.Errorf("softroce: loss %v is not a fraction between 0 and 1", fraction)
	}
	return c.fault(a, b, func(l *Link) { l.Loss = fraction })
}

// Delay adds a time to the way of each frame between two guests, in each direction. Order is kept.
func (c *Cluster) Delay(a, b int, d time.Duration) error {
	if d < 0 || d > time.Minute {
		return fmt.Errorf("softroce: delay %v is not between 0 and 1 minute", d)
	}
	return c.fault(a, b, func(l *Link) { l.Delay = d })
}

func (c *Cluster) fault(a, b int, change func(*Link)) error {
	if len(c.hosts) < 2 {
		return errors.New("softroce: a single guest has no links; set Config.Hosts")
	}
	if !c.linked(a, b) {
		return fmt.Errorf("softroce: no link between %d and %d among %d hosts", a, b, len(c.hosts))
	}
	return errors.Join(c.ask(a, b, change), c.ask(b, a, change))
}

func (c *Cluster) linked(a, b int) bool {
	return a != b && a >= 0 && b >= 0 && a < len(c.hosts) && b < len(c.hosts)
}

// Link returns the direction from one guest to another, with the last known counters where the
// sender is gone; zero if there is no such link.
func (c *Cluster) Link(from, to int) Link {
	if !c.linked(from, to) {
		return Link{}
	}
	_ = c.ask(from, to, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.links[[2]int{from, to}]
}

// ask changes one direction of a link, in the guest that sends, and takes the counters. One that
// has gone sends nothing.
func (c *Cluster) ask(from, to int, change func(*Link)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, key := c.hosts[from], [2]int{from, to}
	if h.client == nil || !h.Alive() {
		return nil
	}
	l := c.links[key]
	req := &wire.Link{Port: c.portTo(from, to), Change: change != nil}
	if change != nil {
		change(&l)
		if req.Loss, req.Delay = l.Loss, l.Delay; l.Cut {
			req.Loss = 1
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), linkTime)
	defer cancel()
	var out bytes.Buffer
	if err := h.client.Do(ctx, wire.Request{Op: wire.OpLink, Link: req}, &out); err != nil {
		return h.describe(err)
	}
	var n wire.LinkStats
	if err := json.Unmarshal(out.Bytes(), &n); err != nil {
		return fmt.Errorf("softroce: VM %d: counters of %s: %w", from, req.Port, err)
	}
	l.Sent, l.Lost = n.Sent, n.Lost
	c.links[key] = l
	return nil
}

// Kill ends guest i at once, like a failure of its power supply, and returns when it has ended.
func (c *Cluster) Kill(i int) error {
	if i < 0 || i >= len(c.hosts) {
		return fmt.Errorf("softroce: no VM %d among %d", i, len(c.hosts))
	}
	c.hosts[i].kill()
	return nil
}
