package am

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
)

// A rank that calls all the time and takes no reply would have them fill the memory.
func TestWhoTakesNoRepliesIsGrantedNoMoreCredits(t *testing.T) {
	l, s := target(t)
	s.reserve = func(fabric.SendFlag) error { return fabric.ErrNoBuffer } // as when replies are never taken
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
	if st := l.Stats(); n > most || n <= l.core.cfg.Replies || st.Unsent != n || len(s.cut) != 0 {
		t.Errorf("%d calls came, and %d replies wait for a rank that takes none, want at most %d; cut off: %v", n, st.Unsent, most, s.cut)
	}
	hello(t, l, s, 2)
	if n := calls(2, 3); n != 3 {
		t.Errorf("another rank could make %d calls, want 3", n)
	}
	s.reserve = nil
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

func TestAReplyWhileTheEndpointClosesSaysSo(t *testing.T) {
	var owed *DeferredReply
	l, s := target(t)
	l.core.table.find(0).f = func(c *Call) { owed = c.Defer(0) }
	hello(t, l, s, 1)
	s.arrive(t, 1, message(l, head{kind: request, wants: true, token: 1}, nil))
	l.pollAll(t, s)
	s.reserve = func(fabric.SendFlag) error {
		_ = l.Close()
		return fmt.Errorf("reserve: %w", os.ErrClosed)
	}
	if err := owed.ReplyWith(Medium(make([]byte, argsSize+1))); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
