package am

import (
	"testing"
	"time"
)

// A ping does not wait: requests may wait for what it finds out.
func TestAPingWaitsForNoRequest(t *testing.T) {
	for name, queue := range map[string]func(l *Endpoint) *fifo{
		"none":            func(*Endpoint) *fifo { return new(fifo) },
		"a place":         func(l *Endpoint) *fifo { return &l.core.known(1).place },
		"a reply buffer":  func(l *Endpoint) *fifo { return &l.core.acquirer.replies },
		"a send buffer":   func(l *Endpoint) *fifo { return &l.core.acquirer.buffers },
		"a credit of two": func(l *Endpoint) *fifo { return &l.core.known(2).credit },
	} {
		l, s := target(t)
		s.now = s.ticks()
		l.core.cfg.PingAfter = 10 * time.Millisecond
		hello(t, l, s, 1)
		call := l.core.newWaiter()
		if err := l.emitter.trySend(l.core.known(1), &outgoing{kind: request, wants: true, w: call}, nil, call); err != nil {
			t.Fatal(err)
		}
		w := l.progress.waiter()
		w.claim.p = l.core.known(2)
		queue(l).Add(&w.claim.waiting, &w.claim)
		for range 100 { // each takes some milliseconds
			if _, err := l.Test(); err != nil {
				t.Fatal(err)
			}
		}
		var h head
		if _, err := h.decode(s.sent[len(s.sent)-1], l.core.hash); err != nil || h.kind != ping {
			t.Errorf("a request waits for %s: no ping follows the call: %v, %+v", name, err, h)
		}
	}
}
