package am_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

// Who waits to send waits for nothing any more; what was sent ends as it would have, and the other
// rank's requests are handled.
func TestEndRequestsRefusesWhoWaitsToSend(t *testing.T) {
	table := am.NewTable()
	tokens := make(chan *am.DeferredReply, 8)
	hold := table.Handle("hold", func(c *am.Call) { tokens <- c.Defer(time.Minute) })
	echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	for _, c := range []struct {
		what    string
		cfg     am.Config
		waits   func(ctx context.Context, l *am.Endpoint) error
		blocked func(s am.Stats) uint64
	}{
		{"for a reply buffer", am.Config{Replies: 1}, func(ctx context.Context, l *am.Endpoint) error { _, err := echo.Call(ctx, l, 1); return err },
			func(s am.Stats) uint64 { return s.NoReply }},
		{"to prepare", am.Config{Sends: 2}, func(ctx context.Context, l *am.Endpoint) error { _, err := echo.Prepare(ctx, l, 1, 4); return err },
			func(s am.Stats) uint64 { return s.NoBuffer }},
		{"for a connection", am.Config{}, func(ctx context.Context, l *am.Endpoint) error { return echo.Post(ctx, l, 2) },
			func(s am.Stats) uint64 { return s.NoCredit }},
	} {
		t.Run(c.what, func(t *testing.T) {
			ctx := bounded(t)
			c.cfg.Table, c.cfg.StallAfter = table, time.Minute
			l := endpointsOf(t, amtest.NewMemory(3, 64), 2, 3, c.cfg) // rank 2 says nothing
			call, err := hold.Start(ctx, l[0], 1, am.Payload{})
			if err != nil {
				t.Fatal(err)
			}
			token := <-tokens
			prepared, err := echo.Prepare(ctx, l[0], 1, 4)
			if err != nil {
				t.Fatal(err)
			}
			before := c.blocked(l[0].Stats())
			waits := make(chan error, 1)
			go func() { waits <- c.waits(ctx, l[0]) }()
			eventually(t, "it waits "+c.what, func() bool { return c.blocked(l[0].Stats()) > before })
			if err := l[0].EndRequests(ctx); err != nil {
				t.Fatal(err)
			}
			_, later := echo.Call(ctx, l[0], 1)
			self := echo.Post(ctx, l[0], 0)
			for i, err := range []error{<-waits, later, self, echo.Post(am.NoWait, l[0], 1), prepared.Commit(am.NoWait), prepared.Commit(ctx)} {
				if !errors.Is(err, am.ErrClosed) {
					t.Errorf("request %d: %v", i, err)
				}
			}
			if r, err := echo.Call(ctx, l[1], 0, 7); err != nil || r.Arg(0) != 7 {
				t.Errorf("a call of another rank: %v", err)
			}
			if err := token.Reply(); err != nil {
				t.Error(err)
			}
			if _, err := call.Wait(ctx); err != nil {
				t.Errorf("the call that was in flight: %v", err)
			}
			for _, l := range l {
				if err := l.Quiesce(ctx); err != nil {
					t.Error(err)
				}
				if s := l.Stats(); s.Check() != nil {
					t.Error(s.Check())
				}
			}
		})
	}
}
