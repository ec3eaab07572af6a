//go:build amfault

package am

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// plant makes the mistake for one test.
func plant(t *testing.T, f fault) {
	planted = f
	t.Cleanup(func() { planted = noFault })
}

func TestSpareLateIsCaught(t *testing.T) {
	plant(t, spareLate)
	var cut []error
	l, p, _ := target(t, &cut)
	hello(t, l, p, 1)
	p.arrive(t, 1, message(l, head{kind: request}, nil))
	_, err := l.Test()
	if err == nil {
		t.Fatal("handlers ran before the buffers were posted again, and nobody noticed")
	}
	t.Log(err)
}

// stuck are the faults that make a job stand still: whoever waits is told.
func TestWhatStandsStillIsReported(t *testing.T) {
	for _, c := range []struct {
		name string
		f    fault
	}{{"noPoll", noPoll}} {
		t.Run(c.name, func(t *testing.T) {
			plant(t, c.f)
			var cut []error
			l, p, _ := target(t, &cut)
			hello(t, l, p, 1)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			p.events = append(p.events, fabric.Event{Kind: fabric.Down, Peer: 1, Err: os.ErrDeadlineExceeded})
			_, err := l.table.find(0).Call(ctx, l, 1)
			if errors.Is(err, fabric.ErrPeerDown) {
				t.Fatal("the wait polled")
			}
		})
	}
}
