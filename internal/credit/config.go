package credit

import (
	"fmt"
	"time"
)

// MaxWindow is the largest window that a header can request.
const MaxWindow = 1<<14 - 1

// The knobs of credits that no user needs to turn.
const (
	// Messages carry Want when the balance is at most half of what it was after the
	// last grant, and want an answer at once from a quarter on.
	// UCX has the same (UCX_RC_VERBS_FC_SOFT_THRESH 0.5, FC_HARD_THRESH 0.25).
	softShare, hardShare = 2, 4
	// reserveShare of the credits is not for peers that only want more than they have:
	// a newcomer then needs no recall.
	reserveShare = 8
	// firstWant is the window that a sender requests before it ever ran dry.
	firstWant = 4
	// A question that stays unanswered is repeated after Retry, twice that, and so
	// on until Retry << maxBackoff.
	maxBackoff = 5
	// longest is what longer times are cut to, 104 days, so that sums and backoffs do not
	// overflow.
	longest = time.Duration(1 << 53)
)

// Config are the parameters of credits. Both ends of every pair must have the same.
type Config struct {
	// Window is how many credits one peer may hold: 1 to MaxWindow. 0: 64, or all
	// there are if fewer.
	Window int
	// Initial is how many credits a peer gets unasked when its connection opens, if
	// there are that many to spare. 0: 2. At most Window. -1: none.
	Initial int
	// RecallAfter is for how long a peer may hold credits without using one while
	// others have none. 0: 1 ms.
	RecallAfter time.Duration
	// Retry is after what time an unanswered question is repeated. 0: 4 ms.
	Retry time.Duration
}

// Slowest is the longest time after which an unanswered question is repeated. The defaults are
// filled in.
func (c *Config) Slowest() time.Duration { return c.Retry << maxBackoff }

// PoolConfig are the parameters of a receiver's pool.
type PoolConfig struct {
	Config
	Peers   int // peers are numbered from 0 to Peers-1
	Credits int // buffers posted for requests, at least 1
	Replies int // buffers posted for replies, in addition; at least 0
}

func (c Config) withDefaults(credits int) (Config, error) {
	if c.Window == 0 {
		c.Window = min(64, credits)
	}
	switch c.Initial {
	case 0:
		c.Initial = min(2, c.Window)
	case -1:
		c.Initial = 0
	}
	if c.RecallAfter == 0 {
		c.RecallAfter = time.Millisecond
	}
	if c.Retry == 0 {
		c.Retry = 4 * time.Millisecond
	}
	switch {
	case c.Window < 1 || c.Window > MaxWindow:
		return c, fmt.Errorf("credit: a window of %d credits: choose from 1 to %d", c.Window, MaxWindow)
	case c.Initial < 0 || c.Initial > c.Window:
		return c, fmt.Errorf("credit: %d initial credits: choose from 0 to the window, %d", c.Initial, c.Window)
	case c.RecallAfter < 0 || c.Retry < 0:
		return c, fmt.Errorf("credit: negative time (RecallAfter %v, Retry %v)", c.RecallAfter, c.Retry)
	}
	c.RecallAfter, c.Retry = min(c.RecallAfter, longest), min(c.Retry, longest)
	return c, nil
}

func (c PoolConfig) withDefaults() (PoolConfig, error) {
	var err error
	if c.Config, err = c.Config.withDefaults(c.Credits); err != nil {
		return c, err
	}
	const most = 1 << 30 // counters of 32 bits compare right while differences stay below half their range
	if c.Peers < 1 || c.Credits < 1 || c.Credits > most || c.Replies < 0 || c.Replies > most {
		return c, fmt.Errorf("credit: a pool of %d credits and %d replies for %d peers: "+
			"at least one peer and credit, at most 2^30 each",
			c.Credits, c.Replies, c.Peers)
	}
	return c, nil
}
