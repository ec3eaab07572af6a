package flow

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/racetest"
)

// clock is time that a test sets.
type clock struct{ now time.Duration }

func (c *clock) read() time.Duration { return c.now }

// newBudget checks the accounts when the test ends.
func newBudget(t testing.TB, cfg BudgetConfig, s Surroundings) *Budget {
	t.Helper()
	b, err := NewBudget(cfg, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { verify(t, b) })
	return b
}

func verify(t testing.TB, b *Budget) {
	t.Helper()
	if err := b.Check(); err != nil {
		t.Error(err)
	}
	s := b.Stats()
	if s.Acquired+s.Leased+s.Offered != s.Bulk+s.Small+s.Reserve {
		t.Errorf("the parts do not add up: %+v", s)
	}
}

// bulkOnly is a budget of which nothing is set apart.
func bulkOnly(limit int64) BudgetConfig { return BudgetConfig{Limit: limit, Small: -1} }

// fake is a fetch whose transfer the test ends.
type fake struct {
	rank      int
	bytes     int64
	ended     func(error) // once started
	cancelled int
	freed     int
	fail      error // of Start
}

func (f *fake) Rank() int    { return f.rank }
func (f *fake) Bytes() int64 { return f.bytes }
func (f *fake) Start(ended func(error)) {
	if f.ended != nil {
		panic("started twice")
	}
	f.ended = ended
	if f.fail != nil {
		ended(f.fail)
	}
}
func (f *fake) Cancel() { f.cancelled++ }
func (f *fake) Free() {
	if f.ended == nil {
		panic("memory is freed that was never made")
	}
	if f.freed++; f.freed > 1 {
		panic("memory is freed twice")
	}
}

// at is a fetch whose data are there at once.
type at struct{ fake }

func (f *at) Start(ended func(error)) {
	f.fake.Start(ended)
	ended(nil)
}

func set(s *FetchSet, fetches ...Fetch) *FetchSet {
	for _, f := range fetches {
		s.Fetch(f)
	}
	return s
}

// post posts a set of fakes of the given sizes.
func post(t testing.TB, s *FetchSet, sizes ...int64) (*Pending, []*fake) {
	t.Helper()
	var fakes []*fake
	for _, n := range sizes {
		f := &fake{bytes: n}
		fakes = append(fakes, f)
		s.Fetch(f)
	}
	p, err := s.Post()
	if err != nil {
		t.Fatal(err)
	}
	return p, fakes
}

// fetched has the fetches of a set started and ended, and returns its lease.
func fetched(t testing.TB, p *Pending, fakes []*fake) *Lease {
	t.Helper()
	if l, err := p.Test(); err != nil || l == nil && len(fakes) == 0 {
		t.Fatal(l, err)
	}
	for _, f := range fakes {
		if f.ended == nil {
			t.Fatal("it was not started")
		}
		f.ended(nil)
	}
	l, err := p.Test()
	if l == nil || err != nil {
		t.Fatal(l, err)
	}
	return l
}

// ended is a context that has ended.
func ended(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func held(b *Budget) int64 { s := b.Stats(); return s.Bulk + s.Small + s.Reserve }

func mentions(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("%q does not mention %q", fmt.Sprint(err), w)
		}
	}
}

func TestNonsenseBudgetsAreRefusedWithFigures(t *testing.T) {
	memory := Reading{Bounds: []MemoryBound{{"MemAvailable", 8 << 30, 1 << 30}, {"memory.max of /job", 512 << 20, 500 << 20}}}
	for _, c := range []struct {
		name   string
		cfg    BudgetConfig
		memory Reading
		says   []string
	}{
		{"nothing", BudgetConfig{}, Reading{}, []string{"0 bytes", "Limit", "Adapt"}},
		{"negative", BudgetConfig{Limit: -5}, Reading{}, []string{"-5 bytes"}},
		{"more than a group has", BudgetConfig{Limit: 64 << 30}, memory, []string{"64.0 GiB", "memory.max of /job", "512.0 MiB", "500.0 MiB", "at most 12.0 MiB"}},
		{"more than a group with room", BudgetConfig{Limit: 1 << 30}, Reading{Bounds: []MemoryBound{{"memory.max of /job", 512 << 20, 1}, {"MemAvailable", 8 << 30, 8 << 30}}}, []string{"1.0 GiB", "memory.max of /job"}},
		{"both", BudgetConfig{Limit: 1 << 20, Adapt: &AdaptConfig{}}, Reading{}, []string{"1.0 MiB", "Adapt.Ceiling"}},
		{"all set apart", BudgetConfig{Limit: 1 << 20, Small: 1 << 20}, Reading{}, []string{"1.0 MiB for small claims", "at most half"}},
		{"small above small", BudgetConfig{Limit: 1 << 20, Small: 64 << 10, SmallMax: 128 << 10}, Reading{}, []string{"128.0 KiB", "64.0 KiB", "raise Small"}},
		{"unasked by none", BudgetConfig{Limit: 1 << 20, Unscheduled: 100}, Reading{}, []string{"100 B", "no Peers"}},
		{"a reserve that a group has not", BudgetConfig{Limit: 1 << 20, Reserve: 600 << 20}, memory, []string{"1.0 MiB and a reserve of 600.0 MiB", "memory.max of /job", "512.0 MiB"}},
		{"a reserve as large as what a group has", BudgetConfig{Limit: 300 << 20, Reserve: -1}, memory, []string{"300.0 MiB and a reserve of", "memory.max of /job"}},
		{"huge reserve", BudgetConfig{Limit: 1 << 20, Reserve: 1<<63 - 1}, Reading{}, []string{"Reserve 9223372036854775807"}},
		{"huge step", BudgetConfig{Adapt: &AdaptConfig{Ceiling: 1 << 20, Step: 1<<63 - 1}}, Reading{}, []string{"Step 9223372036854775807"}},
		{"no room for Go's heap", BudgetConfig{Adapt: &AdaptConfig{}}, Reading{Bounds: []MemoryBound{{"MemAvailable", 8 << 30, 1 << 30}}, GoGrowth: 8 << 30}, []string{"Go's heap will take 8.0 GiB"}},
		{"negative reserve", BudgetConfig{Limit: 1 << 20, Reserve: -2}, Reading{}, []string{"Reserve -2"}},
		{"negative time", BudgetConfig{Limit: 1 << 20, StallAfter: -1}, Reading{}, []string{"-1ns"}},
		{"adaptive to nothing", BudgetConfig{Adapt: &AdaptConfig{}}, Reading{}, []string{"nothing is known"}},
		{"floor above the memory", BudgetConfig{Adapt: &AdaptConfig{Floor: 64 << 20}}, memory, []string{"floor of 64.0 MiB", "memory.max of /job", "500.0 MiB are used", "32.0 MiB are headroom, and Go's heap will take 0 B", "leaves 0 B"}},
		{"floor above the ceiling", BudgetConfig{Adapt: &AdaptConfig{Floor: 2 << 20, Ceiling: 1 << 20}}, Reading{}, []string{"2.0 MiB", "1.0 MiB"}},
		{"no target", BudgetConfig{Adapt: &AdaptConfig{Ceiling: 1 << 20, Target: 1.5}}, Reading{}, []string{"Target of 1.5"}},
		{"window", BudgetConfig{Adapt: &AdaptConfig{Ceiling: 1 << 20, Window: 1}}, Reading{}, []string{"Window 1ns"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := NewBudget(c.cfg, Surroundings{Memory: c.memory})
			if err == nil || b != nil {
				t.Fatal("accepted")
			}
			mentions(t, err, c.says...)
		})
	}
}

func TestDefaultsSetApartAShareOfTheFloor(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 16 << 20}, Surroundings{Peers: 4})
	if got := b.Largest(); got != 14<<20 || b.Allowance() != 256<<10 || b.cfg.SmallMax != 4<<10 {
		t.Errorf("largest %d, allowance %d, small %d", got, b.Allowance(), b.cfg.SmallMax)
	}
	if b.Interval() != 0 {
		t.Error("a static budget is to be observed")
	}
}

func TestAcquireAllocatesNothingWithRoom(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 1 << 20}, Surroundings{})
	ctx := t.Context()
	n := testing.AllocsPerRun(100, func() {
		if err := b.Acquire(ctx, 4096); err != nil {
			t.Fatal(err)
		}
		b.Release(4096)
	})
	if n > 0 && !racetest.Enabled && !lockrank.Checked {
		t.Errorf("%v allocations", n)
	}
}

func TestAcquireBeyondTheLargestIsRefused(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 1 << 20, Small: 1 << 10}, Surroundings{})
	err := b.Acquire(t.Context(), 1<<20)
	var e *SetTooLargeError
	if !errors.Is(err, ErrSetTooLarge) || !errors.As(err, &e) || e.Need != 1<<20 || e.Limit != 1<<20-1<<10 {
		t.Errorf("got %v", err)
	}
	if err := b.Acquire(t.Context(), -1); !errors.Is(err, ErrSetTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestReleaseOfTooMuchPanics(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	if err := b.Acquire(t.Context(), 60); err != nil {
		t.Fatal(err)
	}
	b.Release(20)
	b.Release(40)
	defer func() { mentions(t, fmt.Errorf("%v", recover()), "1 bytes", "0 are acquired") }()
	b.Release(1)
}

func TestSetsAreGrantedInTheOrderOfPosting(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	first, ff := post(t, b.NewFetchSet(), 40, 40)
	large, lf := post(t, b.NewFetchSet(), 90)
	little, sf := post(t, b.NewFetchSet(), 5)
	if !first.Granted() || large.Granted() || little.Granted() {
		t.Fatal("the little set passed the large one")
	}
	l := fetched(t, first, ff)
	l.ReleaseOne(0)
	if large.Granted() || little.Granted() {
		t.Error("granted 90 of 60")
	}
	l.ReleaseOne(0)
	l.Release()
	l.Release()
	if !large.Granted() || !little.Granted() || held(b) != 95 {
		t.Errorf("%d held", held(b))
	}
	fetched(t, large, lf).Release()
	fetched(t, little, sf).Release()
	if held(b) != 0 {
		t.Errorf("%d held at the end", held(b))
	}
}

func TestASetIsGrantedWholeOrNotAtAll(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	if err := b.Acquire(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	p, fakes := post(t, b.NewFetchSet(), 30, 30)
	if l, err := p.Test(); l != nil || err != nil || fakes[0].ended != nil {
		t.Fatal("half of a set was started")
	}
	b.Release(50)
	if l, err := p.Test(); l != nil || err != nil || fakes[0].ended == nil || fakes[1].ended == nil {
		t.Fatal("not all was started")
	}
	fakes[1].ended(nil)
	if l, _ := p.Test(); l != nil {
		t.Fatal("lent without all data")
	}
	fakes[0].ended(nil)
	l, err := p.Test()
	if err != nil || l.Len() != 2 || l.Fetch(1) != Fetch(fakes[1]) {
		t.Fatal(l, err)
	}
	l.Release()
}

func TestASetTooLargeNamesFigures(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	_, err := set(b.NewFetchSet(), &fake{bytes: 60}, &fake{bytes: 41}).Post()
	var e *SetTooLargeError
	if !errors.As(err, &e) || e.Need != 101 || e.Limit != 100 || e.Fetches != 2 {
		t.Fatalf("got %v", err)
	}
	mentions(t, err, "101 B", "100 B", "Each")
}

func TestEachServesALargeSetInParts(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	s := b.NewOwner("worker 1", nil).NewFetchSet()
	for range 7 {
		s.Fetch(&at{fake{bytes: 30}})
	}
	var parts []int
	err := s.Each(t.Context(), func(l *Lease) error {
		parts = append(parts, l.Len())
		if held(b) != int64(30*l.Len()) {
			t.Errorf("%d held", held(b))
		}
		return nil
	})
	if err != nil || fmt.Sprint(parts) != "[3 3 1]" || held(b) != 0 {
		t.Errorf("%v in parts %v, %d held", err, parts, held(b))
	}
	stop := errors.New("stop")
	if err := set(b.NewFetchSet(), &at{fake{bytes: 30}}).Each(t.Context(), func(*Lease) error { return stop }); err != stop || held(b) != 0 {
		t.Errorf("%v, %d held", err, held(b))
	}
	err = set(b.NewFetchSet(), &fake{bytes: 1}, &fake{bytes: 101}).Each(t.Context(), nil)
	if !errors.Is(err, ErrSetTooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestMessagesAreBoundedToo(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 1000, Small: 10, SmallMax: 5, Messages: 3}, Surroundings{})
	two, fakes := post(t, b.NewFetchSet(), 50, 50)
	var granted []*Offer
	third := offered(t, b, 1, 60, &granted)
	fourth := offered(t, b, 1, 60, &granted)
	small, _ := post(t, b.NewFetchSet(), 2, 2)
	if !two.Granted() || len(granted) != 1 || !small.Granted() || b.Stats().Messages != 3 || b.Room() != 0 {
		t.Fatalf("%d offers granted, %+v", len(granted), b.Stats())
	}
	l := fetched(t, two, fakes)
	l.ReleaseOne(1)
	if len(granted) != 2 || b.Stats().Messages != 3 {
		t.Errorf("%d offers granted, %+v", len(granted), b.Stats())
	}
	l.Release()
	third.Release()
	fourth.Release()
	small.Cancel()
	if s := b.Stats(); s.Messages != 0 || held(b) != 0 {
		t.Errorf("%+v", s)
	}
	s := b.NewFetchSet()
	for range 7 {
		s.Fetch(&at{fake{bytes: 10}})
	}
	_, err := s.Post()
	var e *SetTooLargeError
	if !errors.As(err, &e) || e.Messages != 3 {
		t.Fatalf("got %v", err)
	}
	mentions(t, err, "7 fetches", "at most 3 messages")
	var parts []int
	err = s.Each(t.Context(), func(l *Lease) error { parts = append(parts, l.Len()); return nil })
	if err != nil || fmt.Sprint(parts) != "[3 3 1]" {
		t.Errorf("%v in parts %v", err, parts)
	}
}

func TestTheSetOfNothingIsGranted(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	if err := b.Acquire(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	post(t, b.NewFetchSet(), 10) // waits
	l, err := b.NewFetchSet().Submit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	p, fakes := post(t, b.NewFetchSet(), 0, 0)
	fetched(t, p, fakes).Release()
	failed, more := post(t, b.NewFetchSet(), 0, 0, 0)
	if _, err := failed.Test(); err != nil {
		t.Fatal(err)
	}
	more[1].ended(errTransfer)
	more[0].ended(nil) // before the waiter looks
	if _, err := failed.Test(); err != errTransfer || more[2].cancelled != 1 {
		t.Errorf("got %v", err)
	}
	more[2].ended(nil)
	for _, f := range append(fakes, more...) {
		if f.freed != 1 {
			t.Error("not freed")
		}
	}
}

func TestWrongUseOfASetIsAnError(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	s := set(b.NewFetchSet(), &fake{bytes: -1})
	if _, err := s.Post(); err == nil {
		t.Error("a negative size is taken")
	}
	s = set(b.NewFetchSet(), &at{fake{bytes: 1}})
	p, _ := s.Post()
	if _, err := s.Post(); err == nil {
		t.Error("a set is posted twice")
	}
	l, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err == nil {
		t.Error("waited twice")
	}
	p.Cancel() // too late: the lease is there
	if held(b) != 1 {
		t.Error("a cancel took the lease's bytes")
	}
	l.Release()
}

func TestACancelledSetReturnsItsBytesOnce(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	p, fakes := post(t, b.NewFetchSet(), 40, 40)
	waits, _ := post(t, b.NewFetchSet(), 60)
	waits.Cancel()
	if _, err := waits.Wait(t.Context()); err != ErrWithdrawn {
		t.Errorf("got %v", err)
	}
	if _, err := p.Test(); err != nil {
		t.Fatal(err)
	}
	fakes[0].ended(nil)
	_, err := p.Wait(ended(t))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// The first fetch is over; the second may be written to still.
	if held(b) != 40 || fakes[0].freed != 1 || fakes[1].freed != 0 || fakes[1].cancelled != 1 || fakes[0].cancelled != 0 {
		t.Errorf("%d held; %+v %+v", held(b), fakes[0], fakes[1])
	}
	p.Cancel()
	fakes[1].ended(context.Canceled)
	if held(b) != 0 || fakes[1].freed != 1 {
		t.Errorf("%d held", held(b))
	}
	granted, fakes := post(t, b.NewFetchSet(), 10)
	granted.Cancel()
	if held(b) != 0 || fakes[0].ended != nil {
		t.Errorf("%d held", held(b))
	}
}

func TestAFailedFetchEndsItsSet(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	oh := errors.New("oh")
	one, two, three := &fake{bytes: 10}, &fake{bytes: 20, fail: oh}, &fake{bytes: 30}
	_, err := set(b.NewFetchSet(), one, two, three).Submit(t.Context())
	if err != oh || three.ended != nil || two.freed != 1 || one.cancelled != 1 || held(b) != 10 {
		t.Errorf("%v; %d held", err, held(b))
	}
	one.ended(nil)
	if one.freed != 1 || held(b) != 0 {
		t.Errorf("%d held", held(b))
	}
}

func TestAFetchThatEndsTwicePanics(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	p, fakes := post(t, b.NewFetchSet(), 10)
	l := fetched(t, p, fakes)
	defer l.Release()
	defer func() { mentions(t, fmt.Errorf("%v", recover()), "ended twice") }()
	fakes[0].ended(nil)
}

func TestTheEndOfAContextNamesTheHolders(t *testing.T) {
	c := &clock{}
	b := newBudget(t, BudgetConfig{Limit: 100, Small: -1, Now: c.read}, Surroundings{})
	p, fakes := post(t, b.NewOwner("worker 3", nil).NewFetchSet(), 70)
	l := fetched(t, p, fakes)
	c.now = 5 * time.Second
	err := b.Acquire(ended(t), 40)
	var e *MemoryStallError
	if !errors.As(err, &e) || !errors.Is(err, context.Canceled) || !e.First || e.Free != 30 || e.Need != 40 || len(e.Holders) != 1 {
		t.Fatalf("got %v", err)
	}
	mentions(t, err, "40 B", "worker 3 has held 70 B for 5s", "30 B free", "100 B", "context canceled")
	if s := b.Stats(); s.Waiting != 0 || s.Cancelled != 1 {
		t.Errorf("%+v", s)
	}
	l.Release()
}

func TestTheWatchdogReportsTheFirstAndHolders(t *testing.T) {
	c := &clock{}
	b := newBudget(t, BudgetConfig{Limit: 100, Small: -1, Now: c.read, StallAfter: time.Second, Reserve: 50}, Surroundings{})
	owner := b.NewOwner("worker 1", nil)
	p, fakes := post(t, owner.NewFetchSet(), 90)
	l := fetched(t, p, fakes)
	c.now = time.Second
	next, nf := post(t, b.NewFetchSet(), 20)
	if err := b.Watch(); err != nil {
		t.Error(err)
	}
	c.now = 2 * time.Second
	var e *MemoryStallError
	if err := b.Watch(); !errors.As(err, &e) || e.Age != time.Second || e.Waiting != 1 || b.Stats().HeadAge != time.Second {
		t.Fatalf("got %v", err)
	}
	mentions(t, e, "worker 1 has held 90 B for 2s", "first of 1")
	l.Release()
	if err := b.Watch(); err != nil {
		t.Error(err)
	}
	fetched(t, next, nf).Release()
}

func TestSmallClaimsPassAndStarveNobody(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 120, Small: 20, SmallMax: 10}, Surroundings{})
	if err := b.Acquire(t.Context(), 80); err != nil {
		t.Fatal(err)
	}
	head, hf := post(t, b.NewFetchSet(), 100)
	one, of := post(t, b.NewFetchSet(), 10)
	two, _ := post(t, b.NewFetchSet(), 9)
	if !one.Granted() || !two.Granted() || head.Granted() || b.Stats().Passed != 2 {
		t.Fatal("small claims wait behind a large one")
	}
	three, tf := post(t, b.NewFetchSet(), 8)
	four, _ := post(t, b.NewFetchSet(), 2)
	if three.Granted() || four.Granted() { // the last byte of small is for three, which came first
		t.Fatal("small claims took the head's bytes, or passed one another")
	}
	fetched(t, one, of).Release()
	if !three.Granted() || !four.Granted() || head.Granted() {
		t.Fatal("what small claims gave back did not go to small ones")
	}
	b.Release(80)
	if !head.Granted() {
		t.Fatal("small claims starve the head")
	}
	fetched(t, head, hf).Release()
	fetched(t, three, tf).Release()
	two.Cancel()
	four.Cancel()
}

func TestReleasedBytesGoToTheHeadFirst(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 120, Small: 20, SmallMax: 10}, Surroundings{})
	for _, n := range []int64{90, 10, 10} { // the last two are small
		if err := b.Acquire(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	head, hf := post(t, b.NewFetchSet(), 100)
	b.Release(90)
	if !head.Granted() {
		t.Fatal("a head waits for bytes that were released")
	}
	b.Release(20)
	fetched(t, head, hf).Release()
}

func TestHoldAndWaitIsRefused(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	o := b.NewOwner("worker 7", nil)
	p, fakes := post(t, o.NewFetchSet(), 60)
	first := fetched(t, p, fakes)
	if _, err := set(o.NewFetchSet(), &at{fake{bytes: 30}}).Submit(t.Context()); !errors.Is(err, ErrHoldAndWait) || held(b) != 60 {
		t.Fatalf("bytes are granted, data may wait: %v, %d held", err, held(b))
	}
	next, _ := post(t, o.NewFetchSet(), 50) // posting ahead is no wait
	_, err := next.Wait(t.Context())
	var e *HoldAndWaitError
	if !errors.Is(err, ErrHoldAndWait) || !errors.As(err, &e) || e.Owner != "worker 7" || e.Need != 50 || e.Holds != 60 {
		t.Fatalf("got %v", err)
	}
	mentions(t, err, "worker 7", "50 B", "60 B", "Reserve")
	if o.Holds() != 60 || b.Stats().HeldAndWait != 2 {
		t.Errorf("holds %d", o.Holds())
	}
	// Sets that were posted behind it hold up nobody that it can depend on.
	ahead, aheadFakes := post(t, b.NewOwner("ahead", nil).NewFetchSet(), 15)
	second, secondFakes := post(t, ahead.owner.NewFetchSet(), 15)
	if !second.Granted() || ahead.mayWait() != nil {
		t.Error("an owner may not wait for the first of two that it posted ahead")
	}
	lease := fetched(t, ahead, aheadFakes)
	if err := second.mayWait(); !errors.Is(err, ErrHoldAndWait) {
		t.Errorf("got %v", err)
	}
	lease.Release()
	if err := second.mayWait(); err != nil {
		t.Error(err)
	}
	fetched(t, second, secondFakes).Release()
	// Of another, or of none: nobody knows, and nobody waits for itself.
	first.Handover(b.NewOwner("consumer", nil))
	again, af := post(t, o.NewFetchSet(), 50)
	if _, err := again.Wait(ended(t)); !errors.Is(err, context.Canceled) || o.Holds() != 0 {
		t.Errorf("got %v, holds %d", err, o.Holds())
	}
	first.Release()
	if held(b) != 0 || af[0].ended != nil {
		t.Errorf("%d held", held(b))
	}
}

func TestTheReserveServesHoldAndWait(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 100, Small: -1, Reserve: -1}, Surroundings{})
	submit := func(o *Owner, n int64) (*Lease, error) {
		return set(o.NewFetchSet(), &at{fake{bytes: n}}).Submit(t.Context())
	}
	one, two := b.NewOwner("one", nil), b.NewOwner("two", nil)
	l1, err1 := submit(one, 50)
	l2, err2 := submit(two, 50)
	r1, err3 := submit(one, 70)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if s := b.Stats(); s.Reserve != 70 || s.Bulk != 100 || s.FromReserve != 1 || s.Peak != 100 || s.PeakReserve != 70 {
		t.Errorf("%+v", s)
	}
	var e *HoldAndWaitError
	if _, err := submit(one, 20); !errors.As(err, &e) || e.Reserve != 70 {
		t.Errorf("got %v", err)
	}
	// The reserve is busy, and its holder does not wait.
	done := make(chan error)
	go func() {
		l, err := submit(two, 40)
		if l != nil {
			l.Release()
		}
		done <- err
	}()
	for b.Stats().Waiting != 1 {
		time.Sleep(time.Millisecond)
	}
	r1.Release()
	if err := <-done; err != nil || b.Stats().FromReserve != 2 {
		t.Errorf("%v, %+v", err, b.Stats())
	}
	l1.Release()
	l2.Release()
}

func TestALowerLimitWaitsForBytesToComeBack(t *testing.T) {
	b := newBudget(t, BudgetConfig{Adapt: &AdaptConfig{Floor: 50, Ceiling: 200}, Small: -1}, Surroundings{})
	if b.Room() != 200 {
		t.Fatalf("room %d", b.Room())
	}
	for range 4 {
		if err := b.Acquire(t.Context(), 50); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SetLimit(100); err != nil {
		t.Fatal(err)
	}
	p, fakes := post(t, b.NewFetchSet(), 10)
	b.Release(100)
	if p.Granted() || b.Room() != 0 {
		t.Fatal("granted above the limit")
	}
	b.Release(10)
	if !p.Granted() {
		t.Fatal("not granted below the limit")
	}
	if err := b.SetLimit(49); err == nil {
		t.Error("a limit below the floor")
	} else {
		mentions(t, err, "49 B", "50 B")
	}
	b.Release(90)
	fetched(t, p, fakes).Release()
}

func TestCloseEndsWaitsAndRefuses(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	p, fakes := post(t, b.NewFetchSet(), 80)
	l := fetched(t, p, fakes)
	waits, _ := post(t, b.NewFetchSet(), 30)
	told := 0
	offer, err := b.Offer(1, 40, func(o *Offer) {
		if told++; o.Err() != ErrBudgetClosed {
			t.Error("granted")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	b.Close()
	if told != 1 {
		t.Errorf("an offer that waits is told %d times", told)
	}
	if _, err := waits.Wait(t.Context()); err != ErrBudgetClosed {
		t.Errorf("got %v", err)
	}
	if err := b.Acquire(t.Context(), 1); err != ErrBudgetClosed {
		t.Errorf("got %v", err)
	}
	if _, err := b.Offer(1, 1, nil); err != ErrBudgetClosed {
		t.Errorf("got %v", err)
	}
	offer.Release()
	l.Release()
	if held(b) != 0 {
		t.Errorf("%d held", held(b))
	}
}

func TestADeathEndsTheSetsThatWaitForIt(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 100, Small: -1, Reserve: 100}, Surroundings{})
	if err := b.Acquire(t.Context(), 90); err != nil {
		t.Fatal(err)
	}
	dead, err1 := set(b.NewFetchSet(), &fake{rank: 3, bytes: 10}, &fake{rank: 4, bytes: 10}).Post()
	alive, err2 := set(b.NewFetchSet(), &fake{rank: 3, bytes: 10}).Post()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("rank 4 is gone")
	b.Down(4, cause)
	if _, err := dead.Wait(t.Context()); err != cause {
		t.Errorf("got %v", err)
	}
	if !alive.Granted() {
		t.Error("a dead set holds up one behind it")
	}
	alive.Cancel()
	b.Release(90)
}
