package queue

// Sortable is an element of a Heap.
type Sortable[E any] interface {
	Before(E) bool // the order
	Place() *int   // where a Heap notes that it has the element; 0: in none
}

// Heap has the element first that comes before all others. The zero value is empty.
type Heap[E Sortable[E]] struct{ all []E }

// Len is the number of elements.
func (h *Heap[E]) Len() int { return len(h.all) }

// First is the element that comes before the others, the zero value where there is none.
func (h *Heap[E]) First() (first E) {
	if len(h.all) > 0 {
		first = h.all[0]
	}
	return first
}

// Add adds an element that is in no heap.
func (h *Heap[E]) Add(e E) {
	h.all = append(h.all, e)
	*e.Place() = len(h.all)
	h.Fix(e)
}

// Remove takes an element out, if it is in the heap.
func (h *Heap[E]) Remove(e E) {
	i, last := *e.Place()-1, len(h.all)-1
	if i < 0 {
		return
	}
	h.swap(i, last)
	clear(h.all[last:])
	h.all, *e.Place() = h.all[:last], 0
	if i < last {
		h.Fix(h.all[i])
	}
}

// Fix moves an element of the heap that has another place in the order now.
func (h *Heap[E]) Fix(e E) {
	i := *e.Place() - 1
	for ; i > 0 && e.Before(h.all[(i-1)/2]); i = (i - 1) / 2 {
		h.swap(i, (i-1)/2)
	}
	for k := 2*i + 1; k < len(h.all); i, k = k, 2*k+1 {
		if k+1 < len(h.all) && h.all[k+1].Before(h.all[k]) {
			k++
		}
		if !h.all[k].Before(e) {
			break
		}
		h.swap(i, k)
	}
}

func (h *Heap[E]) swap(i, k int) {
	h.all[i], h.all[k] = h.all[k], h.all[i]
	*h.all[i].Place(), *h.all[k].Place() = i+1, k+1
}
