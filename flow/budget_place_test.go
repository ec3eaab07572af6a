package flow

import (
	"context"
	"errors"
	"testing"
	"time"
)

// placing posts a placed set that waits for its place, once it is begun.
func placing(t *testing.T, o *Owner, rank int, bytes int64) (*Pending, *fake) {
	t.Helper()
	f := &fake{rank: rank, bytes: bytes}
	s := set(o.NewFetchSet(), f)
	s.Placed()
	p, err := s.Post()
	if err != nil {
		t.Fatal(err)
	}
	if l, err := p.Test(); l != nil || err != nil {
		t.Fatal(l, err)
	}
	p.WaitsForPlace(true)
	return p, f
}

// Who has bytes and waits for a place in a region is a head like who waits for bytes: with an age,
// and with those that have the places.
func TestTheWatchdogSeesWhoWaitsForAPlace(t *testing.T) {
	c := &clock{}
	b := newBudget(t, BudgetConfig{Limit: 100, Small: -1, Now: c.read, StallAfter: time.Second}, Surroundings{})
	holder, other := b.NewOwner("holder", nil), b.NewOwner("other", nil)
	first, f := placing(t, holder, 1, 20)
	first.WaitsForPlace(false)
	f.ended(nil)
	l, err := first.Test()
	if err != nil {
		t.Fatal(err)
	}
	get, gets := post(t, b.NewFetchSet(), 10) // it needs no place
	defer fetched(t, get, gets).Release()

	c.now = 2 * time.Second
	second, f := placing(t, other, 1, 15)
	c.now += time.Second / 2
	offer, err := b.Offer(3, 30, func(o *Offer) { o.WaitsForPlace(true) })
	if err != nil {
		t.Fatal(err)
	}
	stall := func(owner string, age time.Duration, waiting, holders int) {
		t.Helper()
		var e *MemoryStallError
		if err := b.Watch(); !errors.As(err, &e) || !e.Place || !e.First || e.Owner != owner || e.Age != age || e.Waiting != waiting || len(e.Holders) != holders {
			t.Errorf("got %v", err)
		} else if s := b.Stats(); s.HeadAge != age || s.Waiting != waiting {
			t.Errorf("%+v", s)
		}
		if err := b.Check(); err != nil {
			t.Error(err)
		}
	}
	if err := b.Watch(); err != nil {
		t.Error(err)
	}
	c.now = 3500 * time.Millisecond
	stall("other", 1500*time.Millisecond, 2, 1)
	mentions(t, b.Watch(), "other has waited 1.5s for 15 B of a region", "; holder has held 20 B for 3.5s")
	second.WaitsForPlace(false)
	stall("a payload of rank 3", time.Second, 1, 2)
	offer.Release()
	if err := b.Watch(); err != nil || b.Stats().HeadAge != 0 {
		t.Error(err)
	}
	l.Release()
	f.ended(nil)
	if l, err = second.Test(); err != nil {
		t.Fatal(err)
	}
	l.Release()
}

// The end of a context, a cancel and a death end a wait for a place.
func TestAWaitForAPlaceEnds(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	o := b.NewOwner("worker", nil)
	p, f := placing(t, o, 1, 20)
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	var e *MemoryStallError
	if _, err := p.Wait(short); !errors.As(err, &e) || !e.Place || !errors.Is(err, context.DeadlineExceeded) || f.cancelled != 1 {
		t.Errorf("got %v", err)
	}
	if s := b.Stats(); s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	f.ended(ErrWithdrawn)

	p, f = placing(t, o, 1, 20)
	p.Cancel()
	if s := b.Stats(); s.Waiting != 0 || f.cancelled != 1 {
		t.Errorf("%+v", s)
	}
	f.ended(ErrWithdrawn)

	p, f = placing(t, o, 1, 20)
	alive, g := placing(t, b.NewOwner("another", nil), 2, 20)
	cause := errors.New("rank 1 is gone")
	time.AfterFunc(time.Millisecond, func() { b.Down(1, cause) })
	if _, err := p.Wait(t.Context()); err != cause || f.cancelled != 1 || g.cancelled != 0 {
		t.Errorf("got %v", err)
	}
	alive.Cancel()
	f.ended(cause)
	g.ended(ErrWithdrawn)

	p, f = placing(t, o, 1, 20)
	late, g := placing(t, b.NewOwner("late", nil), 1, 20)
	late.WaitsForPlace(false)
	time.AfterFunc(time.Millisecond, b.Close)
	if _, err := p.Wait(t.Context()); err != ErrBudgetClosed || f.cancelled != 1 {
		t.Errorf("got %v", err)
	}
	if l, err := late.Test(); l != nil || err != nil {
		t.Errorf("what waits for no place goes on: %v, %v", l, err)
	}
	late.WaitsForPlace(true)
	if _, err := late.Test(); err != ErrBudgetClosed || g.cancelled != 1 {
		t.Errorf("got %v", err)
	}
	f.ended(ErrBudgetClosed)
	g.ended(ErrBudgetClosed)
}

// A later set of the same owner counts as held where it will have a place before, not behind.
func TestWhoLandsLaterHoldsNothing(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	o := b.NewOwner("worker", nil)
	first, f := placing(t, o, 1, 20)
	second, g := placing(t, o, 1, 20)
	if err := first.HoldAndWait(); err != nil {
		t.Error(err)
	}
	first.WaitsForPlace(true) // behind it
	if err := first.HoldAndWait(); !errors.Is(err, ErrHoldAndWait) {
		t.Errorf("got %v", err)
	}
	first.WaitsForPlace(true)
	second.WaitsForPlace(true)
	second.WaitsForPlace(false)
	if err := first.HoldAndWait(); !errors.Is(err, ErrHoldAndWait) {
		t.Errorf("got %v", err)
	}
	first.Cancel()
	second.Cancel()
	f.ended(ErrWithdrawn)
	g.ended(ErrWithdrawn)
}
