package shm

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// What happened since the last Poll ends Wait, though there was no sleeper to wake.
func TestWhatCameBeforeWaitEndsIt(t *testing.T) {
	setSleepLimit(t, time.Hour)
	p := openEndpoints(t, 2, smallEndpoint)
	must(t, p[1].Post(exchange(t, p[0], p[1], 8).Slot))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for what, x := range map[string]struct {
		at    int
		bring func()
	}{
		"a message":        {1, func() { send(t, p[0], 1, 8, 0, 0) }},
		"a note":           {1, func() { p[0].Note(1, []byte{1}) }},
		"an end":           {0, func() { send(t, p[0], 1, 8, 9, 0) }},
		"a note to itself": {0, func() { p[0].Note(0, []byte{1}) }},
	} {
		for quiet := false; !quiet; { // nothing else is left over
			var e [8]fabric.Event
			n, err := p[x.at].Poll(e[:], 0)
			must(t, err)
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

// Two ranks that sleep at random moments, each woken by the other only: a lost wake-up stops both.
func TestNoWakeUpIsLost(t *testing.T) {
	setSleepLimit(t, time.Hour)
	p := openEndpoints(t, 2, smallEndpoint)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	const rounds = 5000
	var wg sync.WaitGroup
	for r := range p {
		wg.Go(func() {
			x := &client{p: p[r]}
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
				if err := x.await(ctx, true, nil); err != nil {
					t.Errorf("rank %d, round %d: %v", r, i, err)
					return
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

// A message may be in the ring before Poll has returned Up of its connection.
func TestUpComesBeforeTheFirstMessage(t *testing.T) {
	p := openEndpoints(t, 2, smallEndpoint)
	send(t, p[0], 1, 8, 0, 0)
	for end := time.Now().Add(testTimeout); !p[1].arrived(); {
		if time.Now().After(end) {
			t.Fatal("the message did not come")
		}
		runtime.Gosched()
	}
	var events [4]fabric.Event
	if n := p[1].takeMessagesLocked(events[:]); n != 0 { // as if the queue had been looked at just before Up came
		t.Errorf("%d messages before Up", n)
	}
	n, err := p[1].Poll(events[:], 0)
	if err != nil || n != 2 || events[0].Kind != fabric.Up || events[1].Kind != fabric.Arrived {
		t.Errorf("%+v, %v, want Up, then the message", events[:n], err)
	}
}
