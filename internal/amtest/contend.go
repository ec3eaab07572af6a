package amtest

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// contend has ever more goroutines use one endpoint, soon more than there are buffers.
func (g *group) contend() {
	var handled atomic.Uint64
	h := g.table.Handle("double", func(c *am.Call) {
		handled.Add(1)
		_ = c.Reply(2 * c.Arg(0))
	})
	g.open(am.Config{Credits: 3, Replies: 5, Sends: 3, ReplySends: 1})
	want := uint64(0)
	for n := 1; n <= 64; n *= 4 {
		each := max(1, g.o.Rounds/n)
		g.several(n, func(rank, i int, l *am.Endpoint) error {
			rng := source(rank, i)
			for range each {
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
		if want += uint64(n * each * len(g.endpoints)); handled.Load() != want {
			g.Fatalf("%d calls were handled of %d", handled.Load(), want)
		}
	}
}

// threads has goroutines of all ranks do everything at once, each with a partner of the same number
// at another rank, whose words only it changes.
func (g *group) threads() {
	const count = 8
	words := make([]atomic.Uint64, len(g.ranks)*len(g.ranks)*count) // from, to, goroutine
	word := func(from, to int, i uint64) *atomic.Uint64 {
		return &words[(from*len(g.ranks)+to)*count+int(i)]
	}
	add := g.table.Handle("add", func(c *am.Call) {
		w := word(c.From(), c.Endpoint().Rank(), c.Arg(0))
		_ = c.ReplyWith(am.Medium(c.Payload()), w.Add(c.Arg(1)+uint64(len(c.Payload()))))
	})
	g.open(am.Config{MaxMedium: 1024, Credits: 5, Replies: 3, Spares: 1, Sends: 4, ReplySends: 1})
	g.several(count, func(rank, i int, l *am.Endpoint) error {
		rng := source(rank, i)
		sent := make([]uint64, len(g.endpoints))
		for k := range g.o.Rounds {
			to := rng.IntN(len(g.endpoints)) // itself included
			x := uint64(rng.IntN(100))
			n, err := g.mix(add, l, to, rank*count+i, uint64(i), x, rng)
			if err != nil {
				return fmt.Errorf("goroutine %d, operation %d to rank %d: %w", i, k, to, err)
			}
			sent[to] += x + uint64(n)
		}
		for to := range sent { // posts of this goroutine may be behind
			if err := g.until(l, func() bool { return word(rank, to, uint64(i)).Load() == sent[to] }); err != nil {
				return fmt.Errorf("goroutine %d sent %d to rank %d, where %d came: %w", i, sent[to], to, word(rank, to, uint64(i)).Load(), err)
			}
		}
		return nil
	})
}

// mix sends one request of a random kind with n bytes of payload. place is where its Long payloads
// go.
func (g *group) mix(h *am.Handler, l *am.Endpoint, to, place int, i, x uint64, rng *rand.Rand) (n int, err error) {
	const room = 512
	b := make([]byte, rng.IntN(room))
	fill(b, rng.Uint64())
	long := am.Long(uint64(place)*room, b)
	switch rng.IntN(6) {
	case 0:
		return 0, h.Post(g.ctx, l, to, i, x)
	case 1:
		return len(b), g.insist(l, func() error { return h.PostWith(am.NoWait, l, to, am.Medium(b), i, x) })
	case 2:
		r, err := h.CallWith(g.ctx, l, to, am.Medium(b), i, x)
		if err == nil && string(r.Data) != string(b) {
			err = fmt.Errorf("%d bytes came back as %d others", len(b), len(r.Data))
		}
		return len(b), err
	case 3:
		r, err := h.CallWith(g.ctx, l, to, long, i, x)
		if err == nil && string(r.Data) != string(b) {
			err = fmt.Errorf("%d bytes in the segment came back as %d others", len(b), len(r.Data))
		}
		return len(b), err
	case 4:
		p, err := h.Prepare(g.ctx, l, to, len(b))
		if err != nil {
			return 0, err
		}
		copy(p.Bytes(), b)
		return len(b), p.Commit(g.ctx, i, x)
	}
	p, err := h.Start(g.ctx, l, to, am.Payload{}, i, x)
	if err != nil {
		return 0, err
	}
	_, err = p.Wait(g.ctx)
	return 0, err
}

// locks has handlers and goroutines take the same ranked locks, in order. The counters have no
// other protection.
func (g *group) locks() {
	type account struct {
		outer, inner lockrank.Mutex
		a, b         int
	}
	accounts := make([]account, len(g.ranks))
	for i := range accounts {
		accounts[i].outer.Init(lockrank.HeapLocal, i)
		accounts[i].inner.Init(lockrank.Limit, 0)
	}
	move := func(x *account) {
		x.outer.Lock()
		x.a++
		x.inner.Lock()
		x.b--
		x.inner.Unlock()
		x.outer.Unlock()
	}
	h := g.table.Handle("move", func(c *am.Call) {
		move(&accounts[c.Endpoint().Rank()])
		_ = c.Reply()
	})
	g.open(am.Config{})
	const count = 8
	g.several(count, func(rank, i int, l *am.Endpoint) error {
		rng := source(rank, i)
		for range g.o.Rounds {
			if _, err := h.Call(g.ctx, l, rng.IntN(len(g.endpoints))); err != nil {
				return err
			}
			move(&accounts[rank])
		}
		return nil
	})
	total := 0
	for i := range accounts {
		x := &accounts[i]
		x.outer.Lock() // for the race detector, which does not see that a reply came after its handler
		x.inner.Lock()
		a, b := x.a, x.b
		x.inner.Unlock()
		x.outer.Unlock()
		if total += a; a != -b {
			g.Fatalf("account %d has %d and %d", i, a, b)
		}
	}
	if want := 2 * count * g.o.Rounds * len(g.endpoints); total != want {
		g.Fatalf("%d moves of %d", total, want)
	}
}
