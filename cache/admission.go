package cache

// admission is W-TinyLFU (Einziger, Friedman, Manes, ACM ToS 2017): a page enters a window; at its
// end it takes the place of the main queue's victim if it has been asked for more often by two, as
// a sketch remembers: in a loop the ones that were asked for just now are ahead by one. The main
// queue is in two: what was asked for there again is protected.
type admission struct {
	entries                      []entry
	window, probation, protected list
	mostWindow, mostProtected    int
	sketch                       *sketch
	refused                      uint32 // candidates
}

// spareOnce is after how many candidates the victim that they were compared with is another one.
const spareOnce = 64

// The queues of admission.
const (
	queueWindow uint8 = iota + queueMain + 1
	queueProbation
	queueProtected
)

// newAdmission has a window of a hundredth, as in the paper.
func newAdmission(entries []entry, s *sketch) *admission {
	window := max(len(entries)/100, 1)
	return &admission{entries: entries, window: newList(), probation: newList(), protected: newList(),
		mostWindow: window, mostProtected: (len(entries) - window) * 4 / 5, sketch: s}
}

func (q *admission) queue(i uint16) *list {
	switch q.entries[i].queue {
	case queueWindow:
		return &q.window
	case queueProbation:
		return &q.probation
	}
	return &q.protected
}

// move puts an entry at the head of a queue, out of the one that it is in.
func (q *admission) move(i uint16, to uint8) {
	q.queue(i).remove(q.entries, i)
	q.entries[i].queue = to
	q.queue(i).push(q.entries, i)
}

func (q *admission) insert(i uint16, _ bool) {
	q.entries[i].queue = queueWindow
	q.window.push(q.entries, i)
	if q.window.n > q.mostWindow { // the cache is not full, or what would leave may not
		q.move(q.window.tail, queueProbation)
	}
}

func (q *admission) remove(i uint16) (ghost bool) {
	q.queue(i).remove(q.entries, i)
	q.entries[i].queue = noQueue
	return false // the sketch remembers it
}

func (q *admission) victim(may func(i uint16) bool) uint16 {
	main := q.last(&q.probation, may)
	if main == none {
		main = q.last(&q.protected, may)
	}
	if q.window.n < q.mostWindow && main != none {
		return main
	}
	candidate := q.last(&q.window, may)
	switch {
	case candidate == none:
		return main
	case main == none:
		return candidate
	case q.sketch.count(q.entries[candidate].key) > q.sketch.count(q.entries[main].key)+1:
		q.move(candidate, queueProbation)
		return main
	}
	if q.refused++; q.refused%spareOnce == 0 && q.entries[main].queue == queueProbation {
		q.move(main, queueProbation) // which the sketch may take for others that are asked for
	}
	return candidate
}

// last is the last entry of a queue that may be evicted.
func (q *admission) last(l *list, may func(i uint16) bool) uint16 {
	return lastOf(q.entries, l, may)
}

// use makes an entry the last of its queue to leave, and protects it if the main queue has it.
func (q *admission) use(i uint16) {
	if q.entries[i].queue != queueProbation {
		if q.queue(i).head != i {
			q.move(i, q.entries[i].queue)
		}
		return
	}
	q.move(i, queueProtected)
	if q.protected.n > q.mostProtected {
		q.move(q.protected.tail, queueProbation)
	}
}

func (q *admission) verify() int {
	a, b := q.window.holds(q.entries, queueWindow), q.probation.holds(q.entries, queueProbation)
	c := q.protected.holds(q.entries, queueProtected)
	if a < 0 || b < 0 || c < 0 {
		return -1
	}
	return a + b + c
}

// sketch counts how often pages were asked for, to 15 and roughly: the least of four counters. It
// forgets half when it has counted ten times as often as there are pages.
type sketch struct {
	words  []uint64 // of 16 counters
	counts int
	most   int
}

// newSketch has 16 counters a page: 8 KiB for 1024.
func newSketch(pages int) *sketch {
	n := 8
	for n < pages {
		n *= 2
	}
	return &sketch{words: make([]uint64, n), most: 10 * pages}
}

// spread brings all bits of a key among all bits of the result: pages of a column are at equal
// distances, which a multiplication alone keeps.
func spread(key uint64) uint64 {
	key = (key ^ key>>29) * 0xBF58476D1CE4E5B9
	return key ^ key>>32
}

// place is the word and the shift of one of the four counters of a key that was spread.
func (s *sketch) place(key uint64, k uint64) (at, shift uint64) {
	h := key * (0x9E3779B97F4A7C15 + k*0x94D049BB133111EA)
	return h >> 24 & uint64(len(s.words)-1), h >> 58 << 2 & 63
}

func (s *sketch) add(key uint64) {
	key = spread(key)
	for k := range uint64(4) {
		at, shift := s.place(key, k)
		if s.words[at]>>shift&15 < 15 {
			s.words[at] += 1 << shift
		}
	}
	if s.counts++; s.counts < s.most {
		return
	}
	s.counts /= 2
	for i := range s.words {
		s.words[i] = s.words[i] >> 1 & 0x7777777777777777
	}
}

func (s *sketch) count(key uint64) uint64 {
	key, least := spread(key), uint64(15)
	for k := range uint64(4) {
		at, shift := s.place(key, k)
		least = min(least, s.words[at]>>shift&15)
	}
	return least
}
