package am_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

// "For ever" is often written as the largest time there is.
func TestADeferredReplyMayTakeTheLongestTime(t *testing.T) {
	for name, c := range map[string]struct {
		named time.Duration
		cfg   am.Config
	}{
		"by the handler":       {math.MaxInt64, am.Config{}},
		"by the configuration": {0, am.Config{DeferFor: math.MaxInt64}},
	} {
		t.Run(name, func(t *testing.T) {
			table := am.NewTable()
			tokens := make(chan *am.DeferredReply, 1)
			h := table.Handle("h", func(c *am.Call) { tokens <- c.Defer(time.Duration(c.Arg(0))) })
			c.cfg.Table = table
			l := endpoints(t, amtest.NewMemory(2, 64), 2, c.cfg)
			for to := range l {
				p, err := h.Start(bounded(t), l[0], to, am.Payload{}, uint64(c.named))
				if err != nil {
					t.Fatal(err)
				}
				token := <-tokens
				if _, err := l[to].Test(); err != nil { // which ends what is overdue
					t.Fatal(err)
				}
				if err := token.Reply(7); err != nil {
					t.Errorf("the reply of rank %d: %v", to, err)
				}
				if r, err := p.Wait(bounded(t)); err != nil || r.Arg(0) != 7 {
					t.Errorf("rank %d: %d, %v", to, r.Arg(0), err)
				}
			}
		})
	}
}

func TestNegativeTimesThatMeanNothingAreRefused(t *testing.T) {
	for _, cfg := range []am.Config{{DeferFor: -1}, {CloseAfter: -1}} {
		if _, err := cfg.Terms(); err == nil {
			t.Errorf("accepted: DeferFor %v, CloseAfter %v", cfg.DeferFor, cfg.CloseAfter)
		}
	}
}

func TestNumbersWhoseSumsOverflowAreRefused(t *testing.T) {
	net := amtest.NewMemory(1, 64).Rank(0)
	for _, cfg := range []am.Config{
		{Credits: math.MaxInt}, {Replies: math.MaxInt}, {Spares: math.MaxInt}, {Sends: math.MaxInt}, {ReplySends: math.MaxInt}, {MaxMedium: math.MaxInt},
	} {
		cfg.Size, cfg.Table = 1, am.NewTable()
		l, err := am.Open(net, 0, cfg)
		if err == nil {
			err = l.Close()
			t.Errorf("accepted: %+v, %v", cfg, err)
		} else if !strings.Contains(err.Error(), strconv.Itoa(math.MaxInt)) || strings.Contains(err.Error(), "-") {
			t.Errorf("the error does not name what was asked for: %v", err)
		}
	}
}

func TestCloseDoesNotWaitForALongSleep(t *testing.T) {
	for _, after := range []time.Duration{time.Hour, math.MaxInt64} {
		l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: am.NewTable(), AttendAfter: after})
		for _, l := range l {
			if err := l.Close(); err != nil {
				t.Errorf("with AttendAfter %v: %v", after, err)
			}
		}
	}
}

func TestPrepareAndCommitObeyTheirContext(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("h", func(c *am.Call) { _ = c.Reply() })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
	why := errors.New("why")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for to := range l {
		if p, err := h.Prepare(ended, l[0], to, 8); !errors.Is(err, why) || p != nil {
			t.Errorf("Prepare to rank %d: %v", to, err)
			p.Cancel()
		}
		for name, commit := range map[string]func(p *am.Prepared) error{
			"Commit":     func(p *am.Prepared) error { return p.Commit(ended) },
			"CommitCall": func(p *am.Prepared) error { _, err := p.CommitCall(ended); return err },
		} {
			p, err := h.Prepare(t.Context(), l[0], to, 8)
			if err != nil {
				t.Fatal(err)
			}
			if err := commit(p); !errors.Is(err, why) {
				t.Errorf("%s to rank %d: %v", name, to, err)
			}
		}
	}
	if s := l[0].Stats(); s.Calls != 0 || s.Posts != 0 || s.Prepared != 0 {
		t.Errorf("%d calls and %d posts were sent, %d are prepared", s.Calls, s.Posts, s.Prepared)
	}
}

func TestTheTryFormsSayThatTheLaneIsClosed(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("h", func(*am.Call) {})
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, CloseAfter: 20 * time.Millisecond})
	var prepared [2]*am.Prepared
	for to := range prepared {
		p, err := h.Prepare(t.Context(), l[0], to, 8)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Cancel()
		prepared[to] = p
	}
	if err := l[0].Close(); !errors.Is(err, am.ErrBusy) {
		t.Fatalf("Close: %v", err)
	}
	for to, p := range prepared {
		if err := p.Commit(am.NoWait); !errors.Is(err, am.ErrClosed) {
			t.Errorf("Commit with NoWait to rank %d: %v", to, err)
		}
		if p.Bytes() == nil {
			t.Errorf("Commit with NoWait to rank %d failed and ended the Prepared", to)
		}
		if err := h.Post(am.NoWait, l[0], to); !errors.Is(err, am.ErrClosed) {
			t.Errorf("Post with NoWait to rank %d: %v", to, err)
		}
	}
}
