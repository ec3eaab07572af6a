package regcache

import "container/heap"

// lru orders the entries by when they were last used. A hit only leaves a stamp in its entry; the
// order is mended when the oldest is looked up. It belongs to the cache's lock.
type lru struct {
	h ageHeap
}

func (l *lru) add(e *entry) {
	e.sorted = e.stamp.Load()
	heap.Push(&l.h, e)
}

func (l *lru) remove(e *entry) {
	if e.place >= 0 {
		heap.Remove(&l.h, e.place)
	}
}

// oldest calls f with idle entries, those unused for longest first, until it returns false. f
// removes what it takes.
func (l *lru) oldest(f func(*entry) bool) {
	var busy []*entry
	for len(l.h) > 0 {
		e := l.h[0]
		if s := e.stamp.Load(); s != e.sorted {
			e.sorted = s
			heap.Fix(&l.h, 0)
			continue
		}
		if e.ref.Refs() > 0 {
			busy = append(busy, heap.Pop(&l.h).(*entry))
			continue
		}
		if !f(e) {
			break
		}
	}
	for _, e := range busy {
		heap.Push(&l.h, e)
	}
}

type ageHeap []*entry

func (h ageHeap) Len() int           { return len(h) }
func (h ageHeap) Less(i, j int) bool { return h[i].sorted < h[j].sorted }
func (h ageHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *ageHeap) Push(x any) {
	e := x.(*entry)
	e.place = len(*h)
	*h = append(*h, e)
}

func (h *ageHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.place = -1
	return e
}
