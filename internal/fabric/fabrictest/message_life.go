package fabrictest

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// down: every message to a dead rank has its one end, then the rank has its own, and
// every other goes on.
func (g *messageGroup) down() {
	g.open()
	a, c := g.drivers[0], g.drivers[2]
	g.deliver(a, 1)
	cause := errors.New("it was killed")
	for range 6 { // as many as the queue takes
		_, err := a.send(1, slotSize, nil, true, fabric.Solicited)
		g.must("send", err)
	}
	if a.settled() {
		g.Fatalf("no message was taken")
	}
	g.ranks[0].Net.PeerDown(1, cause)
	g.ranks[0].Net.PeerDown(1, errors.New("reported again"))
	others := []*driver{a, c}
	g.with(others, func() {
		g.expect(func(x *driver) bool { return x != a || x.peers[1].down && x.settled() })
		if a.p.Connected() != 0 {
			g.Fatalf("a dead rank is connected")
		}
		b, err := a.p.Reserve(0)
		g.must("reserve", err)
		for what, err := range map[string]error{"send": a.p.Send(1, b, headLen, nil, 9, 0),
			"note": a.p.Note(1, b.Data[:headLen])} {
			var pd *fabric.PeerDownError
			if !errors.As(err, &pd) || pd.Rank != 1 || !errors.Is(err, cause) {
				g.Fatalf("%s to a dead rank: %v, want a *PeerDownError with the first cause", what, err)
			}
		}
		a.p.Release(b)
		g.deliver(a, 2)
		g.deliver(c, 0)
	})
	if n := a.p.Stats().FreeSends; n != sendCount {
		g.Fatalf("%d send buffers are free, want %d: death keeps some", n, sendCount)
	}
}

// downUnmet: the death of a rank to which nothing was sent is an event like others, and only where
// it was reported.
func (g *messageGroup) downUnmet() {
	a := g.open()[0]
	cause := errors.New("it was killed")
	g.ranks[0].Net.PeerDown(1, cause)
	g.expect(func(x *driver) bool { return x != a || x.peers[1].down })
	var pd *fabric.PeerDownError
	if err := a.p.Note(1, make([]byte, headLen)); !errors.As(err, &pd) || !errors.Is(err, cause) {
		g.Fatalf("note to a dead rank: %v", err)
	}
	if c := g.drivers[2]; a.peers[1].ups != 0 || c.peers[1].down {
		g.Fatalf("rank 0 was connected to rank 1 %d times; at rank 2 it is down: %v", a.peers[1].ups, c.peers[1].down)
	}
	g.with([]*driver{a, g.drivers[2]}, func() { g.deliver(a, 2) })
}

// with leaves only some drivers at work.
func (g *messageGroup) with(drivers []*driver, f func()) {
	all := g.drivers
	g.drivers = drivers
	defer func() { g.drivers = all }()
	f()
}

// closedEndpoint: everything is refused, also what waits, and the network can go.
func (g *messageGroup) closedEndpoint() {
	g.open()
	a := g.drivers[0]
	g.deliver(a, 1)
	if err := g.ranks[0].Net.Close(); !errors.Is(err, fabric.ErrBusy) {
		g.Fatalf("close of a network with an open endpoint: %v, want ErrBusy", err)
	}
	g.deliver(a, 2) // the refusal broke nothing
	held, err := a.p.Reserve(0)
	g.must("reserve", err)
	g.each(2, func(ctx context.Context, i int) error {
		if i == 0 {
			g.host.Sleep(3 * time.Millisecond)
			return a.p.Close()
		}
		for {
			if err := a.p.Wait(ctx); errors.Is(err, os.ErrClosed) {
				return nil
			} else if err != nil {
				return err
			}
			if _, err := a.poll(0); errors.Is(err, os.ErrClosed) {
				return nil
			} else if err != nil {
				return err
			}
		}
	})
	g.must("second close", a.p.Close())
	a.p.Release(held)
	_, rerr := a.p.Reserve(0)
	_, perr := a.p.Poll(a.events, 0)
	for what, err := range map[string]error{
		"reserve": rerr, "poll": perr, "send": a.p.Send(1, held, 1, nil, 0, 0), "kick": a.p.Kick(),
		"note": a.p.Note(1, []byte{1}),
		"post": a.p.Post(0), "wait": a.p.Wait(g.ctx), "disconnect": a.p.Disconnect(1),
	} {
		if !errors.Is(err, os.ErrClosed) {
			g.Fatalf("%s at a closed endpoint: %v, want os.ErrClosed", what, err)
		}
	}
	a.p.Wake()
	a.p.After(0)
	for _, c := range g.drivers[1:] {
		g.must("close of an endpoint", c.p.Close())
	}
	for _, r := range g.ranks {
		g.must("close of a network", r.Net.Close())
	}
}
