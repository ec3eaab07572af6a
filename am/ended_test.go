package am

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// refuses has a port without room for a message close its endpoint when it is given one.
func refuses(l *Endpoint, s *scripted) {
	s.sending = func(fabric.SendBuf, int) error {
		l.core.shut(ErrClosed)
		return fabric.ErrAgain
	}
	s.reserve = func(f fabric.SendFlag) error {
		if f&fabric.Urgent == 0 { // with the endpoint's lock held
			return nil
		}
		l.core.shut(ErrClosed)
		return fabric.ErrNoBuffer
	}
}

func TestARefusalDuringCloseIsNotCounted(t *testing.T) {
	for name, send := range map[string]func(l *Endpoint, h *Handler) error{
		"call": func(l *Endpoint, h *Handler) error { _, err := h.Call(context.Background(), l, 1); return err },
		"call with a Long": func(l *Endpoint, h *Handler) error {
			_, err := h.CallWith(context.Background(), l, 1, Long(0, []byte{1}))
			return err
		},
		"post of a Long":     func(l *Endpoint, h *Handler) error { return h.PostWith(context.Background(), l, 1, Long(0, []byte{1})) },
		"post":               func(l *Endpoint, h *Handler) error { return h.Post(context.Background(), l, 1) },
		"try to post":        func(l *Endpoint, h *Handler) error { return h.Post(NoWait, l, 1) },
		"try to post a Long": func(l *Endpoint, h *Handler) error { return h.PostWith(NoWait, l, 1, Long(0, []byte{1})) },
	} {
		t.Run(name, func(t *testing.T) {
			l, s := greeted(t)
			refuses(l, s)
			if err := send(l, l.core.table.find(0)); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrQueueFull) {
				t.Fatal(err)
			}
			got := l.Stats()
			if err := got.Check(); err != nil || got.Calls+got.Posts+got.Ended+got.Writes+got.Written != 0 {
				t.Errorf("%v; %d calls and %d posts, %d ended, %d writes, %d written", err, got.Calls, got.Posts, got.Ended, got.Writes, got.Written)
			}
		})
	}
}

func TestALateReplyDuringCloseGoesNowhere(t *testing.T) {
	for name, p := range map[string]Payload{"Short": {}, "Medium": Medium(make([]byte, argsSize+1))} {
		t.Run(name, func(t *testing.T) {
			l, s := greeted(t)
			o := &outgoing{kind: reply, cat: p.cat, token: 1, payload: p.bytes}
			if err := l.replier.postpone(l.core.known(1), o, nil); err != nil {
				t.Fatal(err)
			}
			refuses(l, s)
			l.replier.sendLate()
			if got := l.Stats(); got.Unsent != 0 || got.Nowhere != 1 {
				t.Errorf("%d replies wait in an endpoint that is closed, %d went nowhere", got.Unsent, got.Nowhere)
			}
		})
	}
}

// The race detector finds what this test is about. Nothing orders the two goroutines but the
// endpoint itself.
func TestCloseEndsACallToItself(t *testing.T) {
	l, _ := target(t)
	table := l.core.table
	h := table.find(0)
	h.f = func(*Call) {
		for !l.core.closing.Load() {
			time.Sleep(time.Millisecond)
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := h.Call(context.Background(), l, 0)
		ended <- err
	}()
	for l.Stats().Local == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(10 * time.Millisecond) // until the handler runs: a channel would order what is to be unordered
	if err := l.Close(); !isInFlight(err) {
		t.Errorf("Close: %v", err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("the call: %v", err)
	}
}

func isInFlight(err error) bool {
	var e *InFlightError
	return errors.As(err, &e)
}

// What a dead rank held is told at once to those who want it: who leads may sleep next.
func TestWhatADeadRankHeldIsGrantedInTheSameRound(t *testing.T) {
	l, s := greeted(t)
	hello(t, l, s, 2)
	hello(t, l, s, 2) // it asks for what it did not get
	if !l.core.pool.Idle() {
		t.Fatal("something is due before anybody died")
	}
	before := len(s.notes)
	l.PeerDown(1, errors.New("told by another"))
	if _, err := l.Test(); err != nil {
		t.Fatal(err)
	}
	if !l.core.pool.Idle() || len(s.notes) == before {
		t.Errorf("%d control messages were sent; something more is due: %v", len(s.notes)-before, !l.core.pool.Idle())
	}
}

// Tokens can be guessed.
func TestAReplyToACallNotSentEndsThePeer(t *testing.T) {
	if lockrank.OneLock {
		t.Skip("with one lock nothing arrives while a message is sent")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for name, send := range map[string]func(l *Endpoint, h *Handler) error{
		"call": func(l *Endpoint, h *Handler) error { _, err := h.Call(ctx, l, 1); return err },
		"call with a Long": func(l *Endpoint, h *Handler) error {
			_, err := h.CallWith(ctx, l, 1, Long(0, []byte{1}))
			return err
		},
		"prepared call": func(l *Endpoint, h *Handler) error {
			p, err := h.Prepare(NoWait, l, 1, 8)
			if err == nil {
				_, err = p.CommitCall(ctx)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := greeted(t)
			s.sending = func(b fabric.SendBuf, n int) error { // it has no room for what it answers
				var h head
				if _, err := h.decode(b.Data[:n], l.core.hash); err != nil {
					t.Fatal(err)
				}
				s.arrive(t, 1, message(l, head{kind: reply, token: h.token}, nil))
				arrived := make(chan error)
				go func() { _, err := l.Test(); arrived <- err }()
				if err := <-arrived; err != nil {
					t.Fatal(err)
				}
				return fabric.ErrAgain
			}
			if err := send(l, l.core.table.find(0)); !errors.As(err, new(*MessageError)) || !errors.Is(err, fabric.ErrPeerDown) {
				t.Errorf("the call: %v", err)
			}
			if _, err := l.Test(); err != nil || len(s.cut) != 1 || !errors.As(s.cut[0], new(*MessageError)) {
				t.Errorf("%v, cut off for %v", err, s.cut)
			}
			got, p := l.Stats(), l.core.known(1)
			if err := errors.Join(got.Check(), l.core.pool.Check()); err != nil || p.calls != 0 || got.Prepared != 0 || got.Calls != 1 || got.Replied != 1 {
				t.Errorf("%v; %d places taken, %+v", err, p.calls, got)
			}
		})
	}
}
