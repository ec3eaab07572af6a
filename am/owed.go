package am

import (
	"sync/atomic"
	"time"
)

// DeferredReply is the right and the duty to reply to a call after its handler. Any
// goroutine may use it, once.
type DeferredReply struct {
	r     *replier
	h     *Handler
	rank  int
	token uint64 // 0: no reply is wanted
	at    time.Duration
	index int // in core.owed
	state atomic.Int32
}

const (
	replyOpen int32 = iota
	replyAnswered
	replyExpired
	replyDead
	replyEnded
)

// disownLocked takes a deferred reply out of those that are owed.
func (c *core) disownLocked(t *DeferredReply) {
	last := len(c.owed) - 1
	if last < 0 || t.index > last || c.owed[t.index] != t {
		return
	}
	c.owed[t.index] = c.owed[last]
	c.owed[t.index].index = t.index
	c.owed[last] = nil
	c.owed = c.owed[:last]
}

// dropOwedLocked ends the deferred replies to a rank, or all of them.
func (c *core) dropOwedLocked(rank int) {
	as := replyDead
	if rank < 0 {
		as = replyEnded
	}
	for i := len(c.owed) - 1; i >= 0; i-- {
		t := c.owed[i]
		if (rank < 0 || t.rank == rank) && t.state.CompareAndSwap(replyOpen, as) {
			c.stats.nowhere.Add(1)
			c.disownLocked(t)
		}
	}
}

// From is the rank that waits.
func (t *DeferredReply) From() int { return t.rank }
