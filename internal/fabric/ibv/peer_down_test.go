//go:build linux && cgo

package ibv

import (
	"errors"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// hasty are time-outs of the device that a test can wait for: 67 ms, four times. A busy machine may
// keep one that lives from answering for longer than a few milliseconds.
var hasty = Config{Lanes: 1, timeout: 14, retries: 3}

// A peer whose endpoint is open and not polled is alive for all its device knows.
func TestAPeerWithoutAnAnswerToConnectIsDown(t *testing.T) {
	m := newMessageRig(t, 3, Config{Lanes: 1, ConnectTimeout: 200 * time.Millisecond}, endpointConfig)
	m.without(1)
	m.work(func(o *end) (bool, error) {
		if o.rank == 0 && o.sent[1] < 4 && o.down[1] == nil {
			_, err := o.send(1, 400, true, 0)
			return false, err
		}
		return o.rank != 0 || o.down[1] != nil && len(o.cookies) == 0, nil
	})
	o := m.ends[0]
	if len(o.failed) != 4 || !errors.Is(o.down[1], errNoAnswer) {
		t.Errorf("%d of 4 messages failed, the rank is down because of %v", len(o.failed), o.down[1])
	}
	for _, err := range o.failed {
		m.down("message", err, 1, errNoAnswer)
	}
	if o.p.Stats().FreeSends != endpointConfig.Sends {
		t.Errorf("%d send buffers are free", o.p.Stats().FreeSends)
	}
}

func TestKeepaliveFindsADeadPeerWithoutTraffic(t *testing.T) {
	t.Run("behind messages that asked for a completion", func(t *testing.T) { findByKeepalive(t, 0) })
	t.Run("behind messages that did not", func(t *testing.T) { findByKeepalive(t, 3) })
}

// findByKeepalive: rank 1 dies when the last messages of each rank to each other were some that ask
// for no completion.
func findByKeepalive(t *testing.T, silent int) {
	cfg := hasty
	cfg.Messages.Keepalive = 20 * time.Millisecond
	var d deaths
	cfg.OnDown = d.onDown
	m := newMessageRig(t, 3, cfg, endpointConfig)
	m.connectAll()
	for range silent {
		for _, o := range m.ends {
			for peer := range m.ends {
				if peer != o.rank {
					_, err := o.send(peer, 8, false, 0)
					m.must("send", err)
				}
			}
		}
		m.work(func(o *end) (bool, error) { return o.delivered(), nil })
	}
	m.stopDevice(1)
	m.work(func(o *end) (bool, error) { return o.down[1] != nil, nil })
	if m.ends[0].down[2] != nil || !m.ends[0].open[2] || len(d.of(1)) != 2 || len(d.of(2)) != 0 {
		t.Errorf("rank 2 is down at rank 0: %v; OnDown was called %d times for rank 1, %d times for rank 2", m.ends[0].down[2], len(d.of(1)), len(d.of(2)))
	}
	for _, e := range m.ends {
		if e.rank != 1 && !errors.Is(e.down[1], fabric.ErrPeerDown) && e.down[1] == nil {
			t.Errorf("rank %d has no cause", e.rank)
		}
	}
}

// The peer that is asked whether a connection may be closed has ConnectTimeout to answer, since it
// must poll for that. Its device must answer at once.
func TestClosingAConnectionFindsADeadPeer(t *testing.T) {
	cfg := hasty
	cfg.Messages.Keepalive = -1
	cfg.ConnectTimeout = time.Hour
	m := newMessageRig(t, 3, cfg, endpointConfig)
	m.connectAll()
	m.stopDevice(1)
	for _, o := range m.ends {
		if o.rank != 1 {
			m.must("disconnect", o.p.Disconnect(1))
		}
	}
	m.work(func(o *end) (bool, error) { return o.down[1] != nil, nil })
}

// An endpoint that closes while all ranks send to it: each message has its end, and the others go
// on.
func TestClosingInMidTrafficEndsEveryMessageOnce(t *testing.T) {
	m := newMessageRig(t, 4, hasty, endpointConfig)
	m.connectAll()
	closed := false
	m.work(func(o *end) (bool, error) {
		if o.rank == 0 {
			if o.arrived[1] > 5 && o.arrived[2] > 5 {
				closed = true
			}
			return closed, nil
		}
		_, err := o.send(0, 500, true, 0)
		return true, err
	})
	// Their messages are on their way when it goes.
	for _, o := range m.ends[1:] {
		for range 4 {
			_, err := o.send(0, 500, true, 0)
			m.must("send", err)
		}
	}
	m.must("close", m.ends[0].p.Close())
	m.without(0)
	for _, o := range m.ends[1:] { // without a poll since, they do not know
		m.taken[o.rank*len(m.ends)].Store(o.sent[0])
		if ok, err := o.send(0, 500, true, 0); !ok || err != nil {
			t.Fatalf("rank %d could not send: %v", o.rank, err)
		}
	}
	m.work(func(o *end) (bool, error) {
		if o.down[0] == nil {
			_, err := o.send(0, 500, true, 0)
			if errors.Is(err, fabric.ErrPeerDown) {
				err = nil
			}
			return false, err
		}
		return len(o.cookies) == 0, nil
	})
	for _, o := range m.ends[1:] {
		if len(o.failed) == 0 || o.p.Stats().FreeSends != endpointConfig.Sends {
			t.Errorf("rank %d: %d messages failed, %d send buffers are free", o.rank, len(o.failed), o.p.Stats().FreeSends)
		}
	}
	got := m.ends[1].arrived[2]
	m.work(func(o *end) (bool, error) {
		if o.rank == 2 && m.ends[2].sent[1] < got+10 {
			_, err := o.send(1, 500, true, 0)
			return false, err
		}
		return len(o.cookies) == 0, nil
	})
}

// No poll happens while a rank sends and dies: its messages lie in the completion queue, more of
// them than one look takes.
func TestWhatHadArrivedOfADeadRankIsDelivered(t *testing.T) {
	const count = 200
	m := newMessageRig(t, 2, Config{Lanes: 1}, fabric.EndpointConfig{Slots: 2 * count, SlotSize: 64, Sends: 16})
	m.connectAll()
	m.only(1)
	m.work(func(o *end) (bool, error) {
		for o.sent[0] <= count { // one is connectAll's
			ok, err := o.send(0, 8, true, 0)
			if !ok || err != nil {
				return false, err
			}
		}
		return len(o.cookies) == 0, nil
	})
	m.nets[0].PeerDown(1, errors.New("it died"))
	m.only(0)
	m.work(func(o *end) (bool, error) { return o.down[1] != nil, nil })
	if got := m.ends[0].arrived[1]; got != count+1 {
		t.Errorf("%d messages of %d were delivered", got, count+1)
	}
}
