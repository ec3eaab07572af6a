package flow

import (
	"context"
	"testing"
)

// The memory of sets and granted payloads is what the limit and the reserve have beside others.
func TestTheBufferLimitLeavesOutOthers(t *testing.T) {
	b, err := NewBudget(BudgetConfig{Limit: 1000, Small: -1, Unscheduled: 100, Reserve: -1}, Surroundings{Peers: 1})
	if err != nil {
		t.Fatal(err)
	}
	want := func(n int64) {
		t.Helper()
		if got := b.BufferLimit(); got != n {
			t.Errorf("%d bytes, want %d", got, n)
		}
	}
	want(1000)
	if err := b.Acquire(context.Background(), 300); err != nil {
		t.Fatal(err)
	}
	if err := b.Unasked(1, 50); err != nil {
		t.Fatal(err)
	}
	want(650)
	b.Release(300)
	b.Consumed(1, 50)
	want(1000)
	if err := b.SetLimit(2000); err != nil {
		t.Fatal(err)
	}
	want(2000)
}

func TestWhatIsNotSentMayBeSentAgain(t *testing.T) {
	s := NewUnaskedSender(100)
	if !s.Take(80) || s.Take(30) {
		t.Fatal("an allowance of 100 bytes is not kept")
	}
	s.Untake(80)
	if !s.Take(100) {
		t.Error("bytes that were not sent count")
	}
	if err := s.Consumed(0, 100); err != nil || !s.Take(100) {
		t.Errorf("consumed, and not to be sent: %v", err)
	}
}
