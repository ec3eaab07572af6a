package sim

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

const us = time.Microsecond

func TestDeadlockNamesWhatEachRankWaitsFor(t *testing.T) {
	w := newWorld(t, Config{Ranks: 3, Seed: 1, SegmentSize: 64})
	ended := 0
	err := w.Run(func(ctx context.Context, r *Rank) error {
		defer func() { ended++ }()
		switch r.ID() {
		case 0:
			p, err := r.Net().NewEndpoint(4, fabric.EndpointConfig{Slots: 1, SlotSize: 8, Sends: 1})
			if err != nil {
				return err
			}
			for {
				if err := p.Wait(ctx); err != nil {
					return err
				}
			}
		case 1:
			return w.NewParker().Park(ctx)
		}
		l, err := r.Net().NewLane()
		if err != nil {
			return err
		}
		return l.WaitWord(ctx, wordOf(r.Segment()), fabric.Equal, 1, func() error { return nil })
	})
	var d *DeadlockError
	if !errors.As(err, &d) || d.Tasks != 3 {
		t.Fatalf("got %v, want a deadlock of 3 tasks", err)
	}
	for _, want := range []string{"rank 0 (main): waits at endpoint 4", "rank 1 (main): is parked", "rank 2 (main): waits for a word of rank 2"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the report does not say %q:\n%v", want, err)
		}
	}
	if ended != 3 {
		t.Errorf("%d of 3 programs were ended", ended)
	}
	if err := w.Run(func(context.Context, *Rank) error { return nil }); !errors.As(err, &d) {
		t.Errorf("a world that has ended runs again: %v", err)
	}
}

func TestLimitsEndARun(t *testing.T) {
	for name, cfg := range map[string]Config{"time": {MaxTime: time.Second}, "events": {MaxEvents: 1000}} {
		cfg.Ranks = 2
		w := newWorld(t, cfg)
		err := w.Run(func(ctx context.Context, r *Rank) error {
			for {
				if err := r.Sleep(ctx, 10*time.Millisecond); err != nil {
					return err
				}
			}
		})
		var l *LimitError
		if name == "events" {
			cfg.MaxTime = time.Hour
		}
		if !errors.As(err, &l) || l.Tasks != 2 {
			t.Errorf("limit of %s: %v", name, err)
		}
	}
}

// A task that ignores every error is ended all the same.
func TestStubbornTasksAreUnwound(t *testing.T) {
	w := newWorld(t, Config{Ranks: 1})
	deferred := false
	err := w.Run(func(ctx context.Context, r *Rank) error {
		defer func() { deferred = true }()
		p := w.NewParker()
		for {
			_ = p.Park(ctx)
		}
	})
	var d *DeadlockError
	if !errors.As(err, &d) || !deferred {
		t.Fatalf("%v, deferred call run: %v", err, deferred)
	}
}

func TestPanicOfAProgramNamesRankAndSeed(t *testing.T) {
	w := newWorld(t, Config{Ranks: 2, Seed: 77})
	defer func() {
		err, _ := recover().(error)
		if err == nil || !strings.Contains(err.Error(), "rank 1 (main) panicked (seed 77, 5µs): oops") {
			t.Fatalf("recovered %v", err)
		}
	}()
	_ = w.Run(func(ctx context.Context, r *Rank) error {
		if err := r.Sleep(ctx, time.Duration(r.ID())*5*us); err != nil || r.ID() == 0 {
			return err
		}
		panic("oops")
	})
	t.Fatal("Run returned")
}

func TestErrorsOfProgramsComeWithTheirRanks(t *testing.T) {
	w := newWorld(t, Config{Ranks: 2})
	mine := errors.New("mine")
	err := w.Run(func(_ context.Context, r *Rank) error {
		if r.ID() == 1 {
			return mine
		}
		return nil
	})
	if !errors.Is(err, mine) || !strings.Contains(err.Error(), "rank 1 (main)") {
		t.Fatalf("got %v", err)
	}
}

func TestCallsFromOutsideThatWouldWaitAreRefused(t *testing.T) {
	w := newWorld(t, Config{Ranks: 1})
	if err := w.NewParker().Park(t.Context()); err == nil {
		t.Fatal("a task parked outside of a world")
	}
}

type contextKey struct{}

func TestVirtualContextsReplaceRealOnes(t *testing.T) {
	w := newWorld(t, Config{Ranks: 1})
	err := w.Run(func(ctx context.Context, r *Rank) error {
		start := w.Now()
		short, cancel := r.WithTimeout(ctx, 7*us)
		defer cancel()
		derived, stop := context.WithCancel(context.WithValue(short, contextKey{}, "value"))
		defer stop()
		long, cancelLong := r.WithTimeout(derived, time.Hour)
		defer cancelLong()
		for _, c := range []context.Context{short, derived, long} {
			if err := w.NewParker().Park(c); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			select {
			case <-c.Done():
			default:
				t.Errorf("a context that ended is not done")
			}
		}
		if took := w.Now() - start; took != 7*us {
			t.Errorf("a time-out of 7µs took %v", took)
		}
		if long.Value(contextKey{}) != "value" {
			t.Errorf("values are lost")
		}
		// A cause comes out, also from a child, also when the standard library cancels.
		cause := errors.New("cause")
		a, cancelA := r.WithCancel(ctx)
		b, cancelB := r.WithTimeout(a, time.Second)
		defer cancelB()
		std, cancelStd := context.WithCancelCause(ctx)
		c, cancelC := r.WithTimeout(std, time.Second)
		defer cancelC()
		r.Go("canceller", func(ctx context.Context) error {
			err := r.Sleep(ctx, us)
			cancelA(cause)
			cancelStd(cause)
			return err
		})
		for _, c := range []context.Context{b, c, a, std} {
			if err := w.NewParker().Park(c); !errors.Is(err, cause) {
				t.Errorf("park: %v, want the cause", err)
			}
		}
		return nil
	})
	must(t, err)
}

// Two programs that only sleep meet in the order of virtual time.
func TestTimeIsVirtualAndOrdered(t *testing.T) {
	w := newWorld(t, Config{Ranks: 3})
	var order []int
	err := w.Run(func(ctx context.Context, r *Rank) error {
		for k := range 3 {
			if err := r.Sleep(ctx, time.Duration(3-r.ID())*time.Hour/100); err != nil {
				return err
			}
			order = append(order, 10*r.ID()+k)
		}
		return nil
	})
	if err != nil || w.Now() != 9*time.Hour/100 {
		t.Fatalf("%v at %v", err, w.Now())
	}
	// Ranks sleep 3, 2 and 1 units: 20 at 1, {10, 21} at 2, {0, 22} at 3, 11 at 4, {1, 12} at 6, 2 at
	// 9.
	at := map[int]int{20: 1, 10: 2, 21: 2, 0: 3, 22: 3, 11: 4, 1: 6, 12: 6, 2: 9}
	for i := 1; i < len(order); i++ {
		if at[order[i]] < at[order[i-1]] {
			t.Fatalf("order %v", order)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []Config{{}, {Ranks: -1}, {Ranks: 1, SegmentSize: 7}, {Ranks: 1, Notes: Notes{Loss: 2}}, {Ranks: 1, Latency: -1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestEndpointsCheckTheirUse(t *testing.T) {
	w := newWorld(t, Config{Ranks: 2})
	n := w.Rank(0).Net()
	for _, cfg := range []fabric.EndpointConfig{{}, {Slots: 1, SlotSize: 1}, {Slots: 1, SlotSize: 1, Sends: 1, Reserved: 1}} {
		if _, err := n.NewEndpoint(0, cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
	p, err := n.NewEndpoint(0, fabric.EndpointConfig{Slots: 2, SlotSize: 8, Sends: 1})
	must(t, err)
	if _, err := n.NewEndpoint(0, fabric.EndpointConfig{Slots: 2, SlotSize: 8, Sends: 1}); err == nil {
		t.Error("an endpoint was opened twice")
	}
	if err := p.Post(0); err == nil {
		t.Error("a slot that is posted was posted again")
	}
	if err := p.Post(2); err == nil {
		t.Error("a slot that does not exist was posted")
	}
	if err := p.Send(1, fabric.SendBuf{ID: 0}, 1, nil, 0, 0); err == nil {
		t.Error("a buffer was sent that nobody reserved")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Reserve(0); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}
