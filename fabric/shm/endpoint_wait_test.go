package shm

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// What happened since the last Poll ends Wait, though nobody was asleep to be woken.
func TestWhatCameBeforeWaitEndsIt(t *testing.T) {
	setSleepLimit(t, time.Hour)
	p := openEndpoints(t, 2, smallEndpoint)
	if err := p[1].Post(mail(t, p[0], p[1], 8).Slot); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	send := func(cookie uint64) {
		b, err := p[0].Reserve(0)
		if err != nil {
			t.Fatal(err)
		}
		if err := p[0].Send(1, b, 8, nil, cookie, 0); err != nil {
			t.Fatal(err)
		}
	}
	for what, x := range map[string]struct {
		at    int
		bring func()
	}{
		"a message":        {1, func() { send(0) }},
		"a note":           {1, func() { p[0].Note(1, []byte{1}) }},
		"an end":           {0, func() { send(9) }},
		"a note to itself": {0, func() { p[0].Note(0, []byte{1}) }},
	} {
		for quiet := false; !quiet; { // nothing else is left over
			var e [8]fabric.Event
			n, err := p[x.at].Poll(e[:], 0)
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-p[x.at].woken:
			default:
				quiet = n == 0
			}
		}
		x.bring()
		if err := p[x.at].Wait(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Two ranks that sleep at random moments, each woken by the other only: a wake-up that is lost stops both.
func TestNoWakeUpIsLost(t *testing.T) {
	setSleepLimit(t, time.Hour)
	p := openEndpoints(t, 2, smallEndpoint)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const rounds = 5000
	var wg sync.WaitGroup
	for r := range p {
		wg.Go(func() {
			x := &correspondent{p: p[r]}
			for i := range rounds {
				if r == 0 || i > 0 {
					if err := x.send(1-r, []byte{1}); err != nil {
						t.Error(err)
						return
					}
				}
				for range i % 97 {
					runtime.Gosched()
				}
				for {
					k, err := x.take(0, nil)
					if k > 0 {
						break
					}
					if err == nil {
						err = p[r].Wait(ctx)
					}
					if err != nil {
						t.Errorf("rank %d, round %d: %v", r, i, err)
						return
					}
				}
			}
			if r == 1 {
				if err := x.send(0, []byte{1}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A message may be in the ring before Poll has told of its connection.
func TestUpIsToldBeforeTheFirstMessage(t *testing.T) {
	p := openEndpoints(t, 2, smallEndpoint)
	b, err := p[0].Reserve(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p[0].Send(1, b, 8, nil, 0, 0); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); !p[1].arrived(); {
		if time.Now().After(end) {
			t.Fatal("the message did not come")
		}
		runtime.Gosched()
	}
	var events [4]fabric.Event
	if n := p[1].takeMessages(events[:]); n != 0 { // as if the queue had been looked at just before Up came
		t.Errorf("%d messages before Up", n)
	}
	n, err := p[1].Poll(events[:], 0)
	if err != nil || n != 2 || events[0].Kind != fabric.Up || events[1].Kind != fabric.Arrived {
		t.Errorf("%+v, %v, want Up, then the message", events[:n], err)
	}
}
