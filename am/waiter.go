package am

import (
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/queue"
)

// waiter is a goroutine that waits for something of an endpoint. All wake-ups go through it.
type waiter struct {
	net    interface{ Wake() }
	parker Parker
	state  atomic.Uint32 // signaled, ended
	mode   atomic.Uint32
	place  queue.Link[waiter] // in core.parked

	// What it does, for the watchdog. Its goroutine writes them while it is not parked.
	op    string
	h     *Handler
	rank  int
	since time.Duration // 0: the wait has no limit
	// when it began, if its message has just been sent without a wait, and nothing happened since;
	// else 0
	began time.Duration

	claim claim // what its request needs; under the endpoint's lock once it is queued

	// The end of its call: written under the endpoint's lock, read once it has ended.
	reply    Reply
	into     []byte // memory for it, the caller's
	err      error
	token    uint64 // of its entry; 0: none
	answered bool   // by the peer
}

// The states of a waiter.
const (
	signaled = 1 << iota // it has reason to look
	ended                // its call has ended
)

// Where a waiter is.
const (
	awake    = iota // it looks at its state before it sleeps
	parking         // in its parker
	sleeping        // it leads, and is in the network's Wait
)

// unpark has the waiter look. It may be called by any goroutine, also with locks held.
func (w *waiter) unpark() {
	w.state.Or(signaled)
	w.resume()
}

// resume ends the sleep of a waiter after its state was set.
func (w *waiter) resume() {
	switch w.mode.Load() {
	case parking:
		w.parker.Unpark()
	case sleeping:
		w.net.Wake()
	}
}

// pending reports whether the waiter has reason to look. It only reads: most looks come too early,
// and a write would take the cache line from the goroutine that is to signal. An end signals as
// well.
func (w *waiter) pending() bool { return w.state.Load()&signaled != 0 }

// consume is pending, and takes the signal, so that the next wait is for another one. The signal of
// the end stays: nothing follows it.
func (w *waiter) consume() bool {
	s := w.state.Load()
	return s&ended != 0 || s&signaled != 0 && w.state.And(^uint32(signaled))&signaled != 0
}

// set takes the reply of its call.
func (w *waiter) set(h *head, payload []byte) { w.reply.set(h, payload, w.into) }

// over reports whether its call has ended.
func (w *waiter) over() bool { return w.state.Load()&ended != 0 }

// waiter returns a free one.
func (g *progress) waiter() *waiter {
	if w := g.nextIdle.Swap(nil); w != nil {
		return w
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if k := len(g.idle) - 1; k >= 0 {
		w := g.idle[k]
		g.idle = g.idle[:k]
		return w
	}
	return g.newWaiter()
}

func (c *core) newWaiter() *waiter {
	w := &waiter{net: c.net, parker: c.cfg.Host.NewParker()}
	w.claim.w = w
	return w
}

// recycle takes back a waiter that is not parked, and of no call or queue.
func (g *progress) recycle(w *waiter) {
	w.state.Store(0)
	w.reply.reset()
	w.into, w.err, w.token, w.h, w.since, w.began = nil, nil, 0, nil, 0, 0
	if g.nextIdle.CompareAndSwap(nil, w) {
		return
	}
	g.mu.Lock()
	g.idle = append(g.idle, w)
	g.mu.Unlock()
}

// begin says what a goroutine is about to wait for, from now on. It returns the time.
func (g *progress) begin(w *waiter, op string, h *Handler, rank int) time.Duration {
	w.op, w.h, w.rank = op, h, rank
	return g.beginAgain(w)
}

// beginAgain is begin for the next part of the same wait. Only since changes, which is the waiting
// goroutine's own: whatever ends the call reads the rest.
func (g *progress) beginAgain(w *waiter) time.Duration {
	now := max(1, g.net.Now())
	w.since, w.began = 0, 0
	if g.cfg.StallAfter > 0 {
		w.since = now
	}
	return now
}
