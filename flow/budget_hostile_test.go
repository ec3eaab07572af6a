package flow

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// A set that was waited for is over for its waiter: to wait again, or to cancel it, takes nothing
// from who has the lease.
func TestALeaseOutlastsASecondWait(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	o := b.NewOwner("worker", nil)
	first, ff := post(t, o.NewFetchSet(), 10)
	second, sf := post(t, o.NewFetchSet(), 20)
	one, two := fetched(t, first, ff), fetched(t, second, sf)
	for _, ctx := range []context.Context{t.Context(), ended(t)} {
		for _, p := range []*Pending{first, second} { // the second holds and waits
			if l, err := p.Wait(ctx); l != nil || err == nil {
				t.Errorf("a second lease %v: %v", l, err)
			}
			p.Cancel()
		}
	}
	if ff[0].freed != 0 || sf[0].freed != 0 || held(b) != 30 {
		t.Errorf("%d and %d times freed under a lease, %d bytes held", ff[0].freed, sf[0].freed, held(b))
	}
	one.Release()
	two.Release()
	if _, err := first.Wait(ended(t)); err == nil || held(b) != 0 {
		t.Errorf("%v, %d bytes held", err, held(b))
	}
}

// A set is fetched once, in one piece or in parts.
func TestASetInPartsIsServedOnce(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	s := set(b.NewFetchSet(), &at{fake{bytes: 6}}, &at{fake{bytes: 7}})
	none := func(*Lease) error { return nil }
	if _, err := s.Submit(t.Context()); !errors.Is(err, ErrSetTooLarge) { // whose error says to use Each
		t.Error(err)
	}
	if err := s.Each(t.Context(), none); err != nil {
		t.Error(err)
	}
	if err := s.Each(t.Context(), none); err == nil {
		t.Error("served twice")
	}
	if _, err := s.Post(); err == nil {
		t.Error("posted after it was served")
	}
}

func TestALimitAboveTheMemoryIsRefused(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 100, Reserve: 50, Small: -1}, Surroundings{Memory: Reading{Bounds: []MemoryBound{{"memory.max of /job", 1000, 10}}}})
	if err := b.SetLimit(950); err != nil {
		t.Error(err)
	}
	for _, n := range []int64{951, 1 << 62} {
		mentions(t, b.SetLimit(n), "a reserve of 50 B", "memory.max of /job has 1000 B", "choose at most 940 B")
	}
	if s := b.Stats(); s.Limit != 950 {
		t.Errorf("%+v", s)
	}
}

// An owner of another rank's budget has a lock and accounts of its own.
func TestALeaseStaysInItsBudget(t *testing.T) {
	b, other := newBudget(t, bulkOnly(100), Surroundings{}), newBudget(t, bulkOnly(100), Surroundings{})
	p, fakes := post(t, b.NewOwner("here", nil).NewFetchSet(), 10)
	l := fetched(t, p, fakes)
	func() {
		defer func() { mentions(t, fmt.Errorf("%v", recover()), "another budget") }()
		l.Handover(other.NewOwner("there", nil))
	}()
	l.Release()
}

// prompt is a fetch whose data are there at once.
type prompt struct{ fake }

func (p *prompt) Start(ended func(error)) {
	p.fake.Start(ended)
	ended(nil)
}

// What is placed counts as held when it is small, and keeps an earlier set from a place. Who holds
// is served from the reserve although other bytes are granted, and all of these come back.
func TestWhatIsPlacedIsHeld(t *testing.T) {
	placed := func(o *Owner, bytes int64) *Pending {
		s := set(o.NewFetchSet(), &prompt{fake{bytes: bytes}})
		s.Placed()
		p, err := s.Post()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, reserve := range []int64{0, 30} {
		b := newBudget(t, BudgetConfig{Limit: 100, Small: 10, SmallMax: 10, Messages: 4, Reserve: reserve}, Surroundings{})
		o := b.NewOwner("worker", nil)
		posted, second, first := placed(o, 20), placed(o, 5), placed(o, 30)
		small, err := second.Test()
		if small == nil || err != nil || o.Holds() != 55 || posted.HoldAndWait() == nil {
			t.Fatalf("lease %v: %v, %d bytes held", small, err, o.Holds())
		}
		if l, err := posted.Wait(t.Context()); err != nil { // as it was posted before
			t.Error(err)
		} else {
			l.Release()
		}
		large, err := first.Wait(t.Context())
		switch s := b.Stats(); {
		case reserve == 0:
			if !errors.Is(err, ErrHoldAndWait) || s.Bulk != 0 {
				t.Errorf("%v, %+v", err, s)
			}
		case err != nil || s.Reserve != 30 || s.Bulk != 0 || s.Messages != 0 || b.Check() != nil:
			t.Fatalf("%v, %+v: %v", err, s, b.Check())
		default:
			large.Release()
		}
		small.Release()
		if err := b.Check(); err != nil || held(b) != 0 {
			t.Errorf("%d bytes held: %v", held(b), err)
		}
	}
}
