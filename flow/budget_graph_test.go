package flow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// waitGraph is tasks that fetch what other tasks produce. Each takes its steps in order: it posts a
// set, gets its bytes, gets its data, uses them and releases them. The data of a set may be there
// only when earlier sets are done, as in a stencil whose cells answer when their iteration is
// ready; and a task may post only when an earlier set is done, as after a barrier. "Earlier" means
// posted before, so the graph has no cycle of its own: one that forms contains the budget.
type waitGraph struct {
	rng    *rand.Rand
	b      *Budget
	tasks  []*task
	posted []*graphStep
	faulty bool // a task may keep its lease while it waits for the next set
	held   int  // waits that were refused because of that
	offers []*Offer
	left   int // offers to come
}

type task struct {
	owner *Owner
	left  int        // steps to come
	after *graphStep // to be done before the next is posted
	now   *graphStep // posted, and not done
	next  *graphStep // posted ahead
	kept  *Lease     // of the step before
}

type graphStep struct {
	pending *Pending
	fetches []*graphFetch
	waits   bool // with the lease of the step before in hand, and may
	lease   *Lease
	done    bool
}

type graphFetch struct {
	fake
	needs *graphStep
	over  bool
}

// anyPosted is a set that was posted and is perhaps not done.
func (g *waitGraph) anyPosted() *graphStep {
	if n := len(g.posted); n > 0 && g.rng.IntN(3) > 0 {
		return g.posted[max(0, n-1-g.rng.IntN(2*len(g.tasks)))]
	}
	return nil
}

func ready(s *graphStep) bool { return s == nil || s.done }

func (g *waitGraph) post(t *task) error {
	s := &graphStep{}
	set := t.owner.NewFetchSet()
	// Condition A2: it fits. Sometimes it takes all that there is.
	left := g.b.Largest()
	for range 1 + g.rng.IntN(3) {
		n := g.rng.Int64N(left + 1)
		if g.rng.IntN(4) == 0 {
			n = left
		}
		left -= n
		f := &graphFetch{fake: fake{bytes: n}}
		if t.kept == nil || g.b.reserve.size == 0 { // the reserve does not help those that make the data
			f.needs = g.anyPosted()
		}
		s.fetches = append(s.fetches, f)
		set.Fetch(f)
	}
	var err error
	if s.pending, err = set.Post(); err != nil {
		return err
	}
	if t.now == nil {
		t.now, t.after = s, nil
	} else {
		t.next = s
	}
	t.left--
	if t.kept == nil { // else it is perhaps posted again
		g.posted = append(g.posted, s)
	}
	return nil
}

// move has one task or fetch get on by one move, the i-th of those possible; it returns how many
// are.
func (g *waitGraph) move(i int) (possible int, err error) {
	try := func(f func() error) {
		if possible == i {
			err = f()
		}
		possible++
	}
	for _, t := range g.tasks {
		if !g.faulty && t.now != nil && t.next == nil && t.left > 0 {
			try(func() error { return g.post(t) })
		}
		switch s := t.now; {
		case s == nil && t.left > 0 && ready(t.after):
			try(func() error { return g.post(t) })
		case s == nil:
		case s.lease != nil:
			try(func() error { g.finish(t); return nil })
		case t.kept != nil && !s.waits:
			try(func() error { return g.waitHolding(t) })
		default:
			for _, f := range s.fetches {
				if f.ended != nil && !f.over && ready(f.needs) {
					try(func() error { f.over = true; f.ended(nil); return nil })
				}
			}
			if s.pending.Granted() && (!s.pending.starting || s.pending.inFlight == 0) {
				try(func() (err error) {
					if err = s.pending.mayWait(); err == nil {
						s.lease, err = s.pending.Test()
					}
					return err
				})
			}
		}
	}
	for i, o := range g.offers {
		if o.claim.state == claimGranted {
			try(func() error { o.Release(); g.offers = append(g.offers[:i], g.offers[i+1:]...); return nil })
		}
	}
	if g.left > 0 {
		try(func() error {
			g.left--
			o, err := g.b.Offer(g.rng.IntN(3), g.rng.Int64N(g.b.Largest()+1), func(*Offer) {})
			g.offers = append(g.offers, o)
			return err
		})
	}
	return possible, err
}

// finish ends a step whose data are there, and what the task kept of the one before.
func (g *waitGraph) finish(t *task) {
	s := t.now
	if t.kept != nil {
		t.kept.Release()
		t.kept = nil
	}
	// With the reserve in hand it would be refused.
	if g.faulty && t.left > 0 && s.pending.from != &g.b.reserve && g.rng.IntN(2) == 0 {
		t.kept = s.lease
	} else {
		s.lease.Release()
	}
	s.done, t.now, t.next = true, t.next, nil
	if t.kept == nil && t.now == nil { // else it would hold and wait where no budget sees it
		t.after = g.anyPosted()
	}
}

// waitHolding is what a task does that waits with a lease in its hands: if that is refused, it
// releases the lease and posts the set again.
func (g *waitGraph) waitHolding(t *task) error {
	err := t.now.pending.mayWait()
	if err == nil {
		t.now.waits = true
		g.posted = append(g.posted, t.now)
		return nil
	}
	if !errors.Is(err, ErrHoldAndWait) {
		return err
	}
	g.held++
	t.now.pending.Cancel()
	t.kept.Release()
	t.kept = nil
	set := t.owner.NewFetchSet()
	for _, f := range t.now.fetches {
		set.Fetch(f)
	}
	t.now.pending, err = set.Post()
	g.posted = append(g.posted, t.now)
	return err
}

// run makes moves until all is done.
func (g *waitGraph) run() error {
	for n := 0; ; n++ {
		possible, err := g.move(-1)
		if err != nil {
			return err
		}
		over := g.left == 0 && len(g.offers) == 0
		for _, t := range g.tasks {
			over = over && t.left == 0 && t.now == nil
		}
		switch {
		case over:
			return g.b.Check()
		case possible == 0:
			return fmt.Errorf("deadlock after %d moves: %v", n, g.b.Watch())
		case n > 1_000_000:
			return errors.New("it does not end")
		}
		if _, err = g.move(g.rng.IntN(possible)); err != nil {
			return err
		}
	}
}

func newGraph(seed uint64, faulty bool, reserve int64) (*waitGraph, error) {
	g := &waitGraph{rng: rand.New(rand.NewPCG(seed, 17)), faulty: faulty}
	cfg := BudgetConfig{Limit: 20 + g.rng.Int64N(100), Small: -1, Reserve: reserve, StallAfter: 1}
	if g.rng.IntN(2) == 0 {
		cfg.Small, cfg.SmallMax = 4, 2
	}
	if g.rng.IntN(3) == 0 {
		cfg.Messages = 3 // of a set
	}
	var err error
	if g.b, err = NewBudget(cfg, Surroundings{}); err != nil {
		return nil, err
	}
	for i := range 2 + g.rng.IntN(6) {
		g.tasks = append(g.tasks, &task{owner: g.b.NewOwner(fmt.Sprintf("task %d", i), nil), left: 1 + g.rng.IntN(6)})
	}
	g.left = g.rng.IntN(6)
	return g, nil
}

// runGraphs runs random graphs; the moves of them all are about as many as the steps of budgets.
func runGraphs(t *testing.T, faulty bool, reserve int64) (refused int, s BudgetStats) {
	t.Helper()
	n := budgetSteps() / 100
	for i := range n {
		g, err := newGraph(*seed+uint64(i), faulty, reserve)
		if err == nil {
			err = g.run()
		}
		if err != nil {
			t.Fatalf("graph %d: %v", *seed+uint64(i), err)
		}
		refused += g.held
		one := g.b.Stats()
		s.Queued += one.Queued
		s.Passed += one.Passed
		s.FromReserve += one.FromReserve
	}
	t.Logf("%d graphs: %d waits, %d small ones passed, %d from the reserve, %d refused", n, s.Queued, s.Passed, s.FromReserve, refused)
	if s.Queued == 0 || s.Passed == 0 {
		t.Error("nothing ever waited, or passed")
	}
	return refused, s
}

func TestWaitGraphsOfLivePrograms(t *testing.T) {
	if refused, _ := runGraphs(t, false, 0); refused != 0 {
		t.Errorf("%d refused, and nobody held and waited", refused)
	}
}

func TestWaitGraphsThatHoldAndWait(t *testing.T) {
	if refused, _ := runGraphs(t, true, 0); refused == 0 {
		t.Error("nobody was refused")
	}
}

func TestWaitGraphsWithAReserve(t *testing.T) {
	if refused, s := runGraphs(t, true, -1); refused != 0 || s.FromReserve == 0 {
		t.Errorf("%d refused, %d served from the reserve", refused, s.FromReserve)
	}
}
