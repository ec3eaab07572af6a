package amtest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

// endpoints opens an endpoint on each of two ranks and has the second serve. Handlers are
// registered before.
func endpoints(b *testing.B, ranks []amtest.Rank, table *am.Table) *am.Endpoint {
	var ls [2]*am.Endpoint
	for i, r := range ranks[:2] {
		var err error
		if ls[i], err = am.Open(r.Net, 0, am.Config{Rank: i, Size: len(ranks), Table: table, Segment: r.Segment}); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- ls[1].Serve(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
		for _, l := range ls {
			if err := l.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	return ls[0]
}

// benchmark measures what a network's messages cost, both ranks in this process.
func benchmark(b *testing.B, g *group) {
	table := am.NewTable()
	double := table.Handle("double", func(c *am.Call) { _ = c.Reply(2 * c.Arg(0)) })
	count := table.Handle("count", func(*am.Call) {})
	echo := table.Handle("echo", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload())) })
	l := endpoints(b, g.ranks(b, 2, 1<<16), table)
	ctx := b.Context()
	payload := make([]byte, 1024)
	for _, m := range []struct {
		name string
		f    func() error
	}{
		{"Call", func() error { _, err := double.Call(ctx, l, 1, 21); return err }},
		{"Call1K", func() error { _, err := echo.CallWith(ctx, l, 1, am.Medium(payload)); return err }},
		{"Post", func() error { return count.Post(ctx, l, 1, 1) }},
	} {
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := m.f(); err != nil {
					b.Fatal(err)
				}
			}
			if err := l.Quiesce(ctx); err != nil {
				b.Fatal(err)
			}
		})
	}
}
