package am

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
)

// choked sends no reply until it is told to, as when those before are never taken.
type choked struct {
	*scripted
	free bool
}

func (p *choked) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if !p.free {
		return fabric.SendBuf{}, fabric.ErrNoBuffer
	}
	return p.scripted.Reserve(f)
}

// A rank that calls all the time and takes no reply would have them fill the memory.
func TestWhoTakesNoRepliesIsGrantedNoMoreCredits(t *testing.T) {
	var cut []error
	l, s, _ := target(t, &cut)
	p := &choked{scripted: s}
	l.core.net = p
	l.core.table.find(0).f = func(c *Call) { _ = c.ReplyWith(Medium(make([]byte, argsSize+1))) }
	hello(t, l, s, 1)
	calls := func(from, most int) (n int) {
		for ; n < most && l.core.pool.Account(from).Granted > l.core.pool.Account(from).Used; n++ {
			h := head{kind: request, wants: true, token: 1<<32 | 1}
			h.credit.Want = 4
			s.arrive(t, from, message(l, h, nil))
			l.pollAll(t, s)
		}
		return n
	}
	n, most := calls(1, 1000), l.core.cfg.Replies+l.core.flow.Window+1
	if s := l.Stats(); n > most || n <= l.core.cfg.Replies || s.Unsent != n || len(cut) != 0 {
		t.Errorf("%d calls came, and %d replies wait for a rank that takes none, want at most %d; cut off: %v", n, s.Unsent, most, cut)
	}
	hello(t, l, s, 2)
	if n := calls(2, 3); n != 3 {
		t.Errorf("another rank could make %d calls, want 3", n)
	}
	p.free = true
	hello(t, l, s, 2) // replies go out as soon as there is something to poll
	if s := l.Stats(); s.Unsent != 0 {
		t.Errorf("%d replies wait when there are buffers", s.Unsent)
	}
	if n := calls(1, 100); n != 100 {
		t.Errorf("a rank that takes its replies again could make %d calls, want 100", n)
	}
	s2 := l.Stats()
	if err := errors.Join(s2.Check(), l.core.pool.Check()); err != nil {
		t.Error(err)
	}
}

// leaving is a port that the endpoint is closed over when a send buffer is asked for.
type leaving struct {
	*scripted
	close func()
}

func (p *leaving) Reserve(fabric.SendFlag) (fabric.SendBuf, error) {
	p.close()
	return fabric.SendBuf{}, fmt.Errorf("reserve: %w", os.ErrClosed)
}

func TestAReplyWhileTheEndpointClosesSaysSo(t *testing.T) {
	var cut []error
	var owed *DeferredReply
	l, s, _ := target(t, &cut)
	l.core.table.find(0).f = func(c *Call) { owed = c.Defer(0) }
	hello(t, l, s, 1)
	s.arrive(t, 1, message(l, head{kind: request, wants: true, token: 1}, nil))
	l.pollAll(t, s)
	l.core.net = &leaving{scripted: s, close: func() { _ = l.Close() }}
	if err := owed.ReplyWith(Medium(make([]byte, argsSize+1))); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
