package fencecheck

import (
	"slices"

	"github.com/ibconduit/conduit/internal/lockrank"
)

// Checker knows what the ranks of a job do. Its methods, and those of its ranks and workers, may be
// called from any goroutine and do not block.
type Checker struct {
	found func(Report)

	mu       lockrank.Mutex // Errors
	ranks    []*Rank
	actors   int
	meetings map[Meeting]*meeting
	stacks   map[trace]*stack
	pairs    map[[2]*stack]bool // that were looked at
	places   map[string]bool    // of reports
	reports  []Report
	fresh    []Report // to be told when the lock is free
}

// New makes a checker of a job of some ranks. found is called with each pair of places once, on the
// goroutine of the second access; nil: Reports has them.
func New(ranks int, found func(Report)) *Checker {
	c := &Checker{found: found, meetings: map[Meeting]*meeting{}, stacks: map[trace]*stack{}, pairs: map[[2]*stack]bool{}, places: map[string]bool{}}
	c.mu.Init(lockrank.Errors, 0)
	for i := range ranks {
		c.ranks = append(c.ranks, &Rank{c: c, id: i, epoch: 1, host: c.actor()})
	}
	return c
}

// Rank is a rank of the job.
func (c *Checker) Rank(rank int) *Rank { return c.ranks[rank] }

// Reports are what was found so far.
func (c *Checker) Reports() []Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.reports)
}

// actor is a worker, or what a rank writes without one. Writes of an epoch before now are released.
type actor struct {
	number int
	now    uint32
}

func (c *Checker) actor() *actor {
	c.actors++
	return &actor{number: c.actors - 1, now: 1}
}

// unlock ends a call, and tells what it found.
func (c *Checker) unlock() {
	fresh := c.fresh
	c.fresh = nil
	c.mu.Unlock()
	if c.found != nil {
		for _, r := range fresh {
			c.found(r)
		}
	}
}

// Rank is what a rank knows, and the state of its memory.
type Rank struct {
	c       *Checker
	id      int
	epoch   uint32 // of reads
	host    *actor
	known   clock
	workers []*Worker
	out     *clock // what word that leaves takes along; nil: to be made anew
	pages   map[uint64]*page
}

// word is what word that leaves the rank now takes along.
func (r *Rank) word() *clock {
	if r.out != nil {
		return r.out
	}
	c := &clock{}
	c.join(&r.known)
	for _, w := range r.workers {
		c.join(&w.known)
		c.writes = set(c.writes, w.by.number, w.by.now-1)
		c.writes = set(c.writes, w.later.number, w.later.now-1)
	}
	c.writes = set(c.writes, r.host.number, r.host.now)
	c.reads = set(c.reads, r.id, r.epoch)
	r.host.now++
	r.epoch++
	r.out = c
	return c
}

func (r *Rank) learn(c *clock) {
	r.known.join(c)
	r.out = nil
}

// Message has a rank hear from another: all of its workers acquire before their next access.
func (r *Rank) Message(from int) {
	r.c.mu.Lock()
	defer r.c.unlock()
	if from != r.id {
		r.learn(r.c.ranks[from].word())
	}
}

// Meeting names a collective operation among all those of the job.
type Meeting struct {
	Slot       int    // of the team
	Generation uint32 // of the team
	First      int    // the first rank of the team
	Number     uint64 // of the operation
}

// Flow is who hears from whom in a collective operation.
type Flow uint8

// The flows.
const (
	FlowAll  Flow = iota // all from all
	FlowFrom             // all from the root
	FlowTo               // the root from all
	FlowUp               // each from those before it
)

type meeting struct {
	words []*clock // by member
	left  int
}

// Meet says that member me of n begins a collective operation. What it returns is called when the
// operation has ended.
func (r *Rank) Meet(m Meeting, me, n int, flow Flow, root int) (ended func()) {
	c := r.c
	c.mu.Lock()
	defer c.unlock()
	g := c.meetings[m]
	if g == nil {
		g = &meeting{words: make([]*clock, n)}
		c.meetings[m] = g
	}
	g.words[me] = r.word()
	return func() {
		c.mu.Lock()
		defer c.unlock()
		for i, w := range g.words {
			if flow == FlowAll || flow == FlowFrom && i == root || flow == FlowTo && me == root || flow == FlowUp && i < me {
				r.learn(w)
			}
		}
		if g.left++; g.left == n {
			delete(c.meetings, m)
		}
	}
}

// Worker is one whose reads and writes go through a cache, or pass it by.
type Worker struct {
	r       *Rank
	by      *actor
	later   *actor // of what is at its target at the next Release, and not before
	known   clock
	tidings clock // not acquired yet
	wrote   bool  // since the last release or delivery
	began   bool  // what later does, since the last release
}

// NewWorker adds a worker, which knows what the rank knows.
func (r *Rank) NewWorker() *Worker {
	r.c.mu.Lock()
	defer r.c.unlock()
	w := &Worker{r: r, by: r.c.actor(), later: r.c.actor()}
	r.workers = append(r.workers, w)
	w.acquire()
	return w
}

// Close ends a worker that has released.
func (w *Worker) Close() {
	w.r.c.mu.Lock()
	defer w.r.c.unlock()
	w.release()
	r := w.r
	r.known.join(&w.known)
	r.known.writes = set(r.known.writes, w.by.number, w.by.now-1)
	r.known.writes = set(r.known.writes, w.later.number, w.later.now-1)
	r.workers = slices.DeleteFunc(r.workers, func(o *Worker) bool { return o == w })
	r.out = nil
}

// Release says that all that the worker has written is at its targets.
func (w *Worker) Release() {
	w.r.c.mu.Lock()
	defer w.r.c.unlock()
	w.release()
}

func (w *Worker) release() {
	w.deliver()
	if w.began {
		w.later.now++
		w.began, w.r.out = false, nil
	}
}

// Deliver is Release of all but what WriteLater and atomics without a result have begun.
func (w *Worker) Deliver() {
	w.r.c.mu.Lock()
	defer w.r.c.unlock()
	w.deliver()
}

func (w *Worker) deliver() {
	if w.wrote {
		w.by.now++
		w.wrote, w.r.out = false, nil
	}
}

// Acquire has the worker know what it has heard.
func (w *Worker) Acquire() {
	w.r.c.mu.Lock()
	defer w.r.c.unlock()
	w.acquire()
}

func (w *Worker) acquire() {
	w.known.join(&w.tidings)
	w.known.join(&w.r.known)
	for _, o := range w.r.workers {
		if o != w {
			w.known.join(&o.known)
		}
	}
	w.r.out = nil
}

// Hear says that the worker has found a word as others have written it: it hears of what they had
// released before, and they need not release the word.
func (w *Worker) Hear(rank int, off uint64, n int) {
	w.r.c.mu.Lock()
	defer w.r.c.unlock()
	var write, word *access
	w.r.c.ranks[rank].each(off, n, false, func(p *page, i uint64) {
		if p.writes[i] == nil {
			return
		}
		if p.writes[i] != write {
			write, word = p.writes[i], p.writes[i]
			if write.n > n { // the rest of it may still be on its way
				part := *write
				part.n, word = n, &part
			}
			w.tidings.join(word.word)
			for _, o := range append([]*access{word}, word.also...) {
				o.foundBy(w.r)
			}
		}
		p.writes[i] = word
	})
}
