package am

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// refusing closes its endpoint while it is given a message, which it has no room for.
type refusing struct {
	*scripted
	l *Endpoint
}

func (p *refusing) Send(int, fabric.SendBuf, int, *fabric.Write, uint64, fabric.SendFlag) error {
	p.l.shut(ErrClosed)
	return fabric.ErrAgain
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
		"try to post":        func(l *Endpoint, h *Handler) error { return h.TryPost(l, 1) },
		"try to post a Long": func(l *Endpoint, h *Handler) error { return h.TryPostWith(l, 1, Long(0, []byte{1})) },
	} {
		t.Run(name, func(t *testing.T) {
			var cut []error
			l, s, _ := target(t, &cut)
			hello(t, l, s, 1)
			l.net = &refusing{scripted: s, l: l}
			if err := send(l, l.table.find(0)); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrQueueFull) {
				t.Fatal(err)
			}
			got := l.Stats()
			if err := got.Check(); err != nil || got.Calls+got.Posts+got.Ended+got.Writes+got.Written != 0 {
				t.Errorf("%v; %d calls and %d posts, %d ended, %d writes, %d written", err, got.Calls, got.Posts, got.Ended, got.Writes, got.Written)
			}
		})
	}
}

func (p *refusing) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if f&fabric.Urgent == 0 { // with the endpoint's lock held
		return p.scripted.Reserve(f)
	}
	p.l.shut(ErrClosed)
	return fabric.SendBuf{}, fabric.ErrNoBuffer
}

func TestALateReplyDuringCloseGoesNowhere(t *testing.T) {
	for name, p := range map[string]Payload{"Short": {}, "Medium": Medium([]byte{1})} {
		t.Run(name, func(t *testing.T) {
			var cut []error
			l, s, _ := target(t, &cut)
			hello(t, l, s, 1)
			o := &outgoing{kind: reply, cat: p.cat, token: 1, payload: p.bytes}
			if err := l.postpone(l.known(1), o, nil); err != nil {
				t.Fatal(err)
			}
			l.net = &refusing{scripted: s, l: l}
			l.sendLate()
			if got := l.Stats(); got.Unsent != 0 || got.Nowhere != 1 {
				t.Errorf("%d replies wait in an endpoint that is closed, %d went nowhere", got.Unsent, got.Nowhere)
			}
		})
	}
}

// The race detector finds what this test is about. Nothing orders the two goroutines but the
// endpoint itself.
func TestCloseEndsACallToItself(t *testing.T) {
	var cut []error
	l, _, _ := target(t, &cut)
	table := l.table
	h := table.find(0)
	h.f = func(*Call) {
		for !l.closing.Load() {
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
	var cut []error
	l, s, _ := target(t, &cut)
	hello(t, l, s, 1)
	hello(t, l, s, 2)
	hello(t, l, s, 2) // it asks for what it did not get
	if !l.pool.Idle() {
		t.Fatal("something is due before anybody died")
	}
	before := len(s.notes)
	l.PeerDown(1, errors.New("told by another"))
	if _, err := l.Test(); err != nil {
		t.Fatal(err)
	}
	if !l.pool.Idle() || len(s.notes) == before {
		t.Errorf("%d control messages were sent; something more is due: %v", len(s.notes)-before, !l.pool.Idle())
	}
}
