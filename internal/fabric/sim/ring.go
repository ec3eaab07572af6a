package sim

// ring is a queue that grows by doubling and gives its memory back when it was
// large and is empty.
type ring[T any] struct {
	buf        []T
	head, size int
}

func (r *ring[T]) len() int { return r.size }

// item is the i-th element from the front.
func (r *ring[T]) item(i int) *T { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring[T]) push(v T) {
	if r.size == len(r.buf) {
		bigger := make([]T, max(2, 2*len(r.buf)))
		for i := range r.size {
			bigger[i] = *r.item(i)
		}
		r.buf, r.head = bigger, 0
	}
	r.size++
	*r.item(r.size - 1) = v
}

func (r *ring[T]) pop() T {
	const keep = 64
	v := *r.item(0)
	var zero T
	*r.item(0) = zero
	r.head = (r.head + 1) & (len(r.buf) - 1)
	if r.size--; r.size == 0 && len(r.buf) > keep {
		*r = ring[T]{}
	}
	return v
}

// truncate drops what lies behind the first n.
func (r *ring[T]) truncate(n int) {
	var zero T
	for ; r.size > n; r.size-- {
		*r.item(r.size - 1) = zero
	}
}
