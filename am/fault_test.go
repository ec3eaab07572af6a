//go:build amfault

package am

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/flow"
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
	var early *flow.NotPostedError
	if !errors.As(err, &early) {
		t.Fatalf("handlers ran before the buffers were posted again, and nobody noticed: %v", err)
	}
	t.Log(err)
}

// What makes a job stand still does not keep anybody longer than he wants to wait.
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
			if _, err := l.table.find(0).Call(ctx, l, 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a wait that does not poll ended with %v", err)
			}
		})
	}
}
