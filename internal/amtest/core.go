package amtest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
)

// core1 puts and gets blocks of a neighbour's memory by messages, and compares checksums that
// depend on the order of all puts.
func (g *group) core1() {
	const block = 64
	chain := make([]atomic.Uint64, len(g.ranks)) // of each rank, over what was put into it
	put := g.table.Handle("put", func(c *am.Call) {
		copy(g.ranks[c.Endpoint().Rank()].Segment[c.Arg(0):], c.Payload())
		x := &chain[c.Endpoint().Rank()]
		x.Store(x.Load()*31 + sum(c.Payload()))
		_ = c.Reply(x.Load())
	})
	get := g.table.Handle("get", func(c *am.Call) {
		off := c.Arg(0)
		_ = c.ReplyWith(am.Medium(g.ranks[c.Endpoint().Rank()].Segment[off:off+c.Arg(1)]), off)
	})
	g.open(am.Config{})
	g.each(func(rank int, l *am.Endpoint) error {
		to, b, want := (rank+1)%len(g.endpoints), make([]byte, block), uint64(0)
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
	g.several(4, func(rank, i int, l *am.Endpoint) error {
		rng := source(rank, i)
		b := make([]byte, 1024)
		sizes := []int{0, 1, 7, 8, 9, 1023, 1024}
		for n := i; n < 1024; n += 1 + rng.IntN(60) {
			sizes = append(sizes, n)
		}
		for _, n := range sizes {
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

// slice writes random parts of a neighbour's segment and compares with a model.
func (g *group) slice() {
	h := g.table.Handle("sum", func(c *am.Call) {
		if off, ok := c.Offset(); !ok || off != c.Arg(0) {
			panic("not the offset")
		}
		_ = c.Reply(sum(c.Payload()), sum(g.ranks[c.Endpoint().Rank()].Segment))
	})
	quiet := g.table.Handle("quiet", func(*am.Call) {}) // what it wrote may be overwritten before it runs
	g.open(am.Config{MaxMedium: 1024})
	g.each(func(rank int, l *am.Endpoint) error {
		rng, to := source(rank, 0), (rank+1)%len(g.endpoints)
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
