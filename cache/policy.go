package cache

// Policy chooses which pages a cache evicts.
type Policy uint8

// The policies.
const (
	// TwoQueues is 2Q (Johnson and Shasha, VLDB 1994), as Chapel has it: a page enters a queue of a
	// quarter of the cache, first in, first out; one that is asked for again after it has left that
	// queue, and is still remembered, enters the main queue, which the one leaves that was not asked
	// for for longest.
	TwoQueues Policy = iota
	// Admission is W-TinyLFU with a window of a hundredth: a page stays only if it is asked for more
	// often than the one that would leave for it. It is better for columns longer than the cache, and
	// worse where all that a program refers to changes now and then. Each change of page costs some
	// 10 ns more.
	Admission
	// Duel is the one of the two that misses less on some of the pages.
	Duel
	numPolicies
)

// policy is what keeps the entries in an order. It works on the links of the entries' array.
type policy interface {
	// use notes that an entry was asked for.
	use(i uint16)
	// insert adds an entry that has just got its page; again: the page is remembered as a ghost.
	insert(i uint16, again bool)
	// victim returns the entry to evict first of those that may be, or none.
	victim(may func(i uint16) bool) uint16
	// remove takes an entry out; ghost: its page is worth remembering.
	remove(i uint16) (ghost bool)
	// verify returns the number of entries that it has, or -1 where its structure is broken.
	verify() int
}

// newPolicy begins with TwoQueues for Duel.
func newPolicy(p Policy, entries []entry, s *sketch) policy {
	if p == Admission {
		return newAdmission(entries, s)
	}
	return newTwoQueues(entries)
}

// list is a queue of entries, linked by prev and next.
type list struct {
	head, tail uint16
	n          int
}

func newList() list { return list{head: none, tail: none} }

func (l *list) push(e []entry, i uint16) {
	e[i].prev, e[i].next = none, l.head
	if l.head != none {
		e[l.head].prev = i
	} else {
		l.tail = i
	}
	l.head = i
	l.n++
}

func (l *list) remove(e []entry, i uint16) {
	prev, next := e[i].prev, e[i].next
	if prev != none {
		e[prev].next = next
	} else {
		l.head = next
	}
	if next != none {
		e[next].prev = prev
	} else {
		l.tail = prev
	}
	l.n--
}

// holds counts the entries, all of which must be of the queue, or returns -1.
func (l *list) holds(e []entry, queue uint8) int {
	n, before := 0, uint16(none)
	for i := l.head; i != none; i = e[i].next {
		if n++; n > len(e) || e[i].prev != before || e[i].queue != queue || e[i].key == 0 {
			return -1
		}
		before = i
	}
	if n != l.n || before != l.tail {
		return -1
	}
	return n
}

// lastOf is the last entry of a queue that may be evicted.
func lastOf(e []entry, l *list, may func(i uint16) bool) uint16 {
	for i := l.tail; i != none; i = e[i].prev {
		if may(i) {
			return i
		}
	}
	return none
}

// The queues of twoQueues.
const (
	noQueue uint8 = iota
	queueIn       // pages that were asked for once in a while
	queueMain
)

type twoQueues struct {
	entries  []entry
	in, main list
	most     int // of in, while main has any
}

func newTwoQueues(entries []entry) *twoQueues {
	return &twoQueues{entries: entries, in: newList(), main: newList(), most: max(len(entries)/4, 1)}
}

func (q *twoQueues) insert(i uint16, again bool) {
	e := &q.entries[i]
	if e.queue = queueIn; again {
		e.queue = queueMain
		q.main.push(q.entries, i)
		return
	}
	q.in.push(q.entries, i)
}

func (q *twoQueues) remove(i uint16) (ghost bool) {
	e := &q.entries[i]
	l := &q.main
	if ghost = e.queue == queueIn; ghost {
		l = &q.in
	}
	l.remove(q.entries, i)
	e.queue = noQueue
	return ghost
}

func (q *twoQueues) victim(may func(i uint16) bool) uint16 {
	if q.in.n <= q.most {
		if i := lastOf(q.entries, &q.main, may); i != none {
			return i
		}
	}
	if i := lastOf(q.entries, &q.in, may); i != none {
		return i
	}
	return lastOf(q.entries, &q.main, may)
}

// use makes an entry of the main queue the last to leave.
func (q *twoQueues) use(i uint16) {
	if q.main.head != i && q.entries[i].queue == queueMain {
		q.main.remove(q.entries, i)
		q.main.push(q.entries, i)
	}
}

func (q *twoQueues) verify() int {
	in, main := q.in.holds(q.entries, queueIn), q.main.holds(q.entries, queueMain)
	if in < 0 || main < 0 {
		return -1
	}
	return in + main
}

// ghosts remember the pages that left, as a ring of keys, the oldest of which are forgotten.
type ghosts struct {
	keys []uint64 // 0: none
	next int
}

// ParsePolicy is the policy of a name: "2q", "admission" or "duel".
func ParsePolicy(name string) (Policy, bool) {
	for p, s := range policyNames {
		if s == name {
			return Policy(p), true
		}
	}
	return 0, false
}

var policyNames = [numPolicies]string{"2q", "admission", "duel"}

func (p Policy) String() string {
	if p < numPolicies {
		return policyNames[p]
	}
	return "unknown policy"
}

// follow makes a policy the cache's.
func (d *directory) follow(p policy) {
	d.policy = p
	d.lru, _ = p.(*twoQueues)
}

// touch notes that an entry was asked for.
func (d *directory) touch(i uint16) {
	switch q := d.entries[i].queue; {
	case q == queueMain:
		d.lru.use(i)
	case q > queueMain:
		d.policy.use(i)
	}
}
