package am

import (
	"testing"
	"time"
)

// Who waits for a reply buffer keeps its turn for the only credit, and the rank that is to be tried may owe that reply.
func TestAPingDoesNotWaitBehindThoseWhoMayWaitForWhatItFindsOut(t *testing.T) {
	for name, queue := range map[string]func(l *Endpoint, w *waiter){
		"nobody":        func(*Endpoint, *waiter) {},
		"a credit":      func(l *Endpoint, w *waiter) { l.known(1).waiting.add(w, atPeer) },
		"a send buffer": func(l *Endpoint, w *waiter) { l.join(&l.waiting, w, atLane) },
	} {
		var cut []error
		l, s, _ := target(t, &cut)
		l.port = &ticking{scripted: s, now: time.Hour}
		l.cfg.PingAfter = 10 * time.Millisecond
		hello(t, l, s, 1)
		call := l.newWaiter()
		if err := l.attempt(l.known(1), &outgoing{kind: request, wants: true, w: call}, nil, call); err != nil {
			t.Fatal(err)
		}
		queue(l, l.waiter())
		for range 100 { // each takes some milliseconds
			if _, err := l.Test(); err != nil {
				t.Fatal(err)
			}
		}
		var h head
		if _, err := h.decode(s.sent[len(s.sent)-1], l.hash); err != nil || h.kind != ping {
			t.Errorf("somebody waits for %s: no ping follows the call: %v, %+v", name, err, h)
		}
	}
}
