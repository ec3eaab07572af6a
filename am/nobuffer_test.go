package am

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// exhausted has no send buffer until its user has slept a few times.
type exhausted struct {
	*ticking
	sleeps int
}

func (p *exhausted) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if p.sleeps < 3 {
		return fabric.SendBuf{}, fmt.Errorf("none is free: %w", fabric.ErrAgain)
	}
	return p.ticking.Reserve(f)
}
func (p *exhausted) Wait(context.Context) error { p.sleeps++; return nil }

func TestWhoWaitsForASendBufferSleeps(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	l.port = &exhausted{ticking: &ticking{scripted: s, now: time.Hour}}
	l.cfg.StallAfter = time.Minute
	hello(t, l, s, 1)
	if err := l.table.find(0).Post(t.Context(), l, 1); err != nil {
		t.Fatal(err)
	}
}
