package amtest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
)

// token checks what a handler is told about its request.
func (g *group) token() {
	seen := g.table.Handle("seen", func(c *am.Call) {
		off, isLong := c.Offset()
		flags := uint64(0)
		if isLong {
			flags |= 1
		}
		if c.Wanted() {
			flags |= 2
		}
		_ = c.Reply(uint64(c.From()), uint64(c.Endpoint().Rank()), uint64(c.Len()), uint64(len(c.Payload())), off, flags, c.Arg(99))
		if err := c.Reply(1); !errors.Is(err, am.ErrAnswered) {
			panic(fmt.Sprintf("a second reply: %v", err))
		}
		if c.Defer(0) != nil {
			panic("deferred after the reply")
		}
	})
	other := am.NewTable().Handle("stranger", func(*am.Call) {})
	g.open(am.Config{})
	g.each(func(rank int, l *am.Endpoint) error {
		for to := range g.endpoints {
			for i, p := range []am.Payload{{}, am.Medium(make([]byte, 9)), am.Long(uint64(rank)*64, make([]byte, 7))} {
				r, err := seen.CallWith(g.ctx, l, to, p, 5, 6)
				if err != nil {
					return err
				}
				want := [7]uint64{uint64(rank), uint64(to), 2, []uint64{0, 9, 7}[i], 0, 2, 0}
				if i == 2 {
					want[4], want[5] = uint64(rank)*64, 3
				}
				if [7]uint64(r.Args()) != want {
					return fmt.Errorf("category %d to rank %d: %v, want %v", i, to, r.Args(), want)
				}
			}
		}
		var e *fabric.RankError
		if _, err := seen.Call(g.ctx, l, len(g.endpoints)); !errors.As(err, &e) {
			return fmt.Errorf("a rank that does not exist: %v", err)
		}
		if err := other.Post(g.ctx, l, 0); err == nil || !strings.Contains(err.Error(), "another table") {
			return fmt.Errorf("a handler of another table: %v", err)
		}
		return nil
	})
}

// deferred answers later, from elsewhere, and too late.
func (g *group) deferred() {
	tokens := make([][]*am.DeferredReply, len(g.ranks))
	var lock atomic.Int32 // the host's tasks may not block on a mutex; a turn of this is short
	with := func(f func()) {
		for !lock.CompareAndSwap(0, 1) {
			g.o.Host.Yield()
		}
		f()
		lock.Store(0)
	}
	h := g.table.Handle("later", func(c *am.Call) {
		d := time.Duration(0)
		if c.Arg(0) == 1 {
			d = time.Millisecond
		}
		t := c.Defer(d)
		if err := c.Reply(); !errors.Is(err, am.ErrOver) {
			panic(fmt.Sprintf("reply after Defer: %v", err))
		}
		rank := c.Endpoint().Rank()
		with(func() { tokens[rank] = append(tokens[rank], t) })
	})
	g.open(am.Config{})
	var left, expired atomic.Int32
	left.Store(int32(len(g.endpoints)))
	answer := func(rank int) error {
		for left.Load() > 0 && g.ctx.Err() == nil {
			var t *am.DeferredReply
			with(func() {
				if n := len(tokens[rank]); n > 0 {
					t, tokens[rank] = tokens[rank][n-1], tokens[rank][:n-1]
				}
			})
			if t == nil {
				g.o.Host.Sleep(time.Millisecond)
				continue
			}
			if t.From()%2 == 0 { // even ranks want theirs to expire
				g.o.Host.Sleep(3 * time.Millisecond)
			}
			err := t.Reply(uint64(t.From()) + 100)
			if again := t.Reply(); again == nil || err == nil && !errors.Is(again, am.ErrAnswered) {
				return fmt.Errorf("a second reply: %v after %v", again, err)
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
		}
		return nil
	}
	g.several(2, func(rank, i int, l *am.Endpoint) error {
		if i == 1 {
			return answer(rank)
		}
		defer left.Add(-1)
		to := (rank + 1) % len(g.endpoints)
		for range 5 {
			r, err := h.Call(g.ctx, l, to, uint64((rank+1)%2))
			var late *am.RemoteError
			switch {
			case err == nil && r.Arg(0) == uint64(rank)+100:
			case rank%2 == 0 && errors.As(err, &late) && late.Reason == am.NoAnswer && late.Rank == to:
				expired.Add(1)
			default:
				return fmt.Errorf("deferred reply: %v, %w", r.Args(), err)
			}
		}
		return nil
	})
	if expired.Load() == 0 {
		g.Fatalf("no reply came too late: nothing was proved of those")
	}
}

// panics has handlers panic; the caller hears it, and everything goes on.
func (g *group) panics() {
	h := g.table.Handle("boom", func(c *am.Call) {
		if c.Arg(0)%2 == 0 {
			panic(fmt.Sprintf("no even numbers like %d", c.Arg(0)))
		}
		_ = c.Reply(c.Arg(0))
	})
	g.open(am.Config{Credits: 2, Replies: 2})
	g.each(func(rank int, l *am.Endpoint) error {
		for to := range g.endpoints {
			for i := range uint64(10) {
				r, err := h.Call(g.ctx, l, to, i)
				var e *am.RemoteError
				switch {
				case i%2 == 1 && err == nil && r.Arg(0) == i:
				case i%2 == 0 && errors.As(err, &e) && e.Rank == to && e.Handler == "boom" && e.Reason == am.Panicked &&
					strings.Contains(e.Text, fmt.Sprintf("like %d", i)):
				default:
					return fmt.Errorf("call %d to rank %d: %v", i, to, err)
				}
				if err := h.Post(g.ctx, l, to, 2); err != nil { // nobody hears of that
					return err
				}
			}
		}
		return nil
	})
	g.settle()
	for i, l := range g.endpoints {
		if s := l.Stats(); s.Panics != uint64(15*len(g.endpoints)) || len(l.Errors()) == 0 {
			g.Fatalf("rank %d: %d panics, %d errors kept", i, s.Panics, len(l.Errors()))
		}
	}
}

// self sends to itself.
func (g *group) self() {
	h := g.table.Handle("mirror", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload()), c.Args()...) })
	g.open(am.Config{})
	g.each(func(rank int, l *am.Endpoint) error {
		b := make([]byte, 300)
		fill(b, uint64(rank))
		r, err := h.CallWith(g.ctx, l, rank, am.Medium(b), 1, 2)
		if err != nil || string(r.Data) != string(b) || r.Arg(1) != 2 {
			return fmt.Errorf("medium: %d bytes, %v, %w", len(r.Data), r.Args(), err)
		}
		if r, err = h.CallWith(g.ctx, l, rank, am.Long(8, b), 3); err != nil || string(g.ranks[rank].Segment[8:308]) != string(b) {
			return fmt.Errorf("long: %v, %w", r.Args(), err)
		}
		var e *am.RemoteError
		if _, err = h.CallWith(g.ctx, l, rank, am.Long(segmentSize, b)); !errors.As(err, &e) || e.Reason != am.Refused {
			return fmt.Errorf("beyond the segment: %v", err)
		}
		return h.Post(g.ctx, l, rank, 1)
	})
}
