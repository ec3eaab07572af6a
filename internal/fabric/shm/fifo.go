package shm

// fifo is a queue that reuses its memory.
type fifo[T any] struct {
	buf  []T // a power of two
	head int
	n    int
}

func (q *fifo[T]) push(v T) {
	if q.n == len(q.buf) {
		bigger := make([]T, max(16, 2*len(q.buf)))
		for i := range q.n {
			bigger[i] = q.buf[(q.head+i)&(len(q.buf)-1)]
		}
		q.buf, q.head = bigger, 0
	}
	q.buf[(q.head+q.n)&(len(q.buf)-1)] = v
	q.n++
}

func (q *fifo[T]) pop() T {
	var zero T
	v := q.buf[q.head]
	q.buf[q.head] = zero
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return v
}
