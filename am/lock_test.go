package am_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

// A lock is a call whose reply is deferred until the lock is free, its unlock a post. More
// goroutines want it than there are reply buffers: those that find none keep their turn for a
// credit, and the unlocks pass them. Rivals are ranks that post to the one with the lock: it asks
// idle credits back for them.
func TestALockHasMoreWaitersThanReplyBuffers(t *testing.T) {
	const users, times = 30, 10
	for _, c := range []struct {
		credits, replies, rivals int
		hold                     time.Duration // the lock, at most
	}{
		{4, 8, 0, 20 * time.Microsecond}, {1, 1, 0, 20 * time.Microsecond}, {1, 8, 0, 20 * time.Microsecond}, {4, 1, 0, 20 * time.Microsecond},
		{2, 29, 0, 20 * time.Microsecond}, {1, 1, 2, 6 * time.Millisecond}, {2, 2, 2, 6 * time.Millisecond}, {4, 1, 3, 6 * time.Millisecond},
	} {
		for seed := range uint64(parttest.Of(8)) {
			t.Run(fmt.Sprintf("%d credits, %d replies, %d rivals, seed %d", c.credits, c.replies, c.rivals, seed), func(t *testing.T) {
				ranks := 2 + c.rivals
				var waiting []*am.DeferredReply
				held, holders, done, left := false, 0, 0, 0
				table := am.NewTable()
				lock := table.Handle("lock", func(c *am.Call) {
					if held {
						waiting = append(waiting, c.Defer(time.Hour))
						return
					}
					held = true
					_ = c.Reply()
				})
				unlock := table.Handle("unlock", func(*am.Call) {
					if held = len(waiting) > 0; held {
						next := waiting[0]
						waiting = waiting[1:]
						_ = next.Reply()
					}
				})
				note := table.Handle("note", func(*am.Call) {})
				w, err := sim.New(sim.Config{Ranks: ranks, Seed: seed, MaxTime: 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				w.ConnectAll()
				err = w.Run(func(ctx context.Context, s *sim.Rank) error {
					l, err := am.Open(s.Net(), 0, am.Config{Rank: s.ID(), Size: ranks, Table: table, Host: amtest.SimHost(s), Credits: c.credits, Replies: c.replies, StallAfter: -1})
					if err != nil {
						return err
					}
					for i := range users * max(0, 1-s.ID()) {
						s.Go(fmt.Sprint("user ", i), func(ctx context.Context) error {
							for range times {
								if _, err := lock.Call(ctx, l, 1); err != nil {
									return err
								}
								if holders++; holders > 1 {
									t.Errorf("%d hold the lock", holders)
								}
								err := s.Sleep(ctx, time.Duration(s.Rand().Int64N(int64(c.hold))))
								holders--
								if err != nil {
									return err
								}
								if err := unlock.Post(ctx, l, 1); err != nil {
									return err
								}
							}
							done++
							return nil
						})
					}
					for done < users {
						if s.ID() > 1 {
							if err := note.Post(ctx, l, 1); err != nil {
								return err
							}
						}
						if err := s.Sleep(ctx, time.Duration(1+s.Rand().IntN(1000))*time.Microsecond); err != nil {
							return err
						}
					}
					// A post that waits for a credit of a rank that has closed ends when that rank counts as
					// silent, later than this world does.
					for left++; left < ranks; {
						if err := s.Sleep(ctx, time.Millisecond); err != nil {
							return err
						}
					}
					return l.Close()
				})
				if err != nil {
					t.Fatalf("%d of %d are done: %v", done, users, err)
				}
			})
		}
	}
}

// A call needs a credit and a reply buffer at once. Posts take all credits as they come, calls to
// another rank the reply buffers, and both come again and again. However far the ranks are from
// each other, the call has its turn.
func TestPostsThatPassLeaveACallItsTurn(t *testing.T) {
	const posters, calls = 6, 20
	for _, c := range []struct {
		credits, callers int // of another rank
		latency          time.Duration
	}{
		{1, 2, 0}, {2, 2, 0}, {8, 2, 0}, {1, 2, 100 * time.Microsecond}, {2, 2, 100 * time.Microsecond}, {8, 2, 100 * time.Microsecond},
		{8, 2, time.Millisecond}, {8, 8, time.Millisecond}, {1, 8, 5 * time.Millisecond},
	} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%d credits, %d callers, latency %v, seed %d", c.credits, c.callers, c.latency, seed), func(t *testing.T) {
				table := am.NewTable()
				echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply() })
				note := table.Handle("note", func(*am.Call) {})
				over, left, posts := false, posters+c.callers, 0
				w, err := sim.New(sim.Config{Ranks: 3, Seed: seed, Latency: c.latency, MaxTime: 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				w.ConnectAll()
				err = w.Run(func(ctx context.Context, s *sim.Rank) error {
					l, err := am.Open(s.Net(), 0, am.Config{Rank: s.ID(), Size: 3, Table: table, Host: amtest.SimHost(s), Credits: c.credits, Replies: 1, StallAfter: -1})
					if err != nil {
						return err
					}
					again := func(name string, once func(ctx context.Context) error) {
						s.Go(name, func(ctx context.Context) error {
							defer func() { left-- }()
							for !over {
								if err := once(ctx); err != nil {
									return err
								}
							}
							return nil
						})
					}
					if s.ID() == 0 {
						for range posters {
							again("poster", func(ctx context.Context) error { posts++; return note.Post(ctx, l, 1) })
						}
						for range c.callers {
							again("caller of another rank", func(ctx context.Context) error { _, err := echo.Call(ctx, l, 2); return err })
						}
						for range calls {
							if _, err := echo.Call(ctx, l, 1); err != nil {
								return err
							}
						}
						over = true
					}
					for !over || left > 0 {
						if err := s.Sleep(ctx, time.Millisecond); err != nil {
							return err
						}
					}
					return l.Close()
				})
				t.Logf("%v of virtual time, %d posts", w.Now(), posts)
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
