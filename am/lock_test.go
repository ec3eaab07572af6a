package am_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/am/amtest"
	"github.com/ibconduit/conduit/fabric/sim"
)

// A lock is a call whose reply is deferred until the lock is free, its unlock a post. More goroutines want it than there are
// reply buffers: those that find none keep their turn for a credit, and the unlocks pass them.
func TestALockMayBeWantedByMoreThanThereAreReplyBuffers(t *testing.T) {
	const users, times = 30, 10
	for _, c := range []struct{ credits, replies int }{{4, 8}, {1, 1}, {1, 8}, {4, 1}, {2, 29}} {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("%d credits, %d replies, seed %d", c.credits, c.replies, seed), func(t *testing.T) {
				var waiting []*am.Token
				held, holders, done := false, 0, 0
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
				w, err := sim.New(sim.Config{Ranks: 2, Seed: seed, MaxTime: 5 * time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				w.ConnectAll()
				err = w.Run(func(ctx context.Context, s *sim.Rank) error {
					l, err := am.Open(s.Net(), 0, am.Config{Rank: s.ID(), Size: 2, Table: table, Host: amtest.SimHost(s), Credits: c.credits, Replies: c.replies, StallAfter: -1})
					if err != nil {
						return err
					}
					for i := range users * (1 - s.ID()) {
						s.Go(fmt.Sprint("user ", i), func(ctx context.Context) error {
							for range times {
								if _, err := lock.Call(ctx, l, 1); err != nil {
									return err
								}
								if holders++; holders > 1 {
									t.Errorf("%d hold the lock", holders)
								}
								err := s.Sleep(ctx, time.Duration(s.Rand().IntN(20))*time.Microsecond)
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

// A call needs a credit and a reply buffer at once. Posts take all credits that they are left, calls to another rank the reply
// buffer, and both come again and again. A credit may be away for longer than it is left to the call.
func TestPostsThatPassLeaveACallItsTurn(t *testing.T) {
	const posters, calls = 6, 20
	for _, c := range []struct {
		credits int
		latency time.Duration
	}{{1, 0}, {2, 0}, {8, 0}, {1, 100 * time.Microsecond}, {2, 100 * time.Microsecond}, {8, 100 * time.Microsecond}} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%d credits, latency %v, seed %d", c.credits, c.latency, seed), func(t *testing.T) {
				table := am.NewTable()
				echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply() })
				note := table.Handle("note", func(*am.Call) {})
				over, left, posts := false, posters+2, 0
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
						for range 2 {
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
