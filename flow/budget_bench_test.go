package flow

import "testing"

// What a claim costs where there is memory: the overhead of a program that needs no control.
func BenchmarkBudget(b *testing.B) {
	budget := newBudget(b, BudgetConfig{Limit: 1 << 30}, Surroundings{})
	ctx := b.Context()
	b.Run("Acquire", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := budget.Acquire(ctx, 64<<10); err != nil {
				b.Fatal(err)
			}
			budget.Release(64 << 10)
		}
	})
	b.Run("Submit/6 fetches", func(b *testing.B) {
		b.ReportAllocs()
		o := budget.NewOwner("worker", nil)
		for b.Loop() {
			s := o.NewFetchSet()
			for range 6 {
				s.Fetch(&at{fake{bytes: 64 << 10}})
			}
			l, err := s.Submit(ctx)
			if err != nil {
				b.Fatal(err)
			}
			l.Release()
		}
	})
	b.Run("Offer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			o, err := budget.Offer(1, 64<<10, func(*Offer) {})
			if err != nil {
				b.Fatal(err)
			}
			o.Release()
		}
	})
}
