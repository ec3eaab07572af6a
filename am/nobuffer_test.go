package am

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// exhausted has no send buffer, for what is copied neither, until its user has slept a few times.
type exhausted struct {
	*ticking
	sleeps int
}

const exhaustedFor = 3

func (p *exhausted) lacks() error {
	if p.sleeps < exhaustedFor {
		return fmt.Errorf("exhausted: %w", fabric.ErrNoBuffer)
	}
	return nil
}

func (p *exhausted) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if err := p.lacks(); err != nil {
		return fabric.SendBuf{}, err
	}
	return p.ticking.Reserve(f)
}

func (p *exhausted) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if err := p.lacks(); b.ID == fabric.Copied && err != nil {
		return err
	}
	return p.ticking.Send(peer, b, n, w, cookie, f)
}

func (p *exhausted) Wait(context.Context) error { p.sleeps++; return nil }

func TestWhoWaitsForASendBufferSleeps(t *testing.T) {
	for name, payload := range map[string]Payload{"Short": {}, "Medium": Medium([]byte("bytes"))} {
		t.Run(name, func(t *testing.T) {
			var cut []error
			l, s, _ := target(t, &cut)
			p := &exhausted{ticking: &ticking{scripted: s, now: time.Hour}}
			l.net = p
			l.cfg.StallAfter = time.Minute
			hello(t, l, s, 1)
			if err := l.table.find(0).PostWith(t.Context(), l, 1, payload); err != nil {
				t.Fatal(err)
			}
			if n := l.Stats().NoBuffer; p.sleeps < exhaustedFor || n == 0 || len(s.sent) != 1 {
				t.Errorf("it slept %d times, met no buffer %d times, and sent %d messages", p.sleeps, n, len(s.sent))
			}
		})
	}
}

// The first in the queue may wait for long: what it waits for may be with messages to ranks that live.
func TestARequestBehindOthersLearnsOfTheDeath(t *testing.T) {
	for name, q := range map[string]func(l *Endpoint) *fifo{
		"reply buffers": func(l *Endpoint) *fifo { return &l.acquirer.replies },
		"send buffers":  func(l *Endpoint) *fifo { return &l.acquirer.buffers },
	} {
		var cut []error
		l, _, _ := target(t, &cut)
		var w [2]*waiter
		for i, rank := range []int{2, 1} {
			w[i] = l.waiter()
			w[i].claim.p, w[i].claim.next = l.known(rank), stageReply
			q(l).Add(&w[i].claim.waiting, &w[i].claim)
		}
		l.down(l.known(1), nil, true)
		if !w[1].pending() {
			t.Errorf("a request that waits for %s is not woken by the death of its peer", name)
		}
	}
}
