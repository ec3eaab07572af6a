package queue

// Ring is a first-in, first-out queue of values. It grows by doubling, and gives its memory back
// when it was large and is empty. The zero value is empty.
type Ring[T any] struct {
	buf     []T // of a power of two
	head, n int
}

// Len is the number of elements.
func (r *Ring[T]) Len() int { return r.n }

// Item is the i-th element from the front.
func (r *Ring[T]) Item(i int) *T { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

// Push adds an element at the end.
func (r *Ring[T]) Push(v T) {
	if r.n == len(r.buf) {
		bigger := make([]T, max(2, 2*len(r.buf)))
		for i := range r.n {
			bigger[i] = *r.Item(i)
		}
		r.buf, r.head = bigger, 0
	}
	r.n++
	*r.Item(r.n - 1) = v
}

// Pop takes the element at the front; there is one.
func (r *Ring[T]) Pop() T {
	const keep = 1024
	var zero T
	v := *r.Item(0)
	*r.Item(0) = zero
	r.head = (r.head + 1) & (len(r.buf) - 1)
	if r.n--; r.n == 0 && len(r.buf) > keep {
		*r = Ring[T]{}
	}
	return v
}

// Truncate drops what lies behind the first n.
func (r *Ring[T]) Truncate(n int) {
	var zero T
	for ; r.n > n; r.n-- {
		*r.Item(r.n - 1) = zero
	}
}
