// Package queue orders elements that know their place. A [List] is doubly linked through links that
// lie in its elements: to add, to remove and to look up an element's list allocate nothing and take
// constant time. A [Heap] is ordered by a key. Locks are the user's.
package queue

// List is a queue. The zero value is empty.
type List[T any] struct {
	head, tail *Link[T]
	n          int
}

// Link is an element's place in one list at a time. An element that can be in several lists has
// several links.
type Link[T any] struct {
	of         *T
	prev, next *Link[T]
	in         *List[T]
}

// Add puts the element of a link at the end, and out of the list that the link is in.
func (l *List[T]) Add(k *Link[T], of *T) {
	if l.tail == k {
		return
	}
	k.Leave()
	k.of, k.in, k.prev = of, l, l.tail
	if l.tail == nil {
		l.head = k
	} else {
		l.tail.next = k
	}
	l.tail = k
	l.n++
}

// Leave takes the link out of its list, if it is in one.
func (k *Link[T]) Leave() {
	l := k.in
	if l == nil {
		return
	}
	if k.prev == nil {
		l.head = k.next
	} else {
		k.prev.next = k.next
	}
	if k.next == nil {
		l.tail = k.prev
	} else {
		k.next.prev = k.prev
	}
	*k = Link[T]{}
	l.n--
}

// AddFirst is Add at the front.
func (l *List[T]) AddFirst(k *Link[T], of *T) {
	k.Leave()
	k.of, k.in, k.next = of, l, l.head
	if l.head == nil {
		l.tail = k
	} else {
		l.head.prev = k
	}
	l.head = k
	l.n++
}

// Len is the number of elements.
func (l *List[T]) Len() int { return l.n }

// First is the element that was added first; nil: there is none.
func (l *List[T]) First() *T {
	if l.head == nil {
		return nil
	}
	return l.head.of
}

// Last is the element that was added last; nil: there is none.
func (l *List[T]) Last() *T {
	if l.tail == nil {
		return nil
	}
	return l.tail.of
}

// Next is the element behind the link's; nil: there is none, or the link is in no list.
func (k *Link[T]) Next() *T {
	if k.next == nil {
		return nil
	}
	return k.next.of
}

// In is the list that the link is in; nil: none.
func (k *Link[T]) In() *List[T] { return k.in }
