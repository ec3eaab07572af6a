package flow

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const mib = 1 << 20

// machine is one whose memory a test sets: 1 GiB, in which the application and a hog have some, and
// what the budget's holders have made is resident.
type machine struct {
	clock   clock
	b       *Budget
	app     int64
	hog     int64
	stalled time.Duration
	by      string
	faults  int64
	hits    uint64
	pinned  int64
	growth  int64
}

func (m *machine) reading() Reading {
	r := Reading{
		Bounds:  []MemoryBound{{"memory.max of /job", 1024 * mib, m.app + m.hog}, {"MemAvailable", 8192 * mib, m.app + m.hog}},
		Stalled: m.stalled, StalledBy: m.by, MajorFaults: m.faults, LimitHits: m.hits, Pinned: m.pinned, GoGrowth: m.growth,
	}
	if m.b != nil {
		s := m.b.Stats()
		for i := range r.Bounds {
			r.Bounds[i].Used += s.Bulk + s.Small - m.b.unmade
		}
	}
	return r
}

func newMachine(t *testing.T, a AdaptConfig) *machine {
	t.Helper()
	m := &machine{app: 200 * mib, by: "memory.pressure of /job"}
	if a.Headroom == 0 {
		a.Headroom = 24 * mib
	}
	m.b = newBudget(t, BudgetConfig{Adapt: &a, Now: m.clock.read, Small: -1}, Surroundings{Memory: m.reading()})
	return m
}

// tick is an interval later.
func (m *machine) tick() (Decision, bool) {
	m.clock.now += m.b.Interval()
	return m.b.Observe(m.reading())
}

func (m *machine) limit() int64 { return m.b.Stats().Limit }

// busy has claims wait.
func (m *machine) busy(t *testing.T) {
	t.Helper()
	for {
		p, _ := post(t, m.b.NewFetchSet(), m.b.Largest())
		if !p.Granted() {
			t.Cleanup(p.Cancel)
			return
		}
		t.Cleanup(p.Cancel)
	}
}

func TestALimitBeginsWithWhatMemoryLeaves(t *testing.T) {
	m := newMachine(t, AdaptConfig{})
	if m.limit() != 800*mib || m.b.Largest() != 100*mib || m.b.Interval() != 100*time.Millisecond {
		t.Errorf("limit %s, largest %s", bytesText(m.limit()), bytesText(m.b.Largest()))
	}
	m = newMachine(t, AdaptConfig{Ceiling: 64 * mib})
	if m.limit() != 64*mib {
		t.Errorf("limit %s", bytesText(m.limit()))
	}
}

func TestAHogLowersTheLimitAtOnce(t *testing.T) {
	m := newMachine(t, AdaptConfig{})
	m.tick()
	m.hog = 500 * mib
	d, changed := m.tick()
	if !changed || d.Cause != CauseRoom || m.limit() != 300*mib || d.Bound != "memory.max of /job" {
		t.Errorf("%v", d)
	}
	m.hog = 900 * mib
	if d, _ := m.tick(); m.limit() != 100*mib || !d.AtFloor {
		t.Errorf("not at the floor: %v", d)
	}
	if log := m.b.Decisions(); len(log) != 2 || log[0].To != 300*mib || log[1].From != 300*mib {
		t.Errorf("%v", log)
	}
	mentions(t, fmt.Errorf("%v", m.b.Decisions()[1]), "300.0 MiB -> 100.0 MiB", "room", "at the floor", "memory.max of /job leaves -100", "stalled 0.0 %")
}

// A peak that ended a moment ago counts as the application's; one of long ago does not.
func TestThePeakOfAWindowCounts(t *testing.T) {
	m := newMachine(t, AdaptConfig{Step: 1000 * mib})
	m.busy(t)
	m.app = 700 * mib
	m.tick()
	m.app = 200 * mib
	for range 19 {
		if m.tick(); m.limit() != 300*mib {
			t.Fatalf("after %v: %s", m.clock.now, bytesText(m.limit()))
		}
	}
	m.tick()
	m.tick()
	if m.limit() != 800*mib {
		t.Errorf("limit %s", bytesText(m.limit()))
	}
}

func TestTheBudgetsOwnBytesAreNotTheHogs(t *testing.T) {
	m := newMachine(t, AdaptConfig{})
	if err := m.b.Acquire(t.Context(), 90*mib); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if d, changed := m.tick(); changed {
			t.Fatal(d)
		}
	}
	m.b.Release(90 * mib)
}

// Memory that is kept for the next fetches is not the application's either: else the limit would
// fall to half of what there is.
func TestIdleMemoryIsNotTheApplications(t *testing.T) {
	m := newMachine(t, AdaptConfig{})
	m.app += 700 * mib
	r := m.reading()
	r.Made = 700 * mib
	m.clock.now += m.b.Interval()
	if d, changed := m.b.Observe(r); changed {
		t.Error(d)
	}
}

// Bytes that are granted and not made use no memory: they must not count as if they came back.
func TestGrantedBytesWithoutMemoryAreNoRoom(t *testing.T) {
	m := newMachine(t, AdaptConfig{Step: 1000 * mib})
	m.busy(t) // 800 MiB are granted
	m.hog = 500 * mib
	m.tick()
	if m.limit() != 300*mib {
		t.Errorf("limit %s", bytesText(m.limit()))
	}
	// Memory that is made and not touched is not used either.
	m = newMachine(t, AdaptConfig{Step: 1000 * mib})
	for range 8 {
		if err := m.b.Acquire(t.Context(), 100*mib); err != nil {
			t.Fatal(err)
		}
	}
	m.busy(t)
	r := m.reading()
	r.Bounds[0].Used = 50 * mib
	m.clock.now += m.b.Interval()
	m.b.Observe(r)
	if m.limit() != 1000*mib {
		t.Errorf("limit %s", bytesText(m.limit()))
	}
	m.b.Release(800 * mib)
}

func TestStallsHalveAndCalmAddsAStep(t *testing.T) {
	m := newMachine(t, AdaptConfig{Floor: 50 * mib, Step: 40 * mib})
	m.busy(t)
	m.tick()
	m.stalled += 2 * time.Millisecond // 2 % of an interval
	if d, _ := m.tick(); d.Cause != CauseStalled || d.To != 400*mib || d.Stalled < 0.0199 || d.Stalled > 0.0201 {
		t.Fatal(d)
	}
	// The decrease is given time to show, two seconds as memory is free; then pressure that lasts
	// halves what is in use again.
	var to []int64
	for range 30 {
		m.stalled += 2 * time.Millisecond
		if d, changed := m.tick(); changed {
			to = append(to, d.To/mib)
		}
	}
	if fmt.Sprint(to) != "[200]" {
		t.Errorf("halved to %v", to)
	}
	to = nil
	for range 24 {
		m.stalled += time.Millisecond / 2 // 0.5 %: below the target
		if d, changed := m.tick(); changed {
			if d.Cause != CauseCalm {
				t.Fatal(d)
			}
			to = append(to, d.To/mib)
		}
	}
	if len(to) != 15 || to[0] != 240 || to[1] != 280 || !slices.IsSorted(to) || to[len(to)-1] != 800 {
		t.Errorf("grew to %v", to)
	}
	if s := m.b.Stats(); s.Decreases != 2 || s.Increases != uint64(len(to)) {
		t.Errorf("%+v", s)
	}
}

// What nobody came near to made no pressure: the decrease counts from what was in use.
func TestADecreaseCountsFromWhatWasInUse(t *testing.T) {
	m := newMachine(t, AdaptConfig{Floor: 20 * mib})
	if err := m.b.Acquire(t.Context(), 18*mib); err != nil {
		t.Fatal(err)
	}
	for range 9 {
		if err := m.b.Acquire(t.Context(), 18*mib); err != nil {
			t.Fatal(err)
		}
	}
	m.tick()
	m.stalled += 5 * time.Millisecond
	if d, _ := m.tick(); d.To != 90*mib {
		t.Error(d)
	}
	m.b.Release(180 * mib)
}

func TestALimitThatNobodyNeedsDoesNotGrow(t *testing.T) {
	m := newMachine(t, AdaptConfig{})
	m.hog = 500 * mib
	m.tick()
	m.hog = 0
	for range 50 {
		m.tick()
	}
	if m.limit() != 300*mib {
		t.Errorf("limit %s", bytesText(m.limit()))
	}
}

func TestFaultsCountWithoutStalls(t *testing.T) {
	m := newMachine(t, AdaptConfig{})
	m.tick()
	m.faults += 100
	if d, changed := m.tick(); changed {
		t.Error("faults count beside stalls:", d)
	}
	m.by = ""
	m.tick()
	m.faults += 2 // 20 a second
	if d, changed := m.tick(); changed {
		t.Error(d)
	}
	m.faults += 3
	if d, _ := m.tick(); d.Cause != CauseFaults || d.Stalled != -1 || d.Faults < 29 || d.Faults > 31 {
		t.Error(d)
	}
}

func TestHitsOfALimitCountWithoutHeadroom(t *testing.T) {
	m := newMachine(t, AdaptConfig{Floor: 10 * mib})
	m.hits++
	if d, changed := m.tick(); changed {
		t.Error("the hits of before:", d)
	}
	m.hits++
	if d, changed := m.tick(); changed {
		t.Error("page cache was reclaimed:", d)
	}
	m.hog = 790 * mib // leaves 34 MiB: 10 above the headroom
	m.tick()
	m.hog = 810 * mib
	m.hits++
	if d, _ := m.b.Observe(m.reading()); d.Cause != 0 && d.Cause != CauseRoom {
		t.Error("two readings at one time:", d)
	}
	m.hits++
	m.clock.now += 100 * time.Millisecond
	if d := m.b.control.pressure(budgetState{now: m.clock.now}, m.reading(), &Decision{}); d != CauseLimit {
		t.Error(d)
	}
}

func TestGoHeapThatWillGrowIsLeftRoom(t *testing.T) {
	m := newMachine(t, AdaptConfig{})
	m.growth = 300 * mib
	m.tick()
	if m.limit() != 500*mib {
		t.Errorf("limit %s", bytesText(m.limit()))
	}
}

// Another source of stalls, or one that begins anew, has another total.
func TestATotalOfAnotherSourceIsNotCompared(t *testing.T) {
	m := newMachine(t, AdaptConfig{})
	m.tick()
	m.by, m.stalled = "/proc/pressure/memory", time.Hour
	if d, changed := m.tick(); changed {
		t.Error(d)
	}
	m.stalled = 0
	if d, changed := m.tick(); changed {
		t.Error(d)
	}
}

func TestWithoutProbesTheLimitStays(t *testing.T) {
	c := &clock{}
	b := newBudget(t, BudgetConfig{Adapt: &AdaptConfig{Ceiling: 100}, Now: c.read, Small: -1}, Surroundings{})
	for range 50 {
		c.now += time.Second
		if d, changed := b.Observe(Reading{MajorFaults: -1}); changed {
			t.Fatal(d)
		}
	}
	if _, changed := newBudget(t, bulkOnly(10), Surroundings{}).Observe(Reading{}); changed {
		t.Error("a static limit changed")
	}
}

func TestTheLogKeepsTheLastDecisions(t *testing.T) {
	m := newMachine(t, AdaptConfig{Floor: 10 * mib})
	var told []string
	m.b.cfg.Decided = func(d Decision) { told = append(told, d.String()) }
	for i := range 400 {
		m.hog = int64(i) * mib
		m.tick()
	}
	log := m.b.Decisions()
	if len(log) != maxDecisions || len(told) < 399 || log[len(log)-1].String() != told[len(told)-1] || log[0].At >= log[1].At {
		t.Errorf("%d kept, %d told", len(log), len(told))
	}
	if !strings.Contains(told[0], "limit 800.0 MiB -> 799.0 MiB (room)") {
		t.Error(told[0])
	}
}
