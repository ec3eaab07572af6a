package amtest_test

import (
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/segment"
)

func BenchmarkSteps(b *testing.B) {
	steps(b, &group{make: func(t fabrictest.T, rank, size int, m *segment.Mapping) (fabric.Messenger, error) {
		return newShm(rank, size, m, t.Name())
	}})
}

// steps measures what a message costs its processors at both ends together: one goroutine plays
// both ranks, so that nothing waits, no line moves between caches, and a busy machine disturbs
// little.
func steps(b *testing.B, g *group) {
	call, post := players(b, g)
	for _, m := range []struct {
		name string
		f    func()
	}{{"Call", call}, {"Post", post}} {
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.f()
			}
		})
	}
}

// players return what plays a call, and a post, of a Short at both ends.
func players(b testing.TB, g *group) (call, post func()) {
	table := am.NewTable()
	double := table.Handle("double", func(c *am.Call) { _ = c.Reply(2 * c.Arg(0)) })
	count := table.Handle("count", func(*am.Call) {})
	var ls [2]*am.Endpoint
	for i, r := range g.ranks(b, 2, 1<<16) {
		var err error
		if ls[i], err = am.Open(r.Net, 0, am.Config{Rank: i, Size: 2, Table: table, Segment: r.Segment, AttendAfter: -1}); err != nil {
			b.Fatal(err)
		}
	}
	step := func(l *am.Endpoint) {
		if _, err := l.Test(); err != nil {
			b.Fatal(err)
		}
	}
	call = func() {
		p, err := double.Start(b.Context(), ls[0], 1, am.Payload{}, 21)
		for done := false; !done && err == nil; _, done, err = p.Test() {
			step(ls[1])
			step(ls[0])
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	post = func() {
		for count.Post(am.NoWait, ls[0], 1, 1) != nil {
			step(ls[1])
			step(ls[0])
		}
		step(ls[1])
		step(ls[0])
	}
	connected := make(chan struct{})
	go func() { // the first call waits for its credit
		defer close(connected)
		if _, err := double.Call(b.Context(), ls[0], 1, 21); err != nil {
			b.Error(err)
		}
	}()
	for waiting := true; waiting; {
		select {
		case <-connected:
			waiting = false
		default:
			step(ls[1])
		}
	}
	b.Cleanup(func() {
		for _, l := range ls {
			if err := l.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	return call, post
}
