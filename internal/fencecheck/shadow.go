package fencecheck

import "slices"

// pageSize is the bytes of a page of the state of memory.
const pageSize = 1024

// page is the state of bytes: the last write of each, and the reads since.
type page struct {
	writes [pageSize]*access
	reads  [pageSize]*readers
}

// access is one of some bytes.
type access struct {
	kind Kind
	rank int
	*sent
	n     int // bytes of a put
	from  *stack
	word  *clock    // of a write: what who waits for it hears
	also  []*access // atomics before this one, of others, that it does not know of
	found []find    // of a word: who knows by what is there that it has arrived
}

// sent is when others may know of an access. Parts of a put share it.
type sent struct {
	by    *actor // of a write; nil of a read
	epoch uint32
}

// find is since when a rank tells others that it has found a write in its place.
type find struct {
	by    *actor // the rank's host
	epoch uint32
}

func (x *access) foundBy(r *Rank) {
	if x.rank != r.id && !slices.ContainsFunc(x.found, func(f find) bool { return f.by == r.host }) {
		x.found, r.out = append(x.found, find{r.host, r.host.now}), nil
	}
}

// readers are reads that are not ordered with each other, one of each rank at most.
type readers struct{ all []*access }

// each calls f for each byte of the rank's memory that has a page. make: those that have none get
// one.
func (r *Rank) each(off uint64, n int, make bool, f func(p *page, i uint64)) {
	for end := off + uint64(n); off < end; {
		p := r.pages[off/pageSize]
		if p == nil && make {
			if p = (&page{}); r.pages == nil {
				r.pages = map[uint64]*page{}
			}
			r.pages[off/pageSize] = p
		}
		for last := min(end, (off/pageSize+1)*pageSize); off < last; off++ {
			if p != nil {
				f(p, off%pageSize)
			}
		}
	}
}

// Read says that the worker reads n bytes at off of a rank, and returns whether that is in order.
func (w *Worker) Read(rank int, off uint64, n int) bool { return w.read(KindRead, rank, off, n) }

// Load says that the rank reads n bytes of its own memory.
func (w *Worker) Load(off uint64, n int) { w.read(KindLoad, w.r.id, off, n) }

// Write says that the worker writes n bytes at off of a rank.
func (w *Worker) Write(rank int, off uint64, n int) { w.write(KindWrite, w.by, rank, off, n) }

// WriteLater is Write of bytes that an atomic does not follow: it takes a Release, or that arrived
// is called, once they are there.
func (w *Worker) WriteLater(rank int, off uint64, n int) (arrived func()) {
	x := w.write(KindWrite, w.later, rank, off, n)
	return func() { w.arrived(x, w.by) }
}

// arrived has others see a write that no release has waited for: with the next delivery, or at once
// where it is the host's.
func (w *Worker) arrived(x *access, by *actor) {
	w.r.c.mu.Lock()
	defer w.r.c.unlock()
	if x.by == w.later && x.epoch == w.later.now {
		x.by, x.epoch, w.wrote, w.r.out = by, by.now, true, nil
	}
}

// Store says that the rank writes n bytes of its own memory, which are there at once.
func (w *Worker) Store(off uint64, n int) { w.write(KindStore, w.r.host, w.r.id, off, n) }

// Deposit is Write of bytes that are at their target when what is sent behind them arrives there.
func (w *Worker) Deposit(rank int, off uint64, n int) {
	w.write(KindWrite, w.r.host, rank, off, n)
}

func (w *Worker) read(kind Kind, rank int, off uint64, n int) (ordered bool) {
	pcs := caller()
	c := w.r.c
	c.mu.Lock()
	defer c.unlock()
	x := &access{kind: kind, rank: w.r.id, sent: &sent{epoch: w.r.epoch}, from: c.stack(pcs)}
	w.r.out = nil
	var write *access
	var old, now *readers
	ordered = true
	c.ranks[rank].each(off, n, true, func(p *page, i uint64) {
		if p.writes[i] != write {
			write = p.writes[i]
			ordered = w.against(write, x, rank, off, n) && ordered
		}
		if now == nil || p.reads[i] != old {
			old = p.reads[i]
			now = old.with(x, w)
		}
		p.reads[i] = now
	})
	return ordered
}

// with are the readers and another one, but for those that it knows of.
func (r *readers) with(x *access, w *Worker) *readers {
	now := &readers{all: []*access{x}}
	if r == nil {
		return now
	}
	for _, o := range r.all {
		if o.rank == x.rank && o.epoch == x.epoch && o.from == x.from {
			return r
		}
		if !w.known.knows(o, w.r) {
			now.all = append(now.all, o)
		}
	}
	return now
}

func (w *Worker) write(kind Kind, by *actor, rank int, off uint64, n int) *access {
	pcs := caller()
	c := w.r.c
	c.mu.Lock()
	defer c.unlock()
	var word *clock // of what was before: what is written may arrive in parts
	if kind == KindWrite {
		word = w.r.word()
	}
	x := &access{kind: kind, rank: w.r.id, sent: &sent{by, by.now}, n: n, from: c.stack(pcs), word: word}
	switch by {
	case w.by:
		w.wrote = true
	case w.later:
		w.began = true
	default:
		w.r.out = nil
	}
	w.put(x, rank, off, n)
	return x
}

// put checks a write, and makes it the last.
func (w *Worker) put(x *access, rank int, off uint64, n int) {
	var write *access
	var reads *readers
	w.r.c.ranks[rank].each(off, n, true, func(p *page, i uint64) {
		if p.writes[i] != write {
			write = p.writes[i]
			w.against(write, x, rank, off, n)
		}
		if p.reads[i] != reads && p.reads[i] != nil {
			reads = p.reads[i]
			for _, o := range reads.all {
				w.compare(o, x, rank, off, n)
			}
		}
		p.writes[i], p.reads[i] = x, nil
	})
}

// Update says that the worker begins an atomic on n bytes at off of a rank. One that returns a
// value is a fetch: it is there when arrived is called, and the worker hears of the others by Hear.
// Of any other a Release says that it is there.
func (w *Worker) Update(rank int, off uint64, n int, fetch bool) (arrived func()) {
	pcs := caller()
	c := w.r.c
	c.mu.Lock()
	defer c.unlock()
	x := &access{kind: KindAtomic, rank: w.r.id, sent: &sent{w.later, w.later.now}, from: c.stack(pcs)}
	w.began = true
	heard := &clock{}
	heard.join(w.r.word())
	c.ranks[rank].each(off, n, true, func(p *page, i uint64) {
		o := p.writes[i]
		if o == x || o == nil {
			return
		}
		heard.join(o.word)
		if o.kind == KindAtomic {
			for _, o := range append([]*access{o}, o.also...) {
				if o.by != x.by && !slices.Contains(x.also, o) && !(fetch && heard.knows(o, w.r)) {
					x.also = append(x.also, o)
				}
			}
		}
	})
	x.word = heard // as of a release sequence
	w.put(x, rank, off, n)
	return func() { w.arrived(x, w.r.host) }
}

// against compares an access with a write, and the atomics that go with it.
func (w *Worker) against(write, x *access, rank int, off uint64, n int) (ordered bool) {
	if write == nil || write.kind == KindAtomic && x.kind == KindAtomic {
		return true
	}
	ordered = w.compare(write, x, rank, off, n)
	for _, o := range write.also {
		ordered = w.compare(o, x, rank, off, n) && ordered
	}
	return ordered
}

// compare reports two accesses that are not in order. The second one is this worker's.
func (w *Worker) compare(first, x *access, rank int, off uint64, n int) (ordered bool) {
	if w.known.knows(first, w.r) {
		return true
	}
	missing := MissingOrder
	switch {
	case w.tidings.knows(first, w.r) || w.r.known.knows(first, w.r):
		if x.kind != KindRead || rank == w.r.id {
			return true // only copies are old without an acquire
		}
		missing = MissingAcquire
	case first.by != nil && first.by != w.r.c.ranks[first.rank].host && first.epoch >= first.by.now:
		missing = MissingRelease
	}
	w.r.c.report(first, x, rank, off, n, missing)
	return false
}

// Stale says that the worker has read n bytes at off of a rank which are not what is there now, and
// which it has not written itself.
func (w *Worker) Stale(rank int, off uint64, n int) {
	pcs := caller()
	c := w.r.c
	c.mu.Lock()
	defer c.unlock()
	x := &access{kind: KindRead, rank: w.r.id, from: c.stack(pcs)}
	first := &access{kind: KindUnknown, rank: -1, from: c.stack(trace{})}
	c.ranks[rank].each(off, n, false, func(p *page, i uint64) {
		if o := p.writes[i]; o != nil && o.rank != w.r.id {
			first = o
		}
	})
	c.report(first, x, rank, off, n, MissingAcquire)
}
