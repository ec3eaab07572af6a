package fabrictest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
)

// traffic has every driver send so many messages to random ranks and take all that come.
// extra is done now and then.
func (g *messageGroup) traffic(count int, extra func(c *driver) error) {
	g.Helper()
	n := len(g.ranks)
	left := make([]int, n)
	for i := range left {
		left[i] = count
	}
	for _, c := range g.drivers {
		c.keep = 2
	}
	closing := make([]int, n) // of the last messages, one to each peer, with a cookie
	g.work(func(c *driver) (bool, error) {
		for left[c.rank] > 0 {
			flags := fabric.SendFlag(c.rng.IntN(2)) * fabric.Solicited
			if left[c.rank] > 1 && c.rng.IntN(3) == 0 {
				flags |= fabric.More
			}
			peer := (c.rank + 1 + c.rng.IntN(n-1)) % n
			ok, err := c.send(peer, headLen+c.rng.IntN(c.cfg.SlotSize-headLen+1), nil, c.rng.IntN(2) == 0, flags)
			if err != nil {
				return false, err
			}
			if !ok {
				break
			}
			left[c.rank]--
			if c.rng.IntN(10) == 0 {
				break
			}
		}
		if err := c.p.Kick(); err != nil {
			return false, err
		}
		if extra != nil {
			if err := extra(c); err != nil {
				return false, err
			}
		}
		if left[c.rank] > 0 {
			return false, nil
		}
		// A message with a cookie behind the others: when it is Sent, so are they.
		for closing[c.rank] < n {
			peer := closing[c.rank]
			if peer != c.rank {
				if ok, err := c.send(peer, headLen, nil, true, 0); err != nil || !ok {
					return false, err
				}
			}
			closing[c.rank]++
		}
		c.keep = 0
		return c.settled() && g.consumed(c), c.post(0)
	})
	g.balance()
}

// consumed reports whether all that a driver sent was taken.
func (g *messageGroup) consumed(c *driver) bool {
	for peer := range c.peers {
		if c.peers[peer].sent != c.drained(peer) {
			return false
		}
	}
	return true
}

// order: whatever the sizes, flags and cookies.
func (g *messageGroup) order() {
	g.open()
	g.traffic(g.o.Rounds, nil)
}

// disconnecting at any time changes no message.
func (g *messageGroup) disconnecting() {
	g.open()
	closed := 0
	for round := 0; closed == 0; round++ {
		if round == 20 {
			g.Fatalf("in %d rounds no connection was closed", round)
		}
		g.traffic(g.o.Rounds, func(c *driver) error {
			if c.rng.IntN(4) > 0 {
				return nil
			}
			return c.p.Disconnect((c.rank + 1 + c.rng.IntN(len(g.ranks)-1)) % len(g.ranks))
		})
		for _, c := range g.drivers {
			for peer := range c.peers {
				closed += c.peers[peer].idles
			}
		}
	}
}

// writes: each message announces what a write before it has put into the segment. The
// source stays as it is until Sent, and not longer.
func (g *messageGroup) writes() {
	const size, areas = 300, 4
	g.open()
	type written struct{ src []byte }
	sources := make([]map[uint64]written, len(g.ranks))
	left := make([]int, len(g.ranks))
	for i, c := range g.drivers {
		left[i] = g.o.Rounds
		sources[i] = make(map[uint64]written)
		c.onMail = func(e fabric.Event, seq uint64) error {
			area := g.ranks[c.rank].Segment[(e.Peer*areas+int(seq)%areas)*size:][:size]
			for i, b := range area {
				if b != byte(seq)+byte(i) {
					return fmt.Errorf("message %d came before byte %d of its write", seq, i)
				}
			}
			return nil
		}
	}
	g.work(func(c *driver) (bool, error) {
		peer := (c.rank + 1 + left[c.rank]%(len(g.ranks)-1)) % len(g.ranks)
		l := &c.peers[peer]
		// An area is written again when its last message was consumed.
		free := l.sent-c.drained(peer) < areas
		if left[c.rank] > 0 && free {
			seq := l.sent + 1
			src := make([]byte, size)
			for i := range src {
				src[i] = byte(seq) + byte(i)
			}
			w := &fabric.Write{Off: uint64((c.rank*areas + int(seq)%areas) * size), Src: src}
			id := (c.cookie+1)<<8 | uint64(c.rank) + 1
			ok, err := c.send(peer, headLen, w, true, fabric.Solicited)
			if err != nil {
				return false, err
			}
			if ok {
				left[c.rank]--
				sources[c.rank][id] = written{src}
			}
		}
		for id, w := range sources[c.rank] {
			if _, waits := c.cookies[id]; !waits {
				fill(w.src, 0xEE)
				delete(sources[c.rank], id)
			}
		}
		return left[c.rank] == 0 && c.settled() && g.consumed(c), nil
	})
	g.balance()
	for _, c := range g.drivers {
		if s := c.p.Stats(); s.Writes != uint64(g.o.Rounds) || s.WriteBytes != uint64(g.o.Rounds*size) {
			g.Fatalf("%d writes of %d bytes were counted, want %d of %d", s.Writes, s.WriteBytes, g.o.Rounds, g.o.Rounds*size)
		}
	}
}

// notes may vanish, come twice or in another order. Those that come are right.
func (g *messageGroup) notes() {
	limit := g.ranks[0].Net.MessageLimits().MaxNote
	if limit < 64 {
		g.Fatalf("notes have at most %d bytes, want 64 or more", limit)
	}
	g.open()
	for _, c := range g.drivers {
		c.onNote = func(e fabric.Event) error {
			if len(e.Data) < headLen || len(e.Data) > limit {
				return fmt.Errorf("a note of %d bytes", len(e.Data))
			}
			want := make([]byte, len(e.Data))
			fillMessage(want, e.Peer, c.rank, binary.LittleEndian.Uint64(e.Data))
			return differ(e.Data, want)
		}
	}
	sent := make([]int, len(g.ranks))
	buf := make([]byte, limit)
	for r := range g.ranks { // each in turn, until all have got some
		g.work(func(c *driver) (bool, error) {
			if c.rank == r {
				for peer := range g.ranks {
					if peer != r {
						sent[r]++
						note := buf[:headLen+c.rng.IntN(limit-headLen+1)]
						fillMessage(note, r, peer, uint64(sent[r]))
						if err := c.p.Note(peer, note); err != nil {
							return false, err
						}
						fill(note, 0xEE) // it was copied
					}
				}
			}
			return c.rank == r || c.notes > 3*(r+1), nil
		})
	}
	c := g.drivers[0]
	if err := c.p.Note(1, make([]byte, limit+1)); err == nil {
		g.Fatalf("a note of %d bytes was accepted, the limit is %d", limit+1, limit)
	}
	var rank *fabric.RankError
	if err := c.p.Note(len(g.ranks), buf[:1]); !errors.As(err, &rank) {
		g.Fatalf("a note to a rank too many: %v, want a *RankError", err)
	}
	for _, c := range g.drivers {
		if s := c.p.Stats(); c.p.Connected() != 0 || s.Notes == 0 || s.NotesArrived < uint64(c.notes) || s.Arrivals != 0 {
			g.Fatalf("rank %d has %d connections and counted %+v; notes need none", c.rank, c.p.Connected(), s)
		}
	}
}
