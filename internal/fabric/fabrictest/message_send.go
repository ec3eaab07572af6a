package fabrictest

import (
	"errors"
	"math"

	"github.com/ibconduit/conduit/internal/fabric"
)

// reserve: as many buffers as promised, each once, the last ones only with Urgent.
func (g *messageGroup) reserve() {
	p := g.open()[0].p
	for range 2 {
		var all []fabric.SendBuf
		seen := make(map[int32]bool)
		take := func(n int, f fabric.SendFlag) {
			g.Helper()
			for range n {
				b, err := p.Reserve(f)
				g.must("reserve", err)
				if seen[b.ID] || len(b.Data) != slotSize {
					g.Fatalf("buffer %d of %d bytes was given out twice: %v", b.ID, len(b.Data), seen[b.ID])
				}
				seen[b.ID] = true
				fill(b.Data, byte(len(all)))
				all = append(all, b)
			}
			if _, err := p.Reserve(f); !errors.Is(err, fabric.ErrNoBuffer) {
				g.Fatalf("with %d of %d buffers taken: %v, want ErrNoBuffer", len(all), sendCount, err)
			}
			// There is no connection: a message that is copied would have to wait in a buffer.
			copied := fabric.SendBuf{Data: make([]byte, headLen), ID: fabric.Copied}
			if err := p.Send(1, copied, headLen, nil, 0, f); !errors.Is(err, fabric.ErrNoBuffer) {
				g.Fatalf("a copied message with %d of %d buffers taken: %v, want ErrNoBuffer", len(all), sendCount, err)
			}
		}
		take(sendCount-2, 0)
		take(2, fabric.Urgent)
		p.Release(all[0]) // those that are out with Urgent do not count for others
		b, err := p.Reserve(fabric.Urgent)
		g.must("reserve", err)
		p.Release(all[1])
		again, err := p.Reserve(0)
		g.must("reserve beside more urgent ones than are reserved", err)
		fill(b.Data, 0)
		fill(again.Data, 1)
		all[0], all[1] = b, again
		for i, b := range all {
			for _, x := range b.Data {
				if x != byte(i) {
					g.Fatalf("two buffers share memory")
				}
			}
			p.Release(b)
		}
		if n := p.Stats().FreeSends; n != sendCount {
			g.Fatalf("%d buffers are free, want %d", n, sendCount)
		}
	}
}

// refusals leave the buffer with the caller, and count nothing.
func (g *messageGroup) refusals() {
	c := g.open()[0]
	size := uint64(len(g.ranks[1].Segment))
	b, err := c.p.Reserve(0)
	g.must("reserve", err)
	fillMessage(b.Data[:headLen], 0, 1, 1)
	for _, x := range []struct {
		peer, n int
		w       *fabric.Write
		rank    bool // the error is of the rank
	}{
		{peer: -1, n: 1, rank: true}, {peer: len(g.ranks), n: 1, rank: true}, {peer: math.MaxInt, n: 1, rank: true},
		{peer: math.MinInt, n: 1, rank: true},
		{peer: 1, n: slotSize + 1}, {peer: 1, n: -1}, {peer: 1, n: math.MaxInt},
		{peer: 1, n: 1, w: &fabric.Write{Off: size, Src: []byte{1}}},
		{peer: 1, n: 1, w: &fabric.Write{Off: size - 3, Src: make([]byte, 4)}},
		{peer: 1, n: 1, w: &fabric.Write{Off: math.MaxUint64, Src: make([]byte, 4)}},
	} {
		err := c.p.Send(x.peer, b, x.n, x.w, 7, 0)
		var re *fabric.RankError
		var be *fabric.BoundsError
		if x.rank && !errors.As(err, &re) || !x.rank && !errors.As(err, &be) {
			g.Fatalf("send of %d bytes to rank %d, behind %v: %v", x.n, x.peer, x.w, err)
		}
	}
	copied := fabric.SendBuf{Data: make([]byte, headLen), ID: fabric.Copied}
	for _, x := range []struct {
		peer, n int
		w       *fabric.Write
		cookie  uint64
	}{
		{peer: -1, n: 1}, {peer: 1, n: headLen + 1}, {peer: 1, n: -1}, {peer: 1, n: 1, cookie: 7},
		{peer: 1, n: 1, w: &fabric.Write{Src: []byte{1}}},
	} {
		if err := c.p.Send(x.peer, copied, x.n, x.w, x.cookie, 0); err == nil || errors.Is(err, fabric.ErrAgain) {
			g.Fatalf("send of %d copied bytes to rank %d, behind %v, cookie %d: %v", x.n, x.peer, x.w, x.cookie, err)
		}
	}
	if n := c.p.Stats().FreeSends; n != sendCount-1 {
		g.Fatalf("%d buffers are free after what was refused, want %d", n, sendCount-1)
	}
	if s := c.p.Stats(); s.Sends != 0 || s.SendBytes != 0 || s.Writes != 0 || c.p.Connected() != 0 {
		g.Fatalf("what was refused was counted: %+v, %d connections", s, c.p.Connected())
	}
	g.must("send of the same buffer", c.p.Send(1, b, headLen, nil, 0, 0))
	c.peers[1].sent++
	g.expect(func(x *driver) bool { return x.rank != 0 || g.consumed(x) })
}

// fullQueue: a peer whose endpoint is not open takes nothing.
func (g *messageGroup) fullQueue() {
	const many = 2000
	sends := min(many, 4*slotCount)
	c := g.openOne(0, fabric.EndpointConfig{Slots: slotCount, SlotSize: slotSize, Sends: sends, Reserved: 1})
	sent := 0
	for {
		b, err := c.p.Reserve(0)
		if errors.Is(err, fabric.ErrAgain) {
			break // the queue takes all the buffers there are
		}
		g.must("reserve", err)
		fillMessage(b.Data[:headLen], 0, 1, uint64(sent+1))
		err = c.p.Send(1, b, headLen, nil, 0, 0)
		if errors.Is(err, fabric.ErrAgain) {
			c.p.Release(b)
			break
		}
		g.must("send", err)
		if sent++; sent > sends {
			g.Fatalf("%d buffers carry %d messages", sends, sent)
		}
	}
	if sent == 0 {
		g.Fatalf("the queue takes nothing")
	}
	c.peers[1].sent = uint64(sent)
	g.openOne(1, fabric.EndpointConfig{Slots: sends, SlotSize: slotSize, Sends: 2})
	g.expect(func(x *driver) bool { return x.rank != 0 || g.consumed(x) })
	// There is room again.
	g.work(func(x *driver) (bool, error) {
		if x.rank == 0 && int(x.peers[1].sent) == sent {
			if _, err := x.send(1, headLen, nil, true, 0); err != nil {
				return false, err
			}
		}
		return x.rank != 0 || int(x.peers[1].sent) > sent && x.settled() && g.consumed(x), nil
	})
}

// missingSlots: a message that meets no slot shows in RNR and arrives when there is one.
func (g *messageGroup) missingSlots() {
	cfg := fabric.EndpointConfig{Slots: 2, SlotSize: slotSize, Sends: 8}
	a, b := g.openOne(0, cfg), g.openOne(1, cfg)
	b.keep = 2
	for k := range 3 {
		buf, err := a.p.Reserve(0)
		g.must("reserve", err)
		fillMessage(buf.Data[:headLen], 0, 1, uint64(k+1))
		g.must("send", a.p.Send(1, buf, headLen, nil, 0, fabric.Solicited))
		a.peers[1].sent++
	}
	g.expect(func(*driver) bool { return a.p.Stats().RNR+b.p.Stats().RNR > 0 })
	if got := b.peers[0].arrived; got > 2 {
		g.Fatalf("%d messages arrived in 2 slots", got)
	}
	b.keep = 0
	g.work(func(c *driver) (bool, error) {
		if c == b {
			return true, c.post(0)
		}
		return g.consumed(a), nil
	})
}

// kick: what was sent with More goes with Kick, or with a Send without it.
func (g *messageGroup) kick() {
	c := g.open()[0]
	for round := range 20 {
		for k := range 3 {
			f := fabric.More
			if k == 2 && round%2 == 0 {
				f = 0
			}
			ok, err := c.send(1+k%2, headLen, nil, k == 0, f|fabric.Solicited)
			g.must("send", err)
			if !ok {
				g.Fatalf("message %d of round %d was not taken", k, round)
			}
		}
		if round%2 == 1 {
			g.must("kick", c.p.Kick())
		}
		g.expect(func(x *driver) bool { return x != c || x.settled() && g.consumed(x) })
	}
	g.must("kick without anything", c.p.Kick())
}

// silent: polling gives back the buffers of messages without an event, also of the last to a peer.
func (g *messageGroup) silent() {
	a := g.open()[0]
	for _, burst := range []int{1, 2, 7} {
		sent := 0
		g.work(func(c *driver) (bool, error) {
			if c != a {
				return true, nil
			}
			for sent < burst {
				ok, err := c.send(1+sent%2, slotSize, nil, false, 0)
				if !ok || err != nil {
					return false, err
				}
				sent++
			}
			return g.consumed(a) && a.p.Stats().FreeSends == sendCount, nil
		})
	}
	g.balance()
}
