// Package errring keeps the last errors of a process, for diagnostics.
//
// Errors are values and are returned; a ring is for the question afterwards what
// happened before. Adding and reading need no lock, so both may be done from
// anywhere, with any lock held. Entries are immutable: a reader sees an entry
// whole or not at all.
package errring

import (
	"slices"
	"sync/atomic"
	"time"
)

// Size is how many errors a ring keeps.
const Size = 1024

// Entry is one error. It does not change.
type Entry struct {
	Seq  uint64        // counts the ring's errors from 0
	At   time.Duration // on the clock of its writer
	Peer int           // the rank that it is about; -1: none
	Err  error
}

// Ring keeps the last [Size] errors. Its zero value is ready.
type Ring struct {
	next  atomic.Uint64
	slots [Size]atomic.Pointer[Entry]
}

// Add keeps an error.
func (r *Ring) Add(at time.Duration, peer int, err error) {
	e := &Entry{Seq: r.next.Add(1) - 1, At: at, Peer: peer, Err: err}
	slot := &r.slots[e.Seq%Size]
	for { // a writer overtaken by a whole turn must not replace what is newer
		old := slot.Load()
		if old != nil && old.Seq > e.Seq || slot.CompareAndSwap(old, e) {
			return
		}
	}
}

// Snapshot returns the kept errors, the oldest first. Errors that are being added
// meanwhile may be there or not.
func (r *Ring) Snapshot() []Entry {
	out := make([]Entry, 0, min(r.next.Load(), Size))
	for i := range r.slots {
		if e := r.slots[i].Load(); e != nil {
			out = append(out, *e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	})
	return out
}
