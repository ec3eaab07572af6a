//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// storm is a network for datagrams of connection making that drops, doubles, delays and reorders
// them.
type storm struct {
	mu   sync.Mutex
	rng  *rand.Rand
	held []datagram
}

func newStorm() *storm { return &storm{rng: rand.New(rand.NewPCG(11, 12))} }

func (s *storm) mangle(d datagram) []datagram {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.rng.IntN(5) {
	case 0:
		return nil
	case 1:
		return []datagram{d, d}
	}
	return []datagram{d}
}

// delaying keeps some of one rank's datagrams and sends them again much later, among others.
func (s *storm) delaying(d datagram) []datagram {
	out := s.mangle(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held = append(s.held, d); len(s.held) > 40 {
		i := s.rng.IntN(len(s.held))
		out = append(out, s.held[i])
		s.held[i] = s.held[len(s.held)-1]
		s.held = s.held[:len(s.held)-1]
	}
	return out
}

// captured holds back the first datagram of a kind that a rank sends, and its repetitions.
type captured struct {
	kind datagramKind
	mu   sync.Mutex
	d    *datagram
}

func (c *captured) mangle(d datagram) []datagram {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case d.kind == c.kind && c.d == nil:
		c.d = &d
	case c.d != nil && d.kind == c.kind && d.to == c.d.to && d.epoch == c.d.epoch && d.attempt == c.d.attempt:
	default:
		return []datagram{d}
	}
	return nil
}

func (c *captured) get() *datagram {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.d
}

func TestSimultaneousOpensMakeOneConnectionAPair(t *testing.T) {
	for _, n := range []int{2, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m := newMessageRig(t, n, Config{Lanes: 1, mangle: newStorm().mangle}, endpointConfig)
			m.work(func(o *end) (bool, error) { // all to all, at once
				for peer := range n {
					if o.sent[peer] == 0 && peer != o.rank {
						if _, err := o.send(peer, 8+peer, true, 0); err != nil {
							return false, err
						}
					}
				}
				return len(o.cookies) == 0 && o.delivered() && o.p.Connected() == n-1, nil
			})
			m.agree()
			for _, o := range m.ends {
				for peer, e := range o.epoch {
					if peer != o.rank && (e != 1 || o.arrived[peer] != 1) {
						t.Errorf("rank %d had %d connections with rank %d and got %d messages", o.rank, e, peer, o.arrived[peer])
					}
				}
			}
		})
	}
}

// Late copies of any datagram must neither close nor open anything: each rank has its own store of
// old ones.
func TestIdleConnectionsAboveTheLimitAreClosed(t *testing.T) {
	const n, limit = 6, 2
	m := newMessageRig(t, n, Config{Lanes: 1, Messages: MessageConfig{Connections: limit}}, endpointConfig)
	for _, net := range m.nets {
		net.cfg.mangle = newStorm().delaying
	}
	m.exchange(80)
	m.work(func(o *end) (bool, error) { return o.p.Connected() <= limit, nil })
	m.agree()
	idles := 0
	for _, o := range m.ends {
		idles += o.idles
	}
	if idles < 2*n {
		t.Errorf("%d connections were closed among %d ranks with %d each", idles, n, limit)
	}
	m.exchange(10) // and all can talk to all still
	m.agree()
}

func TestEagerEndpointsConnectWithoutAMessage(t *testing.T) {
	const n = 4
	m := newMessageRig(t, n, Config{Lanes: 1, Messages: MessageConfig{Eager: true}, mangle: newStorm().mangle}, endpointConfig)
	m.work(func(o *end) (bool, error) { return o.p.Connected() == n-1, nil })
	m.agree()
}

// Rank 0 asks to close; before that comes rank 1 has sent a message, which is complete at its side
// and which rank 0 had not seen. The two counts of messages differ.
func TestAnUnseenMessageKeepsTheConnectionOpen(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1}, endpointConfig)
	m.connectAll()
	late := &captured{kind: dgClose}
	m.nets[0].cfg.mangle = late.mangle
	a, b := m.ends[0], m.ends[1]
	m.must("disconnect", a.p.Disconnect(1))
	m.only(0)
	m.work(func(*end) (bool, error) {
		if late.get() == nil {
			return false, a.p.Disconnect(1)
		}
		return true, nil
	})
	m.only(1)
	m.work(func(*end) (bool, error) {
		if b.sent[0] == 1 {
			_, err := b.send(0, 100, true, 0)
			return false, err
		}
		return len(b.cookies) == 0, nil
	})
	answers := b.p.Stats().Handshakes
	d := *late.get()
	d.from = 0
	m.raw(0, 1, encoded(d))
	m.work(func(*end) (bool, error) { return b.p.Stats().Handshakes > answers, nil })
	if b.idles != 0 || !b.open[0] {
		t.Error("the connection was closed under a message")
	}
	m.only(0, 1)
	m.work(func(o *end) (bool, error) { return b.delivered(), nil })
	if a.arrived[1] != 2 {
		t.Errorf("%d messages arrived, want 2", a.arrived[1])
	}
}

// While a connection is being closed it does not count; when the peer needs it, it counts again.
func TestAConnectionInUseIsClosedLater(t *testing.T) {
	m := newMessageRig(t, 3, Config{Lanes: 1}, endpointConfig)
	lost := &captured{kind: dgClose}
	m.connectAll()
	net := m.nets[0]
	net.cfg.mangle = lost.mangle
	net.cfg.Messages.Connections = 1
	a := m.ends[0]
	a.p.conns.trimAt = 0
	m.only(0)
	m.work(func(*end) (bool, error) { return lost.get() != nil && a.p.conns.trimAt == fabric.Never, nil })
	d := *lost.get()
	from := int(d.to)
	m.raw(from, 0, encoded(datagram{kind: dgStay, from: uint32(from), to: 0, epoch: d.epoch, attempt: d.attempt}))
	m.only(0, 1, 2)
	m.work(func(o *end) (bool, error) { return o != a || a.p.Connected() == 1 && a.idles == 1, nil })
	m.exchange(5)
	m.agree()
}

// A rank that cannot make a queue pair for the moment, neither for the peer's request nor for its
// own, has ConnectTimeout to get one, however old its endpoint is.
func TestAConnectionThatCannotBeMadeIsTriedForLong(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1}, endpointConfig)
	a, b := m.ends[0], m.ends[1]
	b.p.origin = b.p.origin.Add(-2 * defaultConnectTimeout)
	way := &m.nets[1].peers[0]
	mtu := way.mtu
	way.mtu = 0 // there is none
	m.only(0)
	m.work(func(*end) (bool, error) {
		if a.sent[1] == 0 {
			_, err := a.send(1, 8, true, 0)
			return false, err
		}
		return a.p.Stats().Handshakes > 2, nil // it has asked, and asks again
	})
	_, err := b.send(0, 8, true, 0)
	m.must("send", err)
	m.only(1) // each of rank 0's requests would put off the next attempt
	until := time.Now().Add(3 * askMost)
	m.work(func(*end) (bool, error) { return time.Now().After(until) || b.down[0] != nil, nil })
	way.mtu = mtu
	m.only(0, 1)
	m.work(func(o *end) (bool, error) { return b.down[0] != nil || len(o.cookies) == 0 && o.delivered(), nil })
	if b.down[0] != nil {
		t.Errorf("after %v: %v", 3*askMost, b.down[0])
	}
}

func TestDifferentSlotSizesBringBothEndsDown(t *testing.T) {
	for _, asker := range []int{0, 1} {
		m := newMessageRig(t, 2, Config{Lanes: 1}, fabric.EndpointConfig{Slots: 4, SlotSize: 64, Sends: 2})
		m.ends[1].p.cfg.SlotSize = 32
		m.work(func(o *end) (bool, error) {
			if o.rank == asker && o.sent[1-asker] == 0 {
				_, err := o.send(1-asker, 8, true, 0)
				return false, err
			}
			return o.down[1-o.rank] != nil, nil
		})
		for _, o := range m.ends {
			if !errors.Is(o.down[1-o.rank], errMisfit) {
				t.Errorf("rank %d: %v", o.rank, o.down[1-o.rank])
			}
		}
	}
}
