package am

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A post that has begun is in the network when EndRequests returns, and one that has not is
// refused.
func TestEndRequestsWaitsForAMessageBeingSent(t *testing.T) {
	l, s := target(t)
	p := closableOver(l, s)
	hello(t, l, s, 1)
	h := l.core.table.find(0)
	p.at, p.proceed = make(chan struct{}), make(chan struct{})
	sent, sealed := make(chan error), make(chan error)
	go func() { sent <- h.Post(context.Background(), l, 1) }()
	<-p.at
	go func() { sealed <- l.EndRequests(context.Background()) }()
	select {
	case err := <-sealed:
		t.Fatalf("EndRequests did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(p.proceed)
	if err := errors.Join(<-sent, <-sealed); err != nil {
		t.Fatal(err)
	}
	if err := h.Post(NoWait, l, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("a post afterwards: %v", err)
	}
}

// Over verbs what is short is copied: the packet may get lost, and Close ends the connection that
// would send it again.
func TestEndRequestsWaitsForMessagesNotCalls(t *testing.T) {
	l, s := greeted(t)
	if _, err := l.core.table.find(0).Start(t.Context(), l, 1, Payload{}); err != nil {
		t.Fatal(err)
	}
	s.unconfirmed = 3
	if err := l.EndRequests(t.Context()); err != nil || s.unconfirmed != 0 {
		t.Errorf("%v, with %d messages that may not have arrived", err, s.unconfirmed)
	}
	s.unconfirmed, s.lost = 2, true
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var rest *InFlightError
	if err := l.EndRequests(ctx); !errors.As(err, &rest) || rest.Messages != 2 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with 2 messages that do not arrive: %v", err)
	}
}

// The others may have closed: to ask them takes until the network gives them up.
func TestDrainWaitsForNothingOfThisRank(t *testing.T) {
	l, s := greeted(t)
	if _, err := l.core.table.find(0).Start(t.Context(), l, 1, Payload{}); err != nil {
		t.Fatal(err)
	}
	s.unconfirmed = 2
	s.arrive(t, 1, message(l, head{kind: request}, nil))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := l.Drain(ctx); err != nil || s.ran != 1 || s.unconfirmed != 2 {
		t.Errorf("%v; %d handlers of 1 ran, of 2 messages that may not have arrived %d are left", err, s.ran, s.unconfirmed)
	}
}

// A ping would find one dead that has closed, and end the calls that Close is to count.
func TestBehindEndRequestsOrDrainNobodyIsPinged(t *testing.T) {
	for name, leave := range map[string]func(*Endpoint, context.Context) error{"EndRequests": (*Endpoint).EndRequests, "Drain": (*Endpoint).Drain} {
		t.Run(name, func(t *testing.T) {
			l, s := target(t)
			now := time.Hour
			s.now = func() time.Duration { return now }
			hello(t, l, s, 1)
			if _, err := l.core.table.find(0).Start(t.Context(), l, 1, Payload{}); err != nil {
				t.Fatal(err)
			}
			before := len(s.sent)
			now += l.core.cfg.PingAfter + 1
			err := leave(l, t.Context())
			_, poll := l.Test()
			if err := l.emitter.trySend(l.core.known(1), &outgoing{kind: ping}, nil, nil); !errors.Is(err, ErrClosed) { // who chose a rank before
				t.Errorf("a ping: %v", err)
			}
			if err := errors.Join(err, poll); err != nil || len(s.sent) != before {
				t.Errorf("%v, and %d messages were sent", err, len(s.sent)-before)
			}
			var rest *InFlightError
			if err := l.Close(); !errors.As(err, &rest) || rest.Calls != 1 {
				t.Error(err)
			}
		})
	}
}

func TestDrainWaitsForHandlers(t *testing.T) {
	l, s := greeted(t)
	begun, end := make(chan struct{}), make(chan struct{})
	l.core.table.find(0).f = func(*Call) { close(begun); <-end }
	s.arrive(t, 1, message(l, head{kind: request}, nil))
	polled := make(chan error)
	go func() { _, err := l.Test(); polled <- err }()
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var rest *InFlightError
	if err := l.Drain(ctx); !errors.As(err, &rest) || rest.Handlers != 1 {
		t.Errorf("while a handler runs: %v", err)
	}
	close(end)
	if err := errors.Join(<-polled, l.Drain(t.Context())); err != nil {
		t.Error(err)
	}
}

// Polls take so many events at once: what lies behind many notes comes with none of the first.
func TestAMessageBehindManyNotesIsHandled(t *testing.T) {
	for name, wait := range map[string]func(*Endpoint, context.Context) error{"Quiesce": (*Endpoint).Quiesce, "Drain": (*Endpoint).Drain} {
		t.Run(name, func(t *testing.T) {
			l, s := greeted(t)
			for range 10 * eventsPerPoll {
				s.note(2, []byte("noise"))
			}
			s.arrive(t, 1, message(l, head{kind: request}, nil))
			if err := wait(l, t.Context()); err != nil || s.ran != 1 {
				t.Errorf("%v; %d handlers of 1 ran", err, s.ran)
			}
		})
	}
}
