package am

import (
	"sync/atomic"
	"time"
)

// waiter is a goroutine that waits for something of a lane.
type waiter struct {
	parker Parker
	signal atomic.Bool // it has reason to look
	mode   atomic.Uint32
	links  [numLists]link

	// What it does, for the watchdog. Its goroutine writes them while it is in no list.
	op    string
	h     *Handler
	rank  int
	since time.Duration // 0: it may wait as long as it likes

	// The end of its call: written under the lane's lock, read after done.
	done  atomic.Bool
	reply Reply
	err   error
	token uint64 // of its entry; 0: none
}

// Where a waiter is, for whoever wakes it.
const (
	runs   = iota // it will look at signal before it sleeps
	parks         // in its parker
	sleeps        // it leads, and is in the port's Wait
)

// wake has the waiter look. Anybody may call it, also with locks held.
func (w *waiter) wake(l *Lane) {
	w.signal.Store(true)
	switch w.mode.Load() {
	case parks:
		w.parker.Unpark()
	case sleeps:
		l.port.Wake()
	}
}

// A waiter can be in one list of each kind.
const (
	atPeer    = iota // for credits of a peer; under the peer's lock
	atLane           // for send buffers; under the lane's lock
	atReplies        // for reply buffers; likewise
	parked           // for the lead, or the end of a call; likewise
	numLists
)

type link struct {
	prev, next *waiter
	in         *list
}

// list is a queue of waiters.
type list struct {
	head, tail *waiter
	n          int
}

func (l *list) add(w *waiter, kind int) {
	k := &w.links[kind]
	if k.in != nil {
		return
	}
	k.in, k.prev = l, l.tail
	if l.tail == nil {
		l.head = w
	} else {
		l.tail.links[kind].next = w
	}
	l.tail = w
	l.n++
}

// leave takes w out of its list of the kind, if it is in one.
func (w *waiter) leave(kind int) {
	k := &w.links[kind]
	l := k.in
	if l == nil {
		return
	}
	if k.prev == nil {
		l.head = k.next
	} else {
		k.prev.links[kind].next = k.next
	}
	if k.next == nil {
		l.tail = k.prev
	} else {
		k.next.links[kind].prev = k.prev
	}
	*k = link{}
	l.n--
}

// wake has the first one look.
func (l *list) wake(lane *Lane) {
	if l.head != nil {
		l.head.wake(lane)
	}
}

// wakeSome has the first k look.
func (l *list) wakeSome(lane *Lane, kind, k int) {
	for w := l.head; w != nil && k > 0; w, k = w.links[kind].next, k-1 {
		w.wake(lane)
	}
}

// blocks reports whether w may not go on because others wait in front of it.
func (l *list) blocks(w *waiter) bool { return l.head != nil && l.head != w }

// lacks is blocks where it is known how many there are of what they wait for: w may go on if enough is left for
// all who wait. Else each message of several goroutines would be a turn of its own, with a wake-up.
func (l *list) lacks(w *waiter, kind, there int) bool {
	if !l.blocks(w) {
		return false
	}
	if w != nil && w.links[kind].in == l {
		there++ // its own part is among theirs
	}
	return there <= l.n
}
