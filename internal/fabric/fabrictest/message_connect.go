package fabrictest

import (
	"github.com/ibconduit/conduit/internal/fabric"
)

// firstMessage: nothing is connected before it, and only its two ranks by it.
func (g *messageGroup) firstMessage() {
	g.open()
	for _, c := range g.drivers {
		if s := c.p.Stats(); c.p.Connected() != 0 || s.Handshakes != 0 {
			g.Fatalf("rank %d has %d connections and sent %d datagrams before any message",
				c.rank, c.p.Connected(), s.Handshakes)
		}
	}
	a, b := g.drivers[0], g.drivers[1]
	g.deliver(a, 1)
	for _, c := range []*driver{a, b} {
		if c.p.Connected() != 1 || c.peers[1-c.rank].epoch != 1 {
			g.Fatalf("rank %d has %d connections, epoch %d, want 1 and 1", c.rank, c.p.Connected(), c.peers[1-c.rank].epoch)
		}
	}
	if a, b := a.p.Stats(), b.p.Stats(); a.Connects != 1 || a.Accepts != 0 || b.Connects != 0 || b.Accepts != 1 {
		g.Fatalf("rank 0 opened %d and accepted %d, rank 1 opened %d and accepted %d",
			a.Connects, a.Accepts, b.Connects, b.Accepts)
	}
	if n := g.drivers[2].p.Connected(); n != 0 {
		g.Fatalf("rank 2 has %d connections", n)
	}
}

// deliver sends one message and waits until it was taken and all know it.
func (g *messageGroup) deliver(c *driver, peer int) {
	g.Helper()
	was := c.peers[peer].sent
	g.work(func(x *driver) (bool, error) {
		if x != c {
			return true, nil
		}
		if c.peers[peer].sent == was {
			if _, err := c.send(peer, headLen, nil, true, fabric.Solicited); err != nil {
				return false, err
			}
		}
		taken := c.drained(peer)
		return taken > was && taken == c.peers[peer].sent && c.settled(), nil
	})
}

// crossing: two ranks that begin at once share one connection.
func (g *messageGroup) crossing() {
	g.open()
	for round := range uint32(max(5, g.o.Rounds/10)) {
		var sent [2]bool
		g.work(func(c *driver) (bool, error) {
			if c.rank > 1 {
				return true, nil
			}
			if !sent[c.rank] {
				ok, err := c.send(1-c.rank, headLen, nil, true, fabric.Solicited)
				if sent[c.rank] = ok; err != nil {
					return false, err
				}
			}
			return sent[c.rank] && c.settled() && g.consumed(c), nil
		})
		for _, c := range g.drivers[:2] {
			if l := c.peers[1-c.rank]; l.epoch != round+1 || l.ups != int(round)+1 || c.p.Connected() != 1 {
				g.Fatalf("round %d: rank %d is at epoch %d after %d connections, %d open",
					round, c.rank, l.epoch, l.ups, c.p.Connected())
			}
		}
		g.disconnect(0, 1)
	}
}

// disconnect closes the connection between two ranks.
func (g *messageGroup) disconnect(a, b int) {
	g.Helper()
	was := [2]int{g.drivers[a].peers[b].idles, g.drivers[b].peers[a].idles}
	g.work(func(c *driver) (bool, error) {
		switch c.rank {
		case a:
			if c.peers[b].idles == was[0] {
				// Again, in case that it was not idle yet.
				return false, c.p.Disconnect(b)
			}
		case b:
			return c.peers[a].idles > was[1], nil
		}
		return true, nil
	})
	if g.drivers[a].p.Connected() != 0 || g.drivers[b].p.Connected() != 0 {
		g.Fatalf("after Idle rank %d has %d connections and rank %d has %d",
			a, g.drivers[a].p.Connected(), b, g.drivers[b].p.Connected())
	}
}

// idle: both ends learn it, and number the next connection alike.
func (g *messageGroup) idle() {
	g.open()
	g.must("disconnect of a rank that is not connected", g.drivers[0].p.Disconnect(1))
	for round := range uint32(max(5, g.o.Rounds/10)) {
		from := int(round) % 2
		g.deliver(g.drivers[from], 1-from)
		for _, c := range g.drivers[:2] {
			if e := c.peers[1-c.rank].epoch; e != round+1 {
				g.Fatalf("rank %d is at epoch %d in round %d", c.rank, e, round)
			}
		}
		g.disconnect(int(round)/2%2, 1-int(round)/2%2)
	}
}

// lateEndpoint: messages wait for it, however long that takes.
func (g *messageGroup) lateEndpoint() {
	c := g.openOne(0, fabric.EndpointConfig{Slots: slotCount, SlotSize: slotSize, Sends: sendCount})
	for range 3 {
		ok, err := c.send(1, headLen, nil, true, fabric.Solicited)
		g.must("send", err)
		if !ok {
			g.Fatalf("a message to an endpoint that is not open was not taken")
		}
	}
	for range 20 {
		g.host.Sleep(1e6)
		_, err := c.poll(0)
		g.must("poll", err)
	}
	if c.settled() || c.peers[1].open {
		g.Fatalf("messages arrived at an endpoint that is not open")
	}
	g.openOne(1, fabric.EndpointConfig{Slots: slotCount, SlotSize: slotSize, Sends: sendCount})
	g.expect(func(x *driver) bool { return x.rank != 0 || x.settled() && g.consumed(x) })
}
