package am_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// holders have rank 0's goroutines take a lock of rank 1, more of them than there are reply
// buffers, and the one that has it allocate there, which is a call of the library's. together: the
// library's handler is on the program's endpoint.
func holders(t *testing.T, together bool, credits, replies int, seed uint64) (done int, err error) {
	const users, times = 12, 5
	program, library, name := am.NewTable(), am.NewLibraryTable(), "conduit.alloc"
	if together {
		library, name = program, "alloc"
	}
	var waiting []*am.DeferredReply
	held := false
	lock := program.Handle("lock", func(c *am.Call) {
		if held {
			waiting = append(waiting, c.Defer(time.Hour))
			return
		}
		held = true
		_ = c.Reply()
	})
	unlock := program.Handle("unlock", func(*am.Call) {
		if held = len(waiting) > 0; held {
			next := waiting[0]
			waiting = waiting[1:]
			_ = next.Reply()
		}
	})
	alloc := library.Handle(name, func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	w, err := sim.New(sim.Config{Ranks: 2, Seed: seed, MaxTime: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	return done, w.Run(func(ctx context.Context, s *sim.Rank) error {
		cfg := am.Config{Rank: s.ID(), Size: 2, Table: program, Host: amtest.SimHost(s), Credits: credits, Replies: replies, StallAfter: -1, PingAfter: -1}
		l, err := am.Open(s.Net(), 0, cfg)
		if err != nil {
			return err
		}
		parts := l
		if !together {
			cfg.Table = library
			if parts, err = am.Open(s.Net(), 1, cfg); err != nil {
				return err
			}
		}
		user := func(ctx context.Context) error {
			for range times {
				if _, err := lock.Call(ctx, l, 1); err != nil {
					return err
				}
				if _, err := alloc.Call(ctx, parts, 1, 64); err != nil {
					return err
				}
				if err := unlock.Post(ctx, l, 1); err != nil {
					return err
				}
			}
			done++
			return nil
		}
		for i := range users * (1 - s.ID()) {
			s.Go(fmt.Sprint("user ", i), user)
		}
		for done < users {
			if err := s.Sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		err = l.Close()
		if !together {
			err = errors.Join(err, parts.Close())
		}
		return err
	})
}

// The holder of a lock allocates while calls for that lock have all reply buffers and credits of
// the program: the library's are others.
func TestAHolderOfALockMayCallTheLibrary(t *testing.T) {
	for _, c := range [][2]int{{1, 1}, {1, 4}, {4, 1}, {4, 4}, {8, 8}} {
		for seed := range uint64(8) {
			if done, err := holders(t, false, c[0], c[1], seed); err != nil {
				t.Fatalf("%d credits, %d replies, seed %d: %d are done: %v", c[0], c[1], seed, done, err)
			}
			// On one endpoint they wait for each other for ever.
			var limit *sim.LimitError
			if _, err := holders(t, true, c[0], c[1], seed); !errors.As(err, &limit) && !errors.As(err, new(*sim.DeadlockError)) {
				t.Errorf("%d credits, %d replies, seed %d: on the program's endpoint there is no deadlock: %v", c[0], c[1], seed, err)
			}
		}
	}
}
