package am

import (
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/queue"
)

// waiter is a goroutine that waits for something of a lane.
type waiter struct {
	parker Parker
	state  atomic.Uint32 // signalled, ended
	mode   atomic.Uint32
	links  [numLists]queue.Link[waiter]

	// What it does, for the watchdog and those behind it. Its goroutine writes them while it is in no list.
	op    string
	h     *Handler
	rank  int
	calls bool          // what it waits to send wants a reply
	since time.Duration // 0: it may wait as long as it likes
	began time.Duration // when it began, if its Short has just been sent without a wait, and nothing happened since; else 0

	reserved bool // it has the buffer for its reply, and waits for something else: see reserveEarly

	// The end of its call: written under the lane's lock, read once it has ended.
	reply Reply
	err   error
	token uint64 // of its entry; 0: none
}

// What a waiter is told.
const (
	signalled = 1 << iota // it has reason to look
	ended                 // its call has ended
)

// Where a waiter is, for whoever wakes it.
const (
	runs   = iota // it will look at its state before it sleeps
	parks         // in its parker
	sleeps        // it leads, and is in the port's Wait
)

// wake has the waiter look. Anybody may call it, also with locks held.
func (w *waiter) wake(l *Endpoint) {
	w.state.Or(signalled)
	w.rouse(l)
}

// rouse has a waiter that was told something look, if it sleeps.
func (w *waiter) rouse(l *Endpoint) {
	switch w.mode.Load() {
	case parks:
		w.parker.Unpark()
	case sleeps:
		l.port.Wake()
	}
}

// told reports whether the waiter has reason to look. It only reads: most looks come too early, and a write would take
// the word from whoever is to wake the waiter. An end signals as well.
func (w *waiter) told() bool { return w.state.Load()&signalled != 0 }

// hear is told, and takes the signal, so that the next wait is for another. That of the end stays: nothing follows it.
func (w *waiter) hear() bool {
	s := w.state.Load()
	return s&ended != 0 || s&signalled != 0 && w.state.And(^uint32(signalled))&signalled != 0
}

// over reports whether its call has ended.
func (w *waiter) over() bool { return w.state.Load()&ended != 0 }

// A waiter can be in one list of each kind.
const (
	atPeer    = iota // for credits of a peer; under the peer's lock
	atPosts          // those of atPeer whose messages want no reply; likewise
	atLane           // for send buffers; under the lane's lock
	atReplies        // for reply buffers; likewise
	parked           // for the lead, or the end of a call; likewise
	numLists
)

// list is a queue of waiters.
type list struct{ queue.List[waiter] }

// add puts w at the end, unless it is in a list of the kind.
func (l *list) add(w *waiter, kind int) {
	if !w.waits(kind) {
		l.Add(&w.links[kind], w)
	}
}

// waits reports whether w is in a list of the kind.
func (w *waiter) waits(kind int) bool { return w.links[kind].In() != nil }

// leave takes w out of its list of the kind, if it is in one.
func (w *waiter) leave(kind int) { w.links[kind].Leave() }

// wake has the first one look.
func (l *list) wake(lane *Endpoint) {
	if w := l.First(); w != nil {
		w.wake(lane)
	}
}

// wakeSome has the first k look.
func (l *list) wakeSome(lane *Endpoint, kind, k int) {
	for w := l.First(); w != nil && k > 0; w, k = w.links[kind].Next(), k-1 {
		w.wake(lane)
	}
}

// wakeOf has those look who want to send to a rank.
func (l *list) wakeOf(lane *Endpoint, kind, rank int) {
	for w := l.First(); w != nil; w = w.links[kind].Next() {
		if w.rank == rank {
			w.wake(lane)
		}
	}
}

// blocks reports whether w may not go on because others wait in front of it.
func (l *list) blocks(w *waiter) bool { return l.Len() > 0 && l.First() != w }

// lacks is blocks where it is known how many there are of what they wait for: w may go on if enough is left for
// all who wait. Else each message of several goroutines would be a turn of its own, with a wake-up.
func (l *list) lacks(w *waiter, kind, there int) bool {
	if !l.blocks(w) {
		return false
	}
	if w != nil && w.links[kind].In() == &l.List {
		there++ // its own part is among theirs
	}
	return there <= l.Len()
}

// left is how much of what there is w may take that wants no reply, with the calls of a peer's list in front of it of which the first
// waits for a reply buffer: it keeps its turn here, and the reply that ends another call may depend on what w sends. All in
// front of w that may do so too have their parts. 0: it has to wait. The locks of the peer and the lane are held.
func (p *peer) left(w *waiter, there int) int {
	if !p.bypassable() {
		return 0
	}
	for v := p.posts.First(); v != nil && v != w && there > 0; v = v.links[atPosts].Next() {
		there--
	}
	return there
}

// bypassable: see left.
func (p *peer) bypassable() bool { return p.waiting.Len() > 0 && p.waiting.First().waits(atReplies) }

// wakePassing has the first k look that may pass. The locks of the peer and the lane are held.
func (p *peer) wakePassing(l *Endpoint, k int) {
	if p.bypassable() {
		p.posts.wakeSome(l, atPosts, k)
	}
}
