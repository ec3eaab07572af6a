package am_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

func TestACallerIsToldOfAReplyThatCannotBeMade(t *testing.T) {
	table := am.NewTable()
	far := table.Handle("long beyond the segment", func(c *am.Call) { _ = c.ReplyWith(am.Long(60, make([]byte, 8))) })
	later := table.Handle("the same, deferred", func(c *am.Call) {
		tok := c.Defer(0)
		go func() { _ = tok.ReplyWith(am.Long(60, make([]byte, 8))) }()
	})
	big := table.Handle("large", func(c *am.Call) { _ = c.ReplyWith(am.Medium(make([]byte, c.Endpoint().MaxMedium()+1))) })
	many := table.Handle("many arguments", func(c *am.Call) { _ = c.Reply(make([]uint64, am.MaxArgs+1)...) })
	again := table.Handle("again with less", func(c *am.Call) {
		if c.Reply(make([]uint64, am.MaxArgs+1)...) == nil {
			panic("17 arguments fit")
		}
		_ = c.Reply(7)
	})
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, StallAfter: 20 * time.Second})
	for to := range l {
		for _, h := range []*am.Handler{far, later, big, many} {
			var re *am.RemoteError
			if r, err := h.Call(bounded(t), l[0], to); !errors.As(err, &re) || re.Reason != am.TooLarge || re.Text == "" {
				t.Errorf("%s on rank %d: %v, %v", h.Name(), to, r, err)
			}
		}
		if r, err := again.Call(bounded(t), l[0], to); err != nil || r.Arg(0) != 7 {
			t.Errorf("on rank %d: %v, %v", to, r, err)
		}
		for _, x := range l {
			// A caller may have its reply before the handler has returned.
			eventually(t, "all handlers have ended", func() bool { return x.Stats().Handling == 0 })
			if s := x.Stats(); s.Check() != nil || s.Owed != 0 {
				t.Errorf("%v; %d replies are owed", s.Check(), s.Owed)
			}
		}
	}
}

// Who appends to a payload gets memory of its own.
func TestPayloadsEndWhereTheMessageDoes(t *testing.T) {
	table := am.NewTable()
	grow := table.Handle("grow", func(c *am.Call) {
		_ = append(c.Payload(), "xxxx"...)
		_ = c.ReplyWith(am.Long(8, []byte("reply")))
	})
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, StallAfter: 5 * time.Second})
	for to := range l {
		mine := []byte("payload, and what the caller keeps behind it")
		for _, p := range []am.Payload{am.Medium(mine[:7]), am.Long(32, mine[:7])} {
			r, err := grow.CallWith(bounded(t), l[0], to, p)
			if err != nil || string(r.Data) != "reply" || cap(r.Data) != len(r.Data) {
				t.Errorf("rank %d replies %q with room for %d: %v", to, r.Data, cap(r.Data), err)
			}
		}
		if string(mine) != "payload, and what the caller keeps behind it" {
			t.Errorf("a handler of rank %d left its caller with %q", to, mine)
		}
	}
}

func TestTheTextOfAPanicIsCutBetweenCharacters(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("h", func(c *am.Call) { panic(strings.Repeat("x", int(c.Arg(0))) + strings.Repeat("é", 1<<20)) })
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
	for to := range l {
		for pad := range uint64(2) {
			_, err := h.Call(bounded(t), l[0], to, pad)
			var re *am.RemoteError
			if !errors.As(err, &re) || len(re.Text) < 500 || len(re.Text) > 512 || !utf8.ValidString(re.Text) {
				t.Errorf("%d bytes of text, %q", len(fmt.Sprint(err)), fmt.Sprint(err)[:80])
			}
		}
		for _, e := range l[to].Errors() {
			if n := len(e.Err.Error()); n > 1000 {
				t.Errorf("rank %d keeps an error of %d bytes", to, n)
			}
		}
	}
}

func TestAPanicAfterDeferIsTheCallersErrorAtOnce(t *testing.T) {
	table := am.NewTable()
	var tok *am.DeferredReply
	h := table.Handle("h", func(c *am.Call) {
		tok = c.Defer(time.Hour)
		panic("out of cheese")
	})
	answered := table.Handle("answered before", func(c *am.Call) {
		_ = c.Defer(time.Hour).Reply(7)
		panic("out of cheese")
	})
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, StallAfter: 20 * time.Second})
	for to := range l {
		var re *am.RemoteError
		if _, err := h.Call(bounded(t), l[0], to); !errors.As(err, &re) || re.Reason != am.Panicked || re.Text != "out of cheese" {
			t.Errorf("rank %d: %v", to, err)
		}
		if err := tok.Reply(); !errors.Is(err, am.ErrAnswered) {
			t.Errorf("the token afterwards: %v", err)
		}
		if r, err := answered.Call(bounded(t), l[0], to); err != nil || r.Arg(0) != 7 {
			t.Errorf("rank %d: %v, %v", to, r, err)
		}
	}
}
