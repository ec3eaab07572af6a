package regcache

import "github.com/ibconduit/conduit/internal/queue"

// lru orders the entries by when they were last used. A hit only leaves a stamp in its entry; the
// order is mended when the oldest is looked up. It belongs to the cache's lock.
type lru struct {
	h queue.Heap[*entry]
}

func (l *lru) add(e *entry) {
	e.sorted = e.stamp.Load()
	l.h.Add(e)
}

func (l *lru) remove(e *entry) { l.h.Remove(e) }

// oldest calls f with idle entries, those unused for longest first, until it returns false. f
// removes what it takes.
func (l *lru) oldest(f func(*entry) bool) {
	var busy []*entry
	for l.h.Len() > 0 {
		e := l.h.First()
		if s := e.stamp.Load(); s != e.sorted {
			e.sorted = s
			l.h.Fix(e)
			continue
		}
		if e.ref.Refs() > 0 {
			l.h.Remove(e)
			busy = append(busy, e)
			continue
		}
		if !f(e) {
			break
		}
	}
	for _, e := range busy {
		l.h.Add(e)
	}
}

// Before is the order of the last use, as far as it is known.
func (e *entry) Before(o *entry) bool { return e.sorted < o.sorted }

// Place is where the order notes it.
func (e *entry) Place() *int { return &e.place }
