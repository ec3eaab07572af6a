package amtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/fabric"
)

// core1 puts and gets blocks of a neighbour's memory by messages, and compares checksums that
// depend on the order of all puts.
func (g *group) core1() {
	const block = 64
	chain := make([]atomic.Uint64, len(g.ranks)) // of each rank, over what was put into it
	put := g.table.Handle("put", func(c *am.Call) {
		copy(g.ranks[c.Lane().Rank()].Segment[c.Arg(0):], c.Payload())
		x := &chain[c.Lane().Rank()]
		x.Store(x.Load()*31 + sum(c.Payload()))
		_ = c.Reply(x.Load())
	})
	get := g.table.Handle("get", func(c *am.Call) {
		off := c.Arg(0)
		_ = c.ReplyWith(am.Medium(g.ranks[c.Lane().Rank()].Segment[off:off+c.Arg(1)]), off)
	})
	g.open(am.Config{})
	g.each(func(rank int, l *am.Lane) error {
		to, b, want := (rank+1)%len(g.lanes), make([]byte, block), uint64(0)
		for i := range g.o.Rounds {
			off := uint64(i * block % segmentSize)
			fill(b, uint64(i+rank))
			want = want*31 + sum(b)
			r, err := put.CallWith(g.ctx, l, to, am.Medium(b), off)
			if err != nil {
				return err
			}
			if r.Len() != 1 || r.Arg(0) != want {
				return fmt.Errorf("put %d: the chain is %#x, want %#x", i, r.Arg(0), want)
			}
			if r, err = get.Call(g.ctx, l, to, off, block); err != nil {
				return err
			}
			if string(r.Data) != string(b) || r.Arg(0) != off {
				return fmt.Errorf("get %d brought something else than was put", i)
			}
		}
		return nil
	})
}

// core2 sends payloads of all sizes, written by the program and in place, several at a time.
func (g *group) core2() {
	echo := g.table.Handle("echo", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload()), sum(c.Payload())) })
	g.open(am.Config{MaxMedium: 1024, Credits: 8, Replies: 8, Spares: 2})
	g.several(4, func(rank, i int, l *am.Lane) error {
		rng := source(rank, i)
		b := make([]byte, 1024)
		for n := i; n <= 1024; n += 1 + rng.IntN(60) {
			to := g.other(rank, rng)
			fill(b, rng.Uint64())
			var r am.Reply
			p, err := echo.Prepare(g.ctx, l, to, n)
			if err != nil {
				return err
			}
			if len(p.Bytes()) != n {
				return fmt.Errorf("%d bytes were prepared in place of %d", len(p.Bytes()), n)
			}
			copy(p.Bytes(), b)
			if rng.IntN(2) == 0 {
				r, err = p.CommitCall(g.ctx)
			} else {
				p.Cancel()
				p.Cancel() // which does nothing
				r, err = echo.CallWith(g.ctx, l, to, am.Medium(b[:n]))
			}
			if err != nil {
				return err
			}
			if r.Arg(0) != sum(b[:n]) || string(r.Data) != string(b[:n]) {
				return fmt.Errorf("%d bytes came back as %d others", n, len(r.Data))
			}
		}
		var size *am.SizeError
		if _, err := echo.CallWith(g.ctx, l, g.other(rank, rng), am.Medium(make([]byte, 1025))); !errors.As(err, &size) {
			return fmt.Errorf("a payload of MaxMedium+1 bytes: %v", err)
		}
		return nil
	})
}

// core3 sends every category with every number of arguments and gets every category back.
func (g *group) core3() {
	const part = segmentSize / 2 // the lower half is for requests, the upper for replies
	h := g.table.Handle("turn", func(c *am.Call) {
		args := make([]uint64, c.Len())
		for i, a := range c.Args() {
			args[len(args)-1-i] = ^a
		}
		var p am.Payload
		back := append([]byte(nil), c.Payload()...)
		if c.Len() > 0 && len(back) > 0 {
			switch c.Arg(0) % 3 {
			case 1:
				p = am.Medium(back)
			case 2:
				p = am.Long(part+uint64(c.Lane().Rank())*1024, back)
			}
		}
		if err := c.ReplyWith(p, args...); err != nil {
			panic(err)
		}
		for i := range back { // it may be reused at once
			back[i] = 0xEE
		}
	})
	g.open(am.Config{})
	g.each(func(rank int, l *am.Lane) error {
		rng := source(rank, 0)
		for n := range am.MaxArgs + 1 {
			for cat := range 3 {
				for back := range uint64(3) {
					if err := g.turn(h, rank, l, g.other(rank, rng), n, cat, back*7+3*uint64(n), rng.Uint64()); err != nil {
						return fmt.Errorf("category %d, %d arguments, reply %d: %w", cat, n, back, err)
					}
				}
			}
		}
		var size *am.SizeError
		if _, err := h.Call(g.ctx, l, g.other(rank, rng), make([]uint64, am.MaxArgs+1)...); !errors.As(err, &size) {
			return fmt.Errorf("too many arguments: %v", err)
		}
		return nil
	})
}

func (g *group) turn(h *am.Handler, rank int, l *am.Lane, to, nargs, cat int, first, seed uint64) error {
	args := make([]uint64, nargs)
	for i := range args {
		args[i] = first + uint64(i)*seed
	}
	b := make([]byte, 100)
	fill(b, seed)
	var p am.Payload
	switch cat {
	case 1:
		p = am.Medium(b)
	case 2:
		p = am.Long(uint64(rank)*1024, b)
	}
	r, err := h.CallWith(g.ctx, l, to, p, args...)
	if err != nil {
		return err
	}
	if r.Len() != nargs || r.Arg(nargs) != 0 {
		return fmt.Errorf("%d arguments came back", r.Len())
	}
	for i, a := range r.Args() {
		if a != ^args[nargs-1-i] {
			return fmt.Errorf("argument %d came back as %#x", i, a)
		}
	}
	if want := nargs > 0 && cat > 0 && first%3 > 0; want != (len(r.Data) > 0) || want && string(r.Data) != string(b) {
		return fmt.Errorf("payload of %d bytes came back, wanted: %v", len(r.Data), want)
	}
	return nil
}

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
		_ = c.Reply(uint64(c.From()), uint64(c.Lane().Rank()), uint64(c.Len()), uint64(len(c.Payload())), off, flags, c.Arg(99))
		if err := c.Reply(1); !errors.Is(err, am.ErrAnswered) {
			panic(fmt.Sprintf("a second reply: %v", err))
		}
		if c.Defer(0) != nil {
			panic("deferred after the reply")
		}
	})
	other := am.NewTable().Handle("stranger", func(*am.Call) {})
	g.open(am.Config{})
	g.each(func(rank int, l *am.Lane) error {
		for to := range g.lanes {
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
		if _, err := seen.Call(g.ctx, l, len(g.lanes)); !errors.As(err, &e) {
			return fmt.Errorf("a rank that does not exist: %v", err)
		}
		if err := other.Post(g.ctx, l, 0); err == nil || !strings.Contains(err.Error(), "another table") {
			return fmt.Errorf("a handler of another table: %v", err)
		}
		return nil
	})
}

// alltoall has every rank send to every other: in order of ranks, in rotation, at random.
func (g *group) alltoall() {
	counts := make([]atomic.Uint64, len(g.ranks)*len(g.ranks)) // from, to
	h := g.table.Handle("count", func(c *am.Call) {
		counts[c.From()*len(g.ranks)+c.Lane().Rank()].Add(c.Arg(0))
		_ = c.Reply(c.Arg(0) + 1)
	})
	g.open(am.Config{Credits: 8, Replies: 4})
	size := len(g.lanes)
	for pattern := range 3 {
		g.each(func(rank int, l *am.Lane) error {
			rng := source(rank, pattern)
			order := rng.Perm(size)
			for i := range size * max(1, g.o.Rounds/size) {
				to := i % size
				switch pattern {
				case 1:
					to = (rank + i) % size
				case 2:
					to = order[i%size]
				}
				if i%2 == 0 {
					if err := h.PostWith(g.ctx, l, to, am.Medium(make([]byte, 10*pattern)), 1); err != nil {
						return err
					}
					continue
				}
				if r, err := h.Call(g.ctx, l, to, 1); err != nil || r.Arg(0) != 2 {
					return fmt.Errorf("call: %d, %w", r.Arg(0), err)
				}
			}
			return nil
		})
	}
	g.settle()
	want := uint64(3 * max(1, g.o.Rounds/size))
	for i := range counts {
		if got := counts[i].Load(); got != want {
			g.Fatalf("rank %d had %d messages of rank %d, want %d", i%size, got, i/size, want)
		}
	}
}

// immediate uses the forms that do not wait, for all that they can send.
func (g *group) immediate() {
	var got atomic.Uint64
	h := g.table.Handle("got", func(c *am.Call) { got.Add(c.Arg(0)) })
	g.open(am.Config{Credits: 4, Sends: 4})
	var sent, refused atomic.Uint64
	g.each(func(rank int, l *am.Lane) error {
		rng := source(rank, 0)
		for i := range g.o.Rounds {
			for {
				to := g.other(rank, rng)
				err := g.tryOne(h, l, to, i%4)
				if err == nil {
					sent.Add(1)
					break
				}
				switch {
				case errors.Is(err, am.ErrNoCredit), errors.Is(err, am.ErrNoBuffer), errors.Is(err, am.ErrNotConnected), errors.Is(err, am.ErrQueueFull):
				default:
					return err
				}
				if refused.Add(1); g.ctx.Err() != nil {
					return context.Cause(g.ctx)
				}
				if _, err := l.Test(); err != nil {
					return err
				}
			}
		}
		return nil
	})
	g.settle()
	if got.Load() != sent.Load() || refused.Load() == 0 {
		g.Fatalf("%d were sent, %d came, %d were refused", sent.Load(), got.Load(), refused.Load())
	}
}

func (g *group) tryOne(h *am.Handler, l *am.Lane, to, form int) error {
	switch form {
	case 0:
		return h.TryPost(l, to, 1)
	case 1:
		return h.TryPostWith(l, to, am.Medium(make([]byte, 100)), 1)
	case 2:
		return h.TryPostWith(l, to, am.Long(0, make([]byte, 100)), 1)
	}
	p, err := h.TryPrepare(l, to, 100)
	if err != nil {
		return err
	}
	if err := p.TryCommit(1); err != nil {
		p.Cancel()
		return err
	}
	return nil
}

// contend has many goroutines use one lane, with fewer buffers than goroutines.
func (g *group) contend() {
	h := g.table.Handle("double", func(c *am.Call) { _ = c.Reply(2 * c.Arg(0)) })
	g.open(am.Config{Credits: 3, Replies: 5, Sends: 3, ReplySends: 1})
	g.several(16, func(rank, i int, l *am.Lane) error {
		rng := source(rank, i)
		for range max(1, g.o.Rounds/4) {
			x := rng.Uint64() >> 1
			r, err := h.Call(g.ctx, l, g.other(rank, rng), x)
			if err != nil {
				return err
			}
			if r.Arg(0) != 2*x {
				return fmt.Errorf("twice %d is %d", x, r.Arg(0))
			}
		}
		return nil
	})
}

// slice writes random parts of a neighbour's segment and compares with a model.
func (g *group) slice() {
	h := g.table.Handle("sum", func(c *am.Call) {
		if off, ok := c.Offset(); !ok || off != c.Arg(0) {
			panic("not the offset")
		}
		_ = c.Reply(sum(c.Payload()), sum(g.ranks[c.Lane().Rank()].Segment))
	})
	quiet := g.table.Handle("quiet", func(*am.Call) {}) // what it wrote may be overwritten before it runs
	g.open(am.Config{MaxMedium: 1024})
	g.each(func(rank int, l *am.Lane) error {
		rng, to := source(rank, 0), (rank+1)%len(g.lanes)
		model := make([]byte, segmentSize)
		for range g.o.Rounds {
			off := rng.IntN(segmentSize + 1)
			b := make([]byte, rng.IntN(min(8192, segmentSize-off)+1))
			fill(b, rng.Uint64())
			copy(model[off:], b)
			var err error
			var r am.Reply
			if rng.IntN(3) == 0 {
				if err = quiet.PostWith(g.ctx, l, to, am.Long(uint64(off), b)); err == nil {
					want := append([]byte(nil), b...)
					fill(b, 1) // it may be reused
					b = want
				}
			}
			if err == nil {
				r, err = h.CallWith(g.ctx, l, to, am.Long(uint64(off), b), uint64(off))
			}
			if err != nil {
				return err
			}
			if r.Arg(0) != sum(b) || r.Arg(1) != sum(model) {
				return fmt.Errorf("%d bytes at %d are not what was written", len(b), off)
			}
		}
		var e *fabric.BoundsError
		if _, err := h.CallWith(g.ctx, l, to, am.Long(segmentSize-1, make([]byte, 2)), 0); !errors.As(err, &e) {
			return fmt.Errorf("beyond the segment: %v", err)
		}
		return nil
	})
}

// deferred answers later, from elsewhere, and too late.
func (g *group) deferred() {
	tokens := make([][]*am.Token, len(g.ranks))
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
		rank := c.Lane().Rank()
		with(func() { tokens[rank] = append(tokens[rank], t) })
	})
	g.open(am.Config{})
	var left atomic.Int32
	left.Store(int32(len(g.lanes)))
	answer := func(rank int) error {
		for left.Load() > 0 && g.ctx.Err() == nil {
			var t *am.Token
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
	g.several(2, func(rank, i int, l *am.Lane) error {
		if i == 1 {
			return answer(rank)
		}
		defer left.Add(-1)
		to := (rank + 1) % len(g.lanes)
		for range 5 {
			r, err := h.Call(g.ctx, l, to, uint64((rank+1)%2))
			var late *am.RemoteError
			switch {
			case err == nil && r.Arg(0) == uint64(rank)+100:
			case rank%2 == 0 && errors.As(err, &late) && late.Reason == am.NoAnswer && late.Rank == to:
			default:
				return fmt.Errorf("deferred reply: %v, %w", r.Args(), err)
			}
		}
		return nil
	})
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
	g.each(func(rank int, l *am.Lane) error {
		for to := range g.lanes {
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
	for i, l := range g.lanes {
		if s := l.Stats(); s.Panics != uint64(15*len(g.lanes)) || len(l.Errors()) == 0 {
			g.Fatalf("rank %d: %d panics, %d errors kept", i, s.Panics, len(l.Errors()))
		}
	}
}

// cancelled gives up calls in all of their stages.
func (g *group) cancelled() {
	h := g.table.Handle("slow", func(c *am.Call) { c.Defer(10 * time.Millisecond) })
	fast := g.table.Handle("fast", func(c *am.Call) { _ = c.Reply(7) })
	g.open(am.Config{Credits: 2, Replies: 2, Sends: 2})
	g.several(4, func(rank, i int, l *am.Lane) error {
		rng := source(rank, i)
		for k := range max(1, g.o.Rounds/10) {
			ctx, cancel := g.o.Host.WithTimeout(g.ctx, time.Duration(rng.IntN(3000))*time.Microsecond)
			_, err := h.Call(ctx, l, g.other(rank, rng))
			cancel()
			var late *am.RemoteError
			if !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &late) {
				return fmt.Errorf("call %d: %w", k, err)
			}
		}
		r, err := fast.Call(g.ctx, l, g.other(rank, rng))
		if err != nil || r.Arg(0) != 7 {
			return fmt.Errorf("afterwards: %v, %w", r.Args(), err)
		}
		return nil
	})
}

// self sends to itself.
func (g *group) self() {
	h := g.table.Handle("mirror", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload()), c.Args()...) })
	g.open(am.Config{})
	g.each(func(rank int, l *am.Lane) error {
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

// death kills a rank while everybody calls it. Each call ends once, and the others go on.
func (g *group) death() {
	const victim = 1
	var serving atomic.Uint64
	h := g.table.Handle("serve", func(c *am.Call) {
		if c.Lane().Rank() == victim && serving.Add(1) > 20 {
			c.Defer(0) // for ever
			return
		}
		_ = c.Reply(c.Arg(0))
	})
	g.open(am.Config{Credits: 8, Replies: 8})
	g.dead[victim] = true
	g.several(4, func(rank, i int, l *am.Lane) error {
		if rank == victim {
			for i == 0 && serving.Load() < 25 && g.ctx.Err() == nil {
				g.o.Host.Sleep(time.Millisecond)
			}
			if i == 0 {
				g.o.Kill(victim)
			}
			return nil
		}
		rng := source(rank, i)
		for k := uint64(0); ; k++ {
			r, err := h.Call(g.ctx, l, victim, k)
			if err == nil && r.Arg(0) == k {
				continue
			}
			var e *fabric.PeerDownError
			if !errors.As(err, &e) || e.Rank != victim {
				return fmt.Errorf("call %d: %v", k, err)
			}
			break
		}
		if err := h.Post(g.ctx, l, victim); !errors.Is(err, fabric.ErrPeerDown) {
			return fmt.Errorf("post to a dead rank: %v", err)
		}
		for k := range uint64(20) { // the others
			to := g.other(rank, rng)
			if to == victim {
				continue
			}
			if r, err := h.Call(g.ctx, l, to, k); err != nil || r.Arg(0) != k {
				return fmt.Errorf("call to rank %d: %v, %w", to, r.Args(), err)
			}
		}
		return nil
	})
}
