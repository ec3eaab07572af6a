package alloc

import "math/bits"

// Free runs lie in bins by their number of pages: one number a bin below 2^binBits, then 2^binBits
// bins for each power of two.
const (
	binBits = 3
	numBins = (32-binBits)<<binBits + 1<<binBits
)

// binOf is the bin of runs of n pages.
func binOf(n uint32) int {
	if n < 1<<binBits {
		return int(n)
	}
	log := bits.Len32(n) - 1 - binBits
	return (log+1)<<binBits + int(n>>log)&(1<<binBits-1)
}

// takeRun takes a run of at least so many pages out of the free ones, 0 if there is none. It is cut
// once, by the caller: two free runs never lie side by side.
func (a *Segregated) takeRun(pages uint32) int32 {
	i := a.findRun(pages)
	if i == 0 && a.dropEmpty() {
		i = a.findRun(pages)
	}
	if i != 0 {
		a.removeRun(i)
	}
	return i
}

// findRun is a free run of at least so many pages. All runs of a later bin will do; its
// own bin's are looked at one by one, and only if there is no other.
func (a *Segregated) findRun(pages uint32) int32 {
	own := binOf(pages)
	from := binOf(pages-1) + 1 // the first bin of which all runs will do
	for w := from / 64; w < len(a.full); w++ {
		word := a.full[w]
		if w == from/64 {
			word &= ^uint64(0) << (from % 64)
		}
		if word != 0 {
			return a.bins[w*64+bits.TrailingZeros64(word)]
		}
	}
	for i := a.bins[own]; i != 0; i = a.spans[i].next {
		if a.spans[i].pages >= pages {
			return i
		}
	}
	return 0
}

// cut leaves pages of a run that is in no bin, after the first skip of it, and frees the rest.
func (a *Segregated) cut(i int32, skip, pages uint32) int32 {
	if s := a.spans[i]; skip > 0 {
		front := i
		i = a.newRun(s.start+skip, s.pages-skip)
		a.spans[front].pages = skip
		a.addRun(front)
	}
	if s := a.spans[i]; s.pages > pages {
		a.addRun(a.newRun(s.start+pages, s.pages-pages))
		a.spans[i].pages = pages
	}
	a.mark(i)
	return i
}

// newRun is a span record that is in no list.
func (a *Segregated) newRun(start, pages uint32) int32 {
	i := a.spare
	if i == 0 {
		i = int32(len(a.spans))
		a.spans = append(a.spans, span{})
	} else {
		a.spare = a.spans[i].next
	}
	a.spans[i] = span{start: start, pages: pages}
	return i
}

// mark has the first and the last page of a run name it.
func (a *Segregated) mark(i int32) {
	s := &a.spans[i]
	a.pages[s.start], a.pages[s.start+s.pages-1] = uint32(i), uint32(i)
}

// addRun makes a run free; its neighbours are not.
func (a *Segregated) addRun(i int32) {
	a.mark(i)
	s := &a.spans[i]
	s.kind = free
	b := binOf(s.pages)
	a.link(&a.bins[b], i)
	a.full[b/64] |= 1 << (b % 64)
}

// removeRun takes a free run out of its bin.
func (a *Segregated) removeRun(i int32) {
	b := binOf(a.spans[i].pages)
	a.unlink(&a.bins[b], i)
	if a.bins[b] == 0 {
		a.full[b/64] &^= 1 << (b % 64)
	}
}

// freeRun frees a run and joins it with free neighbours.
func (a *Segregated) freeRun(i int32) {
	s := a.spans[i]
	if end := s.start + s.pages; end < uint32(len(a.pages)) {
		a.join(i, int32(a.pages[end]))
	}
	if s.start > 0 {
		a.join(i, int32(a.pages[s.start-1]))
	}
	a.addRun(i)
}

// join adds a neighbour to a run, if that is free.
func (a *Segregated) join(i, neighbour int32) {
	n := a.spans[neighbour]
	if n.kind != free {
		return
	}
	a.removeRun(neighbour)
	a.spans[neighbour] = span{next: a.spare}
	a.spare = neighbour
	s := &a.spans[i]
	s.start = min(s.start, n.start)
	s.pages += n.pages
}

// dropEmpty frees the spans that have no object in use, and reports whether there was one.
func (a *Segregated) dropEmpty() (any bool) {
	for c := range a.room {
		for i := a.room[c]; i != 0; {
			next := a.spans[i].next
			if a.spans[i].taken == 0 {
				a.unlink(&a.room[c], i)
				a.freeRun(i)
				any = true
			}
			i = next
		}
	}
	return any
}

// Grow implements Allocator.
func (a *Segregated) Grow(n uint64) {
	checkGrow(n, a.len())
	if n == 0 {
		return
	}
	start := uint32(len(a.pages))
	a.pages = append(a.pages, make([]uint32, n>>pageShift)...)
	a.freeRun(a.newRun(start, uint32(n>>pageShift)))
}

// Trim implements Allocator.
func (a *Segregated) Trim() uint64 {
	a.dropEmpty()
	if len(a.pages) == 0 {
		return 0
	}
	i := int32(a.pages[len(a.pages)-1])
	if s := a.spans[i]; s.kind == free {
		a.removeRun(i)
		a.spans[i] = span{next: a.spare}
		a.spare = i
		a.pages = a.pages[:s.start]
	}
	return a.len()
}

// link puts a span at the head of a list.
func (a *Segregated) link(head *int32, i int32) {
	s := &a.spans[i]
	s.prev, s.next = 0, *head
	if *head != 0 {
		a.spans[*head].prev = i
	}
	*head = i
}

func (a *Segregated) unlink(head *int32, i int32) {
	s := &a.spans[i]
	if s.prev != 0 {
		a.spans[s.prev].next = s.next
	} else {
		*head = s.next
	}
	if s.next != 0 {
		a.spans[s.next].prev = s.prev
	}
	s.prev, s.next = 0, 0
}
