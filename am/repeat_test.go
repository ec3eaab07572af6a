package am_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// Of two calls that wait for credits the first takes the only one, when who leads sleeps already.
// What it asked for on behalf of the other gets lost on its way here.
func TestAQuestionIsRepeatedThoughTheLeaderSleeps(t *testing.T) {
	w, err := sim.New(sim.Config{Ranks: 2, Seed: 1, MaxTime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	table := am.NewTable()
	note := table.Handle("note", func(*am.Call) {})
	var owed []*am.DeferredReply
	hold := table.Handle("hold", func(c *am.Call) {
		if owed = append(owed, c.Defer(time.Hour)); len(owed) == 3 {
			w.Cut(0, 1)
			w.At(100*time.Microsecond, func() { w.Restore(0, 1) })
		}
	})
	err = w.Run(func(ctx context.Context, s *sim.Rank) error {
		l, err := am.Open(s.Net(), 0, am.Config{Rank: s.ID(), Size: 2, Table: table, Host: lateHost{amtest.SimHost(s), s, 6 * time.Millisecond}, Credits: 1, Replies: 2,
			SpinFor: -1, AttendAfter: 50 * time.Millisecond, StallAfter: -1, PingAfter: -1})
		if err != nil {
			return err
		}
		if s.ID() == 1 {
			if err := s.Sleep(ctx, time.Second); err != nil {
				return err
			}
			return errors.Join(owed[0].Reply(), owed[1].Reply(), s.Sleep(ctx, time.Hour))
		}
		s.Go("serve", func(ctx context.Context) error {
			if err := l.Serve(ctx); !errors.Is(err, am.ErrClosed) {
				return err
			}
			return nil
		})
		if err := note.Post(ctx, l, 1); err != nil {
			return err
		}
		if err := s.Sleep(ctx, 100*time.Millisecond); err != nil { // it leads now
			return err
		}
		for range 2 {
			if _, err := hold.Start(ctx, l, 1, am.Payload{}); err != nil {
				return err
			}
		}
		sent := 0
		for range 2 {
			s.Go("call", func(ctx context.Context) error {
				_, err := hold.Start(ctx, l, 1, am.Payload{})
				if err == nil {
					sent++
				}
				return err
			})
		}
		if err := s.Sleep(ctx, 1500*time.Millisecond); err != nil {
			return err
		}
		if sent != 2 || len(owed) != 4 {
			t.Errorf("of two calls %d were sent, and with those before %d arrived", sent, len(owed))
		}
		if rest := new(am.InFlightError); !errors.As(l.Close(), &rest) || rest.Calls != 2 {
			t.Errorf("closed with %+v in flight, want 2 calls", rest)
		}
		w.Kill(1)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// descheduled is a network at whose ports a goroutine that has read the clock may stop right there.
type descheduled struct {
	fabric.Messenger
	stop *func()
}

func (n descheduled) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	p, err := n.Messenger.NewEndpoint(i, cfg)
	return descheduledPort{p, n.stop}, err
}

type descheduledPort struct {
	fabric.Endpoint
	stop *func()
}

func (p descheduledPort) Now() time.Duration {
	now := p.Endpoint.Now()
	if stop := *p.stop; stop != nil {
		*p.stop = nil
		stop()
	}
	return now
}

// Between the beginning of a call and its message who leads wakes for the last time, as nothing is
// awaited.
func TestAPingFollowsASlowCall(t *testing.T) {
	w, err := sim.New(sim.Config{Ranks: 2, Seed: 1, MaxTime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	table := am.NewTable()
	echo := table.Handle("echo", func(*am.Call) {})
	never := table.Handle("never", func(c *am.Call) { c.Defer(time.Hour) })
	w.At(1500*time.Millisecond, func() { w.Kill(1) })
	err = w.Run(func(ctx context.Context, s *sim.Rank) error {
		var stop func()
		l, err := am.Open(descheduled{s.Net(), &stop}, 0, am.Config{Rank: s.ID(), Size: 2, Table: table, Host: amtest.SimHost(s), StallAfter: -1})
		if err != nil {
			return err
		}
		if s.ID() == 1 {
			return s.Sleep(ctx, time.Hour)
		}
		s.Go("serve", func(ctx context.Context) error {
			if err := l.Serve(ctx); !errors.Is(err, am.ErrClosed) {
				return err
			}
			return nil
		})
		for range 2 { // the first asks for credits
			if err := s.Sleep(ctx, 10*time.Millisecond); err != nil {
				return err
			}
			if _, err := echo.Call(ctx, l, 1); err != nil {
				return err
			}
		}
		if err := s.Sleep(ctx, 950*time.Millisecond); err != nil {
			return err
		}
		stop = func() { err = s.Sleep(ctx, 100*time.Millisecond) }
		p, e := never.Start(ctx, l, 1, am.Payload{})
		if err = errors.Join(err, e); err != nil {
			return err
		}
		if _, err := p.Wait(ctx); !errors.Is(err, fabric.ErrPeerDown) {
			t.Errorf("the call ended with %v", err)
		}
		return l.Close()
	})
	if err != nil {
		t.Error(err)
	}
}
