package amtest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
)

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
				p = am.Long(part+uint64(c.Endpoint().Rank())*1024, back)
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
	g.each(func(rank int, l *am.Endpoint) error {
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

func (g *group) turn(h *am.Handler, rank int, l *am.Endpoint, to, nargs, cat int, first, seed uint64) error {
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

// answer is what a handler of core4 makes of its request.
type answer int

const (
	answerNothing answer = iota
	answerShort
	answerMedium
	answerLong
	answers
)

// form is a way to send a request.
type form int

const (
	byCall form = iota
	byStart
	byPost
	byTryPost
	byCommitCall // the forms of Prepare, which are for Medium only
	byCommit
	byTryCommit
	forms
)

func (f form) wants() bool { return f == byCall || f == byStart || f == byCommitCall }

const mostMedium = 600 // bytes, in core4

// core4 sends every category with every number of arguments in every form to handlers of every kind
// of reply. What came is summed up at the target, and the reply follows from what came.
func (g *group) core4() {
	sums := make([]atomic.Uint64, len(g.ranks)*len(g.ranks)) // of digests: from, to
	var handlers [answers]*am.Handler
	for a := range answers {
		handlers[a] = g.table.Handle(fmt.Sprintf("answer %d", a), func(c *am.Call) {
			_, isLong := c.Offset()
			d := digest(isLong, c.Args(), c.Payload())
			sums[c.From()*len(g.ranks)+c.Endpoint().Rank()].Add(d)
			if a == answerNothing {
				return
			}
			args, b, p := expected(a, d, c.Endpoint().Rank())
			if err := c.ReplyWith(p, args...); err != nil {
				panic(err)
			}
			clear(b) // it may be reused at once
		})
	}
	g.open(am.Config{MaxMedium: mostMedium, Credits: 6, Replies: 2, Spares: 1, Sends: 3, ReplySends: 1})
	step := am.MaxArgs // fewer rounds try fewer numbers of arguments, none and all of them always
	switch {
	case g.o.Rounds >= 60:
		step = 1
	case g.o.Rounds >= 20:
		step = 4
	}
	g.each(func(rank int, l *am.Endpoint) error {
		rng := source(rank, 4)
		want := make([]uint64, len(g.endpoints))
		for nargs := 0; nargs <= am.MaxArgs; nargs += step {
			for _, r := range requests(rank, nargs, rng.Uint64()) {
				to := g.other(rank, rng)
				for a := range answers {
					if err := g.ask(handlers[a], l, to, a, r); err != nil {
						return fmt.Errorf("%v, reply %d, to rank %d: %w", r, a, to, err)
					}
					want[to] += r.digest()
					came := &sums[rank*len(g.endpoints)+to]
					if !r.form.wants() { // the next Long may overwrite this one before its handler has run
						if err := g.until(l, func() bool { return came.Load() == want[to] }); err != nil {
							return fmt.Errorf("%v, reply %d, to rank %d did not come: %w", r, a, to, err)
						}
					}
					if got := came.Load(); got != want[to] {
						return fmt.Errorf("%v, reply %d, came to rank %d as something else", r, a, to)
					}
				}
			}
		}
		return nil
	})
}

// call is a request of core4.
type call struct {
	form   form
	isLong bool
	off    uint64
	args   []uint64
	bytes  []byte
}

func (r call) String() string {
	return fmt.Sprintf("form %d, long %v, %d arguments, %d bytes", r.form, r.isLong, len(r.args), len(r.bytes))
}

func (r call) digest() uint64 { return digest(r.isLong, r.args, r.bytes) }

func (r call) payload() am.Payload {
	switch {
	case r.isLong:
		return am.Long(r.off, r.bytes)
	case len(r.bytes) > 0:
		return am.Medium(r.bytes)
	}
	return am.Payload{}
}

// requests are all with so many arguments. Each rank writes to a place of its own.
func requests(rank, nargs int, seed uint64) (all []call) {
	args := make([]uint64, nargs)
	for i := range args {
		args[i] = seed * uint64(i+1)
	}
	for _, isLong := range []bool{false, true} {
		for _, size := range []int{0, 1, mostMedium} {
			b := make([]byte, size)
			fill(b, seed+uint64(size))
			for f := range forms {
				if f < byCommitCall || !isLong {
					all = append(all, call{f, isLong, uint64(rank) * 1024, args, b})
				}
			}
		}
	}
	return all
}

func digest(isLong bool, args []uint64, payload []byte) uint64 {
	d := sum(payload) + uint64(len(args))*3
	if isLong {
		d++
	}
	for _, a := range args {
		d = d*1099511628211 ^ a
	}
	return d
}

// expected is the reply of a rank to a request with digest d.
func expected(a answer, d uint64, rank int) (args []uint64, b []byte, p am.Payload) {
	if a == answerNothing {
		return nil, nil, p
	}
	args = make([]uint64, d%(am.MaxArgs+1))
	for i := range args {
		args[i] = d + uint64(i)
	}
	if a == answerShort {
		return args, nil, p
	}
	b = make([]byte, []int{0, 1, mostMedium}[d%3])
	fill(b, d)
	if a == answerMedium {
		return args, b, am.Medium(b)
	}
	return args, b, am.Long(segmentSize/2+uint64(rank)*1024, b)
}

// ask sends a request and checks the reply, if it has one.
func (g *group) ask(h *am.Handler, l *am.Endpoint, to int, a answer, r call) error {
	reply, err := g.submit(h, l, to, r)
	if err != nil || !r.form.wants() {
		return err
	}
	args, want, _ := expected(a, r.digest(), to)
	if fmt.Sprint(reply.Args()) != fmt.Sprint(args) {
		return fmt.Errorf("arguments %x came back, want %x", reply.Args(), args)
	}
	if string(reply.Data) != string(want) {
		return fmt.Errorf("%d bytes came back, want %d", len(reply.Data), len(want))
	}
	return nil
}

func (g *group) submit(h *am.Handler, l *am.Endpoint, to int, r call) (am.Reply, error) {
	switch r.form {
	case byCall:
		return h.CallWith(g.ctx, l, to, r.payload(), r.args...)
	case byStart:
		p, err := h.Start(g.ctx, l, to, r.payload(), r.args...)
		if err != nil {
			return am.Reply{}, err
		}
		return p.Wait(g.ctx)
	case byPost:
		return am.Reply{}, h.PostWith(g.ctx, l, to, r.payload(), r.args...)
	case byTryPost:
		return am.Reply{}, g.insist(l, func() error { return h.PostWith(am.NoWait, l, to, r.payload(), r.args...) })
	}
	p, err := h.Prepare(g.ctx, l, to, len(r.bytes))
	if err != nil {
		return am.Reply{}, err
	}
	copy(p.Bytes(), r.bytes)
	switch r.form {
	case byCommitCall:
		return p.CommitCall(g.ctx, r.args...)
	case byCommit:
		return am.Reply{}, p.Commit(g.ctx, r.args...)
	}
	err = g.insist(l, func() error { return p.Commit(am.NoWait, r.args...) })
	p.Cancel() // which does nothing after the end
	return am.Reply{}, err
}

// insist tries something that does not wait until it is done, with progress in between.
func (g *group) insist(l *am.Endpoint, try func() error) error {
	for k := 0; ; k++ {
		err := try()
		if err == nil || !obstacle(err) {
			return err
		}
		if g.ctx.Err() != nil {
			return fmt.Errorf("in vain: %w", err)
		}
		if err := g.progress(l, k); err != nil {
			return err
		}
	}
}

// obstacle reports whether an error is one of those that go away.
func obstacle(err error) bool {
	for _, e := range []error{am.ErrNoCredit, am.ErrNoBuffer, am.ErrNotConnected, am.ErrQueueFull, am.ErrNoReply} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
